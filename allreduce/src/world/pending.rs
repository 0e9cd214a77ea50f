//! Sums under way.

use std::time::{Duration, Instant};

use muster_proto::Rank;

use super::buffer::SumBuffer;
use super::lane::{Outcome, wait};
use super::node::Cost;
use crate::comm::{Handle, Statistics};
use crate::error::Result;

/// A sum under way. Dropping it lets the sum go on; its buffer is freed when it ends.
#[must_use = "the buffer comes back from wait"]
pub struct Pending(pub(super) Way);

/// Who works on it.
pub(super) enum Way {
    /// Nobody: there is one rank.
    Done(SumBuffer),
    Sockets(Handle<SumBuffer>),
    Node {
        me: Rank,
        outcome: Outcome<Summed>,
        bus_factor: f64,
    },
}

/// A sum that has ended.
pub(super) struct Summed {
    pub buffer: SumBuffer,
    pub elapsed: Duration,
    pub cost: Cost,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.0 {
            Way::Done(_) => "Pending(done)",
            Way::Sockets(_) => "Pending(over sockets)",
            Way::Node { .. } => "Pending(in the node)",
        })
    }
}

impl Pending {
    /// Blocks until the sum is there. [`Statistics::exposed`] says for how long.
    ///
    /// # Errors
    /// What ended the generation; the buffer's contents are then lost.
    pub fn wait(self) -> Result<(SumBuffer, Statistics)> {
        let called = Instant::now();
        let (buffer, mut statistics) = match self.0 {
            Way::Done(buffer) => {
                let bytes = size_of_val(&buffer[..]) as u64;
                (buffer, Statistics { bytes, ..Statistics::default() })
            }
            Way::Sockets(handle) => {
                let done = handle.wait()?;
                (done.buffers, done.statistics)
            }
            Way::Node { me, outcome, bus_factor } => {
                let Summed { buffer, elapsed, cost } = wait(&outcome, me)?;
                let statistics = Statistics::new(size_of_val(&buffer[..]) as u64, elapsed, bus_factor);
                (buffer, Statistics { wait: cost.wait, last: cost.last, ..statistics })
            }
        };
        statistics.exposed = called.elapsed();
        Ok((buffer, statistics))
    }
}
