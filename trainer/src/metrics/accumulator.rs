//! One accumulator for every task.

use super::report::{self, Report};
use super::{Confusion, MultiLabelCounts, ValuePairs};
use crate::batch::Targets;

/// What has been seen of an evaluation so far.
#[derive(Debug, Clone, PartialEq)]
pub enum Accumulator {
    /// One class per row.
    Classes(Confusion),
    /// Any number of labels per row.
    Labels(MultiLabelCounts),
    /// Numbers.
    Values(ValuePairs),
}

impl Accumulator {
    /// Starts a single-label evaluation.
    pub fn classes(classes: usize) -> Self {
        Self::Classes(Confusion::new(classes))
    }

    /// Starts a multi-label evaluation; a label is given from the probability `threshold` on, in (0, 1).
    pub fn labels(width: usize, threshold: f32) -> Self {
        Self::Labels(MultiLabelCounts::new(width, threshold))
    }

    /// Starts a regression evaluation.
    pub fn values(width: usize) -> Self {
        Self::Values(ValuePairs::new(width))
    }

    /// Adds the rows of a batch by their logits, `(R, outputs)`.
    ///
    /// # Panics
    /// If the targets are of another task or the shapes differ: both come from one plan.
    pub fn add(&mut self, logits: &[f32], targets: &Targets) {
        match (self, targets) {
            (Self::Classes(c), Targets::Class(t)) => c.add_logits(logits, t),
            (Self::Labels(c), Targets::Multi { values, .. }) => c.add_logits(logits, values),
            (Self::Values(c), Targets::Value { values, .. }) => c.add(logits, values),
            _ => panic!("targets and metrics must be of one task"),
        }
    }

    /// Adds what another accumulator of the same task has seen.
    ///
    /// # Panics
    /// If the tasks differ.
    pub fn merge(&mut self, other: &Self) {
        match (self, other) {
            (Self::Classes(a), Self::Classes(b)) => a.merge(b),
            (Self::Labels(a), Self::Labels(b)) => a.merge(b),
            (Self::Values(a), Self::Values(b)) => a.merge(b),
            _ => panic!("only metrics of one task can be merged"),
        }
    }

    /// Computes the report; `names` are the labels or targets in model order, `loss_sum` the sum of row losses.
    pub fn report(&self, names: &[String], loss_sum: f64) -> Report {
        match self {
            Self::Classes(c) => report::single_label(names, c, loss_sum),
            Self::Labels(c) => report::multi_label(names, c, loss_sum),
            Self::Values(c) => report::regression(names, c, loss_sum),
        }
    }
}
