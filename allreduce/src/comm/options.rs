//! Options of a communicator and of its operations.

use std::time::Duration;

use super::Operation;
use crate::error::{Error, Result};
use crate::plan::Algorithm;
use crate::tcp::Security;
use crate::timeouts::Timeouts;

/// Options of a communicator; equal on every rank.
#[derive(Debug, Clone)]
pub struct CommOptions {
    /// How connections are authenticated.
    pub security: Security,
    /// Streams to each peer, 1 to 8. More help where the network limits single flows.
    pub streams: usize,
    /// How long to look for events before sleeping, at most 1 ms. Ignored if the node has more ranks than cores.
    pub spin: Duration,
    /// Deadlines.
    pub timeouts: Timeouts,
}

impl CommOptions {
    /// One stream per peer, 20 us of spinning, default deadlines.
    pub fn new(security: Security) -> Self {
        Self { security, streams: 1, spin: Duration::from_micros(20), timeouts: Timeouts::default() }
    }

    pub(super) fn check(&self) -> Result<()> {
        if !(1..=8).contains(&self.streams) {
            let problem = format!("{} streams per peer; 1 to 8 are possible", self.streams);
            return Err(Error::Config { name: "streams", problem });
        }
        if self.spin > Duration::from_millis(1) {
            let problem =
                format!("{:?} of spinning would starve the cores that compute; 1 ms at most", self.spin);
            return Err(Error::Config { name: "spin", problem });
        }
        Ok(())
    }
}

/// How elements travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Wire {
    /// As they are.
    #[default]
    AsStored,
    /// f32 as bf16: contributions are rounded once, accumulated in f32, and the result is rounded once.
    Bf16,
}

/// Options of one operation; equal on every rank, but for the weight.
#[derive(Debug, Clone, PartialEq)]
pub struct OpOptions {
    /// Name in errors and traces, e.g. the bucket's.
    pub name: String,
    /// How contributions are combined; means nothing where they are only copied.
    pub operation: Operation,
    /// Weight of this rank's contribution. With 0 its input is never read, but takes part in the meeting.
    pub weight: f32,
    /// How elements travel.
    pub wire: Wire,
    /// None: what the cost model says.
    pub algorithm: Option<Algorithm>,
}

impl OpOptions {
    /// A sum with weight 1, elements as they are, the cheapest algorithm.
    pub fn sum(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            operation: Operation::Sum,
            weight: 1.0,
            wire: Wire::AsStored,
            algorithm: None,
        }
    }

    /// The weighted mean.
    pub fn mean(name: &str) -> Self {
        Self { operation: Operation::Mean, ..Self::sum(name) }
    }

    /// The same where elements are only copied, so that the rest means nothing.
    pub(super) fn as_copy(&self) -> Self {
        Self { operation: Operation::Sum, weight: 1.0, ..self.clone() }
    }
}
