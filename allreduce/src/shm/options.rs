//! What a caller says: how a group is made, and how contributions become a result.

use std::time::Duration;

use super::error::ShmError;
use super::memory;
use super::protocol::COUNT_MAX;
use crate::element::{DataType, Operation};

/// How a group is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShmOptions {
    /// Names the run; equal on all ranks.
    pub run_id: String,
    /// Version of the membership; a group never outlives it.
    pub generation: u64,
    /// This rank among those of the node.
    pub local_rank: usize,
    /// Ranks of the node.
    pub local_ranks: usize,
    /// Bytes of this rank's arena; equal on all ranks.
    pub arena_bytes: usize,
    /// How long to wait for everybody to join.
    pub start_deadline: Duration,
    /// How long a rank may owe something while nobody makes progress. A rank that begins an operation that much
    /// later than the others counts as lost.
    pub progress_deadline: Duration,
    /// Largest message that every rank reduces for itself instead of a share of it. Equal on all ranks.
    pub one_shot_bytes: usize,
}

impl ShmOptions {
    /// Options with 30 s for both deadlines and no arena.
    pub fn new(run_id: &str, generation: u64, local_rank: usize, local_ranks: usize) -> Self {
        Self {
            run_id: run_id.into(),
            generation,
            local_rank,
            local_ranks,
            arena_bytes: 0,
            start_deadline: Duration::from_secs(30),
            progress_deadline: Duration::from_secs(30),
            one_shot_bytes: memory::FLAT_SLOT,
        }
    }

    pub(super) fn group(&self) -> String {
        format!("run {:?}, generation {}", self.run_id, self.generation)
    }
}

/// How contributions become a result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reduce {
    /// Sum, mean, least or greatest.
    pub operation: Operation,
    /// Factor of this rank's contribution to sums and means; 0 takes no part. Means divide by the sum of
    /// weights.
    pub weight: f32,
}

impl Reduce {
    /// With weight 1.
    pub const fn new(operation: Operation) -> Self {
        Self { operation, weight: 1.0 }
    }
}

/// Checks what can be wrong with a reduction before anybody is told of it.
pub(super) fn check(how: Reduce, dtype: DataType, count: usize) -> Result<(), ShmError> {
    let dtype_name = dtype.name();
    if !how.weight.is_finite() || how.weight < 0.0 {
        let problem = format!("{} is no finite number of at least 0", how.weight);
        return Err(ShmError::Config { name: "weight", problem });
    }
    if dtype.is_integer() && how.operation == Operation::Mean {
        return Err(ShmError::Unsupported { what: "a mean", dtype: dtype_name });
    }
    if dtype.is_integer() && how.weight != 0.0 && how.weight != 1.0 {
        return Err(ShmError::Unsupported { what: "a weight other than 0 and 1", dtype: dtype_name });
    }
    check_count(count)
}

pub(super) fn check_count(count: usize) -> Result<(), ShmError> {
    if count as u64 > COUNT_MAX {
        return Err(ShmError::Config { name: "count", problem: format!("{count} elements are too many") });
    }
    Ok(())
}
