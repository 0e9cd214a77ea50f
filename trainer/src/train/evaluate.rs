//! Evaluation: every row of a set once, without dropout, longest rows first.

use std::sync::Arc;

use muster_allreduce::Error;
use muster_kernels::Element;

use crate::data::{Budget, RowSet, TargetShape, TokenStore, collate, pack};
use crate::engine::Engine;
use crate::metrics::{Accumulator, Report};
use crate::peers::{Peers, Round, Wish};

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

/// Who computes an evaluation.
#[derive(Debug, Clone, Copy)]
pub enum Evaluators<'p> {
    /// This process, by itself.
    Alone,
    /// All ranks, batch by batch in turns.
    All(&'p Peers),
    /// The rank that writes; the others wait for it, and get the report too.
    Writer(&'p Peers),
}

impl Evaluators<'_> {
    /// How many ranks compute, and the place of this one among them, if it does.
    fn turns(&self) -> (usize, Option<usize>) {
        match self {
            Self::Alone => (1, Some(0)),
            Self::All(peers) => (peers.world_size(), Some(peers.rank().0 as usize)),
            Self::Writer(peers) => (1, peers.is_writer().then_some(0)),
        }
    }

    fn exchange(&self, lens: Vec<u64>, mine: Round) -> Result<Round, Error> {
        match self {
            Self::Alone => Ok(mine),
            Self::All(peers) | Self::Writer(peers) => peers.exchange(lens, mine),
        }
    }
}

/// Evaluates the rows; `None` if somebody wished to end meanwhile. `progress` gets (rows done, all rows).
///
/// The report is a function of weights, rows and budget: batches follow from the lengths alone, every row is in one of
/// them, and results are counted in one order on every rank.
///
/// # Errors
/// What ended the generation.
pub fn evaluate<E: Element>(
    engine: &mut Engine<E>,
    rows: &Rows,
    plan: &EvalPlan,
    evaluators: Evaluators,
    hooks: EvalHooks,
) -> Result<Option<Report>, Error> {
    let mut metrics = accumulator(rows.store.shape(), plan.threshold);
    let outputs = engine.model().outputs() as u64;
    let indices: Vec<u64> = rows.indices().collect();
    let (mut loss_sum, mut done) = (0.0, 0);
    let groups = pack(&indices, |row| rows.store.row_tokens(row as usize), plan.budget);
    let (workers, place) = evaluators.turns();
    for round in groups.chunks(workers) {
        let batches: Vec<_> = round.iter().map(|group| collate(&rows.store, group)).collect();
        let lens = batches.iter().map(|batch| batch.rows() as u64 * outputs).collect();
        let mut mine = Round { wish: (hooks.wish)(), ..Round::default() };
        if let Some(batch) = place.and_then(|place| batches.get(place)) {
            let logits = engine.predict(batch);
            mine.losses = vec![engine.loss(&logits, &batch.targets)];
            mine.logits = vec![logits];
        }
        let all = evaluators.exchange(lens, mine)?;
        if all.wish >= Wish::Stop {
            return Ok(None);
        }
        for (batch, (logits, loss)) in batches.iter().zip(all.logits.iter().zip(all.losses)) {
            loss_sum += loss;
            metrics.add(logits, &batch.targets);
            done += batch.rows() as u64;
        }
        (hooks.progress)(done, indices.len() as u64);
    }
    Ok(Some(metrics.report(plan.names, loss_sum)))
}

/// What the outside lends to an evaluation.
pub struct EvalHooks<'a> {
    /// Asked once per round; [`Wish::Stop`] ends the evaluation.
    pub wish: &'a dyn Fn() -> Wish,
    /// Gets (rows done, all rows).
    pub progress: &'a mut dyn FnMut(u64, u64),
}

fn accumulator(shape: TargetShape, threshold: f32) -> Accumulator {
    match shape {
        TargetShape::Class { classes } => Accumulator::classes(classes),
        TargetShape::Multi { width } => Accumulator::labels(width, threshold),
        TargetShape::Value { width } => Accumulator::values(width),
        TargetShape::None => unreachable!("rows without targets are predicted, never evaluated"),
    }
}
