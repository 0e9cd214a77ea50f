//! The sums of one step's gradient buckets over all ranks, under way while backward goes on.

use muster_allreduce::{Error, Pending};

use super::Peers;
use crate::gradients::Gradients;

/// Sums of buckets in the order of the plan.
pub struct Sums<'p> {
    peers: &'p Peers,
    pending: Vec<Pending>,
}

impl<'p> Sums<'p> {
    /// Nothing is under way yet.
    pub fn new(peers: &'p Peers) -> Self {
        Self { peers, pending: Vec::new() }
    }

    /// Starts the sums of all buckets whose gradients are final, given from which element on they are.
    pub fn start(&mut self, gradients: &mut Gradients, final_from: usize) {
        let Some(world) = &self.peers.world else { return };
        let complete = gradients.plan().complete_from(final_from);
        for bucket in self.pending.len()..complete {
            self.pending.push(world.all_reduce(gradients.lend(bucket), &format!("bucket {bucket}")));
        }
    }

    /// Starts what is left and waits for all; the gradients are then everybody's.
    ///
    /// # Errors
    /// What ended the generation; the gradients are then lost.
    pub fn finish(mut self, gradients: &mut Gradients) -> Result<(), Error> {
        self.start(gradients, 0);
        for (bucket, pending) in self.pending.into_iter().enumerate() {
            let (buffer, _) = pending.wait()?;
            gradients.put_back(bucket, buffer);
        }
        Ok(())
    }
}
