//! Evaluation: every row of a set once, without dropout, longest rows first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_kernels::Element;

use crate::data::{Budget, RowSet, TargetShape, TokenStore, collate, pack};
use crate::engine::Engine;
use crate::metrics::{Accumulator, Report};

/// Rows of a store that belong together: for training, for evaluation, for the test.
#[derive(Clone)]
pub struct Rows {
    /// Tokens and targets.
    pub store: Arc<TokenStore>,
    /// Which rows of the store.
    pub set: RowSet,
}

impl Rows {
    /// Counts the rows.
    pub fn len(&self) -> usize {
        self.set.len(&self.store)
    }

    /// Tells whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows as indices of the store.
    pub fn indices(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len() as u64).map(|row| self.set.get(row))
    }
}

/// How a set is evaluated.
#[derive(Debug, Clone, Copy)]
pub struct EvalPlan<'a> {
    /// Labels or targets in model order.
    pub names: &'a [String],
    /// Probability from which a label of a multi-label task counts as given.
    pub threshold: f32,
    /// Size of a batch.
    pub budget: Budget,
}

/// Evaluates the rows; `None` if `stop` was set meanwhile. `progress` gets (rows done, all rows) after each batch.
///
/// The report is a function of weights, rows and budget: batches follow from the lengths alone.
pub fn evaluate<E: Element>(
    engine: &mut Engine<E>,
    rows: &Rows,
    plan: &EvalPlan,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(u64, u64),
) -> Option<Report> {
    let mut metrics = accumulator(rows.store.shape(), plan.threshold);
    let indices: Vec<u64> = rows.indices().collect();
    let (mut loss_sum, mut done) = (0.0, 0);
    for group in pack(&indices, |row| rows.store.row_tokens(row as usize), plan.budget) {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let batch = collate(&rows.store, &group);
        let logits = engine.predict(&batch);
        loss_sum += engine.loss(&logits, &batch.targets);
        metrics.add(&logits, &batch.targets);
        done += group.len() as u64;
        progress(done, indices.len() as u64);
    }
    Some(metrics.report(plan.names, loss_sum))
}

fn accumulator(shape: TargetShape, threshold: f32) -> Accumulator {
    match shape {
        TargetShape::Class { classes } => Accumulator::classes(classes),
        TargetShape::Multi { width } => Accumulator::labels(width, threshold),
        TargetShape::Value { width } => Accumulator::values(width),
        TargetShape::None => unreachable!("rows without targets are predicted, never evaluated"),
    }
}
