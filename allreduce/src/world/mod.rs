//! One rank's view of a whole generation: shared memory among the ranks of its node, TCP between nodes.
//!
//! This is what a training loop uses. Operations run in the order in which they are posted, and every rank posts the
//! same ones; large sums run beside the caller's computing.

mod buffer;

use muster_proto::Rank;

use crate::comm::{CommOptions, Communicator, Handle, OpOptions, Statistics};
use crate::element::Element;
use crate::error::Result;
use crate::membership::Membership;
use crate::tcp::Listener;

pub use buffer::SumBuffer;

/// One rank of a generation. See the module.
#[derive(Debug)]
pub struct World {
    comm: Communicator,
}

/// A sum under way.
#[must_use = "the buffer comes back from wait"]
#[derive(Debug)]
pub struct Pending(Handle<SumBuffer>);

impl Pending {
    /// Blocks until the sum is there.
    ///
    /// # Errors
    /// What ended the generation; the buffer's contents are then lost.
    pub fn wait(self) -> Result<(SumBuffer, Statistics)> {
        let done = self.0.wait()?;
        Ok((done.buffers, done.statistics))
    }
}

impl World {
    /// Joins a generation as rank `me`, and meets the ranks of the own node.
    ///
    /// # Errors
    /// As [`Communicator::new`].
    pub fn join(
        membership: Membership,
        me: Rank,
        listener: Option<Listener>,
        options: CommOptions,
    ) -> Result<Self> {
        Ok(Self { comm: Communicator::new(membership, me, listener, options)? })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.comm.rank()
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.membership().world_size()
    }

    /// The generation's members.
    pub fn membership(&self) -> &Membership {
        self.comm.membership()
    }

    /// Buffers of zeros of these lengths, in memory where [`World::all_reduce`] is fastest. Every rank asks for the
    /// same lengths, once. They may outlive the world, but can be summed in no other one.
    ///
    /// # Errors
    /// If the system has no memory for them, or a peer asked for others.
    pub fn buffers(&mut self, lens: &[usize]) -> Result<Vec<SumBuffer>> {
        Ok(lens.iter().map(|&len| SumBuffer::new(len)).collect())
    }

    /// Replaces everybody's values by their sum, in the canonical order. Starts at once and runs beside the caller.
    pub fn all_reduce(&self, buffer: SumBuffer, name: &str) -> Pending {
        Pending(self.comm.all_reduce(buffer, &OpOptions::sum(name)))
    }

    /// Gathers `counts[rank]` elements of every rank, in rank order. Blocks.
    ///
    /// # Errors
    /// What ended the generation.
    pub fn all_gather<T: Element>(&self, mine: Vec<T>, counts: &[u64], name: &str) -> Result<Vec<T>> {
        let all = vec![T::zeroed(); counts.iter().sum::<u64>() as usize];
        let done = self.comm.all_gather(mine, all, counts, &OpOptions::sum(name)).wait()?;
        Ok(done.buffers.1)
    }

    /// Sends values to one rank, which receives as many. Blocks.
    ///
    /// # Errors
    /// What ended the generation.
    pub fn send<T: Element>(&self, to: Rank, values: Vec<T>, name: &str) -> Result<()> {
        self.comm.send(to, values, &OpOptions::sum(name)).wait()?;
        Ok(())
    }

    /// Receives `count` values from one rank. Blocks.
    ///
    /// # Errors
    /// What ended the generation.
    pub fn receive<T: Element>(&self, from: Rank, count: usize, name: &str) -> Result<Vec<T>> {
        let values = vec![T::zeroed(); count];
        Ok(self.comm.receive(from, values, &OpOptions::sum(name)).wait()?.buffers)
    }

    /// Ends all operations of this rank with an error, and tells the peers. Needs no peer and does not block.
    pub fn abort(&self, reason: &str) {
        self.comm.abort(reason);
    }

    /// What each operation under way waits for, and the last `most` that ended.
    pub fn flight_record(&self, most: usize) -> Vec<String> {
        self.comm.flight_record(most)
    }
}
