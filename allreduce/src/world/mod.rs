//! One rank's view of a whole generation: shared memory among the ranks of its node, TCP between nodes.
//!
//! This is what a training loop uses. Operations run in the order in which they are posted, and every rank posts the
//! same ones; large sums run beside the caller's computing.
//!
//! | ranks | who moves the bytes |
//! |---|---|
//! | one | nobody; the sum is the buffer, and there is no thread |
//! | all on one node | [`crate::shm`], from one thread of the world |
//! | as many on each of several nodes | the same, and between nodes the rails of the communicator |
//! | one per node, or uneven nodes | [`Communicator`] |
//!
//! Invariants
//! * Sums have the bits of the canonical order ([`crate::order`]) whoever moves them (but the ring, beyond
//!   [`crate::CostModel::fan_in_max`] nodes).
//! * The first failure ends every operation and answers every later one, on every rank; errors name ranks of the
//!   world. Then drop the world and join the next generation.
//! * Dropping a world needs no peer. Its buffers live as long as their owners want.
//!
//! It decides nothing about members, and doesn't know what the values mean.

mod abort;
mod buffer;
mod fault;
mod lane;
mod node;
mod pending;
mod rails;
mod rows;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use muster_proto::Rank;

use crate::comm::{CommOptions, Communicator, OpOptions};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::membership::Membership;
use crate::shm::RANKS_MAX;
use crate::tcp::Listener;

pub use abort::WorldAbort;
pub use buffer::SumBuffer;
pub use pending::Pending;
pub use rows::{RowCounts, TableRows};

use fault::Place;
use lane::Lane;
use node::Node;
use pending::{Summed, Way};

/// One rank of a generation. See the module.
pub struct World {
    me: Rank,
    membership: Membership,
    ways: Ways,
    has_buffers: bool,
}

/// How this rank reaches the others.
enum Ways {
    Alone,
    Sockets(Arc<Communicator>),
    /// The communicator for other nodes and for transfers.
    Node(Arc<Communicator>, Lane),
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("me", &self.me)
            .field("generation", &self.membership.generation())
            .field("nodes", &self.membership.nodes())
            .finish_non_exhaustive()
    }
}

impl World {
    /// Joins a generation as rank `me`, and meets the ranks of the own node; those of other nodes when the first
    /// operation needs them.
    ///
    /// # Errors
    /// As [`Communicator::new`], and [`Error::PeerLost`] with the first rank of the node that has not come within the
    /// operation budget.
    pub fn join(
        membership: Membership,
        me: Rank,
        listener: Option<Listener>,
        options: CommOptions,
    ) -> Result<Self> {
        Self::join_unless(membership, me, listener, options, &AtomicBool::new(false))
    }

    /// As [`World::join`], until somebody sets `is_cancelled`: for a generation that nobody wants any more because a
    /// member died before it joined.
    ///
    /// # Errors
    /// Also [`Error::Aborted`] by this rank.
    pub fn join_unless(
        membership: Membership,
        me: Rank,
        listener: Option<Listener>,
        options: CommOptions,
        is_cancelled: &AtomicBool,
    ) -> Result<Self> {
        let world_size = membership.world_size();
        if membership.member(me).is_none() {
            return Err(Error::NoSuchRank { rank: me, world_size });
        }
        let budget = options.timeouts.operation_budget();
        let ways = if world_size == 1 {
            Ways::Alone
        } else {
            let comm = Arc::new(Communicator::new(membership.clone(), me, listener, options)?);
            if shares_memory(&membership) {
                let node = Node::join(Arc::clone(&comm), budget, is_cancelled)?;
                Ways::Node(comm, Lane::start(node)?)
            } else {
                Ways::Sockets(comm)
            }
        };
        Ok(Self { me, membership, ways, has_buffers: false })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.me
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.membership.world_size()
    }

    /// The generation's members.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Buffers of zeros of these lengths, in memory where [`World::all_reduce`] is fastest. Every rank asks for the
    /// same lengths, once. They may outlive the world, but can be summed in no other one.
    ///
    /// # Errors
    /// If the system has no memory for them, a peer asked for others, or the world has given some before.
    pub fn buffers(&mut self, lens: &[usize]) -> Result<Vec<SumBuffer>> {
        if std::mem::replace(&mut self.has_buffers, true) {
            let problem = "a world gives buffers once; ask for all of them together".to_owned();
            return Err(Error::Config { name: "lens", problem });
        }
        let Ways::Node(_, lane) = &self.ways else {
            return Ok(lens.iter().map(|&len| SumBuffer::new(len)).collect());
        };
        let lens = lens.to_vec();
        let (buffers, handle) = lane.run("buffers", move |node: &mut Node| {
            let buffers = node.buffers(&lens)?;
            Ok((buffers, node.abort_handle()))
        })?;
        lane.replace_abort_handle(handle);
        Ok(buffers)
    }

