//! All deadlines, derived from two numbers.

use std::time::Duration;

use crate::error::{Error, Result};

/// The two numbers, and what follows from them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    lease: Duration,
    operation_budget: Duration,
}

impl Default for Timeouts {
    /// A lease of 3 s, a budget of 60 s.
    fn default() -> Self {
        Self { lease: Duration::from_secs(3), operation_budget: Duration::from_secs(60) }
    }
}

impl Timeouts {
    /// `lease`: how long a rank may be unreachable before it is given up. `operation_budget`: how long an operation
    /// may go without any progress, which includes waiting for a rank that still computes.
    ///
    /// # Errors
    /// A lease below 100 ms or above the budget, or a budget above a day.
    pub fn new(lease: Duration, operation_budget: Duration) -> Result<Self> {
        let bad = |name, problem: String| Err(Error::Config { name, problem });
        if lease < Duration::from_millis(100) {
            return bad("lease", format!("{lease:?} is below 100 ms, less than a busy machine's pauses"));
        }
        if operation_budget < lease {
            return bad(
                "operation_budget",
                format!("{operation_budget:?} is below the lease of {lease:?}; a reconnect must fit into it"),
            );
        }
        if operation_budget > Duration::from_secs(86_400) {
            return bad("operation_budget", format!("{operation_budget:?} is more than a day"));
        }
        Ok(Self { lease, operation_budget })
    }

    /// How long a rank may be unreachable.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// How long an operation may go without progress.
    pub fn operation_budget(&self) -> Duration {
        self.operation_budget
    }

    /// How long peers may take to appear at first: the slowest rank starts after the fastest.
    pub fn first_connect(&self) -> Duration {
        self.operation_budget
    }

    /// How long a lost connection is repaired before the peer counts as lost.
    pub fn repair(&self) -> Duration {
        self.lease / 4
    }

    /// How long a handshake may take.
    pub fn handshake(&self) -> Duration {
        self.lease / 2
    }

    /// How long sent bytes may stay without acknowledgement of the peer's system (TCP_USER_TIMEOUT).
    pub fn unacknowledged(&self) -> Duration {
        self.lease / 2
    }

    /// How long a closing communicator goes on to serve its peers.
    pub fn linger(&self) -> Duration {
        self.lease / 4
    }

    /// When what was finished is told without being asked.
    pub(crate) fn acknowledge(&self) -> Duration {
        (self.lease / 100).min(Duration::from_millis(5))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_numbers_are_checked_and_order_the_rest() {
        let s = Duration::from_secs;
        assert!(Timeouts::new(Duration::from_millis(99), s(1)).is_err());
        assert!(Timeouts::new(s(2), s(1)).unwrap_err().to_string().contains("below the lease"));
        assert!(Timeouts::new(s(2), s(100_000)).is_err());
        let t = Timeouts::new(s(2), s(10)).unwrap();
        assert!(t.acknowledge() < t.repair() && t.repair() < t.handshake());
        assert!(t.handshake() < t.lease() && t.lease() < t.first_connect());
    }
}
