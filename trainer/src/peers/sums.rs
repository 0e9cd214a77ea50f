//! The sums of one step's gradient buckets over all ranks, under way while backward goes on.

use muster_allreduce::{Error, Pending, World};

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
        let complete = gradients.plan().complete_from(final_from).min(gradients.word_bucket());
        for bucket in self.pending.len()..complete {
            self.pending.push(world.all_reduce(gradients.lend(bucket), &format!("bucket {bucket}")));
        }
    }

    /// Starts what is left, sums the word table, and waits for all; the gradients are then everybody's.
    ///
    /// # Errors
    /// What ended the generation; the gradients are then lost.
    pub fn finish(mut self, gradients: &mut Gradients) -> Result<(), Error> {
        self.start(gradients, 0);
        gradients.settle();
        let Some(world) = &self.peers.world else { return Ok(()) };
        sum_words(world, gradients)?;
        for (bucket, pending) in self.pending.into_iter().enumerate() {
            let (buffer, _) = pending.wait()?;
            gradients.put_back(bucket, buffer);
        }
        Ok(())
    }
}

/// Sums the word table: its touched rows, unless there are so many that the whole table is less. Both give the same
/// bits.
fn sum_words(world: &World, gradients: &mut Gradients) -> Result<(), Error> {
    let (words, width) = gradients.words();
    let rows = words.len() / width;
    let counts = world.row_counts(gradients.touched().len(), "rows of the word table")?;
    if counts.are_cheaper_than(rows) {
        let rows =
            world.all_reduce_rows(gradients.touched_rows(), &counts, width, "rows of the word table")?;
        gradients.set_rows(rows);
        return Ok(());
    }
    let bucket = gradients.word_bucket();
    let (buffer, _) = world.all_reduce(gradients.lend(bucket), "the word table").wait()?;
    gradients.put_back(bucket, buffer);
    gradients.touch(&(0..rows as u32).collect::<Vec<_>>());
    gradients.settle();
    Ok(())
}