    /// Replaces everybody's values by their sum, in the canonical order. Starts at once and runs beside the caller.
    pub fn all_reduce(&self, buffer: SumBuffer, name: &str) -> Pending {
        Pending(match &self.ways {
            Ways::Alone => Way::Done(buffer),
            Ways::Sockets(comm) => Way::Sockets(comm.all_reduce(buffer, &OpOptions::sum(name))),
            Ways::Node(_, lane) => {
                let (of_job, posted) = (name.to_owned(), Instant::now());
                let outcome = lane.post(name, move |node: &mut Node| {
                    let (buffer, cost) = node.sum(&of_job, buffer)?;
                    Ok(Summed { buffer, elapsed: posted.elapsed(), cost })
                });
                let n = self.world_size() as f64;
                Way::Node { me: self.me, outcome, bus_factor: 2.0 * (n - 1.0) / n }
            }
        })
    }

    /// Gathers `counts[rank]` elements of every rank, in rank order. Blocks.
    ///
    /// # Errors
    /// What ended the generation.
    pub fn all_gather<T: Element>(&self, mine: Vec<T>, counts: &[u64], name: &str) -> Result<Vec<T>> {
        match &self.ways {
            Ways::Node(_, lane) if self.membership.nodes().len() == 1 => {
                let counts: Vec<usize> = counts.iter().map(|&count| count as usize).collect();
                let of_job = name.to_owned();
                lane.run(name, move |node: &mut Node| node.gather(&of_job, &mine, &counts))
            }
            Ways::Sockets(comm) | Ways::Node(comm, _) => {
                let total = counts.iter().fold(0_u64, |sum, &count| sum.saturating_add(count));
                let all = vec![T::zeroed(); total as usize];
                let done = comm.all_gather(mine, all, counts, &OpOptions::sum(name)).wait();
                Ok(self.judge(done.map_err(Error::from))?.buffers.1)
            }
            Ways::Alone => {
                let got = mine.len() as u64;
                match counts {
                    [expected] if *expected == got => Ok(mine),
                    _ => {
                        let expected = counts.first().copied().unwrap_or(0);
                        Err(Error::Length { what: "the input", expected, got })
                    }
                }
            }
        }
    }

    /// Sends values to one rank, which receives as many. Blocks.
    ///
    /// # Errors
    /// What ended the generation.
    pub fn send<T: Element>(&self, to: Rank, values: Vec<T>, name: &str) -> Result<()> {
        let done = self.transfers()?.send(to, values, &OpOptions::sum(name)).wait();
        self.judge(done.map_err(Error::from)).map(|_| ())
    }

    /// Receives `count` values from one rank. Blocks.
    ///
    /// # Errors
    /// What ended the generation.
    pub fn receive<T: Element>(&self, from: Rank, count: usize, name: &str) -> Result<Vec<T>> {
        let values = vec![T::zeroed(); count];
        let done = self.transfers()?.receive(from, values, &OpOptions::sum(name)).wait();
        Ok(self.judge(done.map_err(Error::from))?.buffers)
    }

    /// The outcome of an operation over sockets, as the node sees it.
    fn judge<R>(&self, outcome: Result<R>) -> Result<R> {
        match &self.ways {
            Ways::Node(_, lane) => {
                outcome.map_err(|error| lane.judge(Place::new(&self.membership, self.me), error))
            }
            _ => outcome,
        }
    }

    fn transfers(&self) -> Result<&Communicator> {
        match &self.ways {
            Ways::Sockets(comm) | Ways::Node(comm, _) => Ok(comm),
            Ways::Alone => {
                let problem = "a rank can't send to itself, and there is no other".to_owned();
                Err(Error::Config { name: "peer", problem })
            }
        }
    }

    /// Ends all operations of this rank with an error, and tells the peers. Needs no peer and does not block.
    pub fn abort(&self, reason: &str) {
        self.abort_handle().abort(reason);
    }

    /// Something by which another thread ends the operations of this rank.
    pub fn abort_handle(&self) -> WorldAbort {
        match &self.ways {
            Ways::Alone => WorldAbort::default(),
            Ways::Sockets(comm) => WorldAbort::new(comm, None),
            Ways::Node(comm, lane) => WorldAbort::new(comm, Some(lane.ender())),
        }
    }

    /// What each operation under way waits for, and the last `most` that ended.
    pub fn flight_record(&self, most: usize) -> Vec<String> {
        match &self.ways {
            Ways::Alone => Vec::new(),
            Ways::Sockets(comm) => comm.flight_record(most),
            Ways::Node(comm, lane) => {
                let mut lines = lane.flight_record(most);
                lines.extend(comm.flight_record(most));
                lines
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Ways::Node(_, lane) = &self.ways
            && lane.is_busy()
        {
            self.abort("it left while operations were under way");
        }
    }
}

/// Whether the ranks of every node use shared memory; every rank decides alike.
fn shares_memory(membership: &Membership) -> bool {
    let nodes = membership.nodes();
    let ranks = nodes.first().copied().unwrap_or(0);
    (2..=RANKS_MAX).contains(&ranks) && nodes.iter().all(|&n| n == ranks)
}
