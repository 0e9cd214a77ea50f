//! Numbers that must not be mixed up.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Index of a training process in its run, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

/// Version of the membership of a run; grows by one with every change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// Number of optimizer updates done; the first update makes it 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Step(pub u64);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generation {}", self.0)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}", self.0)
    }
}

impl Step {
    /// The step after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_order_by_their_number_and_name_themselves() {
        assert!(Rank(2) < Rank(10));
        assert_eq!(Rank(3).to_string(), "rank 3");
        assert_eq!(Generation(1).to_string(), "generation 1");
        assert_eq!(Step(7).next().to_string(), "step 8");
    }
}
