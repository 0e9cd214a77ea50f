//! Finds out what is wrong when a loss or a gradient is not finite: which rows, which tensor (cases 1 and 10).

use std::fmt;

use muster_kernels::Element;

use super::evaluate::Rows;
use crate::batch::{MicroBatch, Targets};
use crate::data::Place;
use crate::engine::Engine;
use crate::params::Layout;

/// Rows that a message lists before it says how many more there are.
const ROWS_LISTED: usize = 8;

/// What was not finite, and where it came from as far as that can be told.
#[derive(Debug, Clone, PartialEq)]
pub struct NonFinite {
    /// Number of the step, from 1.
    pub step: u64,
    /// "loss" or "gradient".
    pub quantity: &'static str,
    /// The rows whose loss is not finite; if no single row can be told, all rows of the micro-batch or step.
    pub rows: Vec<SuspectRow>,
    /// The first tensor that is not finite, in forward order.
    pub tensor: String,
}

/// A row with its place in the user's files.
#[derive(Debug, Clone, PartialEq)]
pub struct SuspectRow {
    /// Index in the data set, from 0.
    pub row: u64,
    /// File and line.
    pub place: Place,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} of step {} is not finite; ", self.quantity, self.step)?;
        f.write_str(if self.rows.len() == 1 { "row " } else { "rows " })?;
        for (i, suspect) in self.rows.iter().take(ROWS_LISTED).enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{} ({})", suspect.row, suspect.place)?;
        }
        if self.rows.len() > ROWS_LISTED {
            write!(f, " and {} more", self.rows.len() - ROWS_LISTED)?;
        }
        write!(f, "; first tensor that is not finite: {}", self.tensor)
    }
}

/// Explains a micro-batch whose loss is not finite; the engine still holds its gradients.
pub(super) fn explain_loss<E: Element>(
    engine: &mut Engine<E>,
    rows: &Rows,
    batch: &MicroBatch,
    step: u64,
) -> NonFinite {
    let outputs = engine.model().outputs();
    let logits = engine.predict(batch);
    let guilty: Vec<u64> = (0..batch.rows())
        .filter(|&r| {
            let row = &logits[r * outputs..(r + 1) * outputs];
            !engine.loss(row, &one_target(&batch.targets, r)).is_finite()
        })
        .map(|r| batch.row_ids[r])
        .collect();
    // Without dropout every row may be fine; then any of them may have done it.
    let guilty = if guilty.is_empty() { batch.row_ids.clone() } else { guilty };
    let layout = engine.model().layout().clone();
    let tensor = first_broken(&layout, engine.weights())
        .map(|name| format!("weight {name}"))
        .or_else(|| logits.iter().any(|x| !x.is_finite()).then(|| "the logits".to_owned()))
        .or_else(|| first_broken(&layout, &engine.gradients()).map(|name| format!("gradient of {name}")));
    let tensor = tensor.unwrap_or_else(|| "the loss itself (logits are finite but too large)".to_owned());
    NonFinite { step, quantity: "loss", rows: suspects(rows, &guilty), tensor }
}

/// Explains a step whose losses were finite but whose gradient of `parameter` was not.
pub(super) fn explain_gradient<E: Element>(
    engine: &mut Engine<E>,
    rows: &Rows,
    batches: &[MicroBatch],
    step: u64,
    parameter: &str,
) -> NonFinite {
    let all: Vec<u64> = batches.iter().flat_map(|batch| batch.row_ids.iter().copied()).collect();
    let layout = engine.model().layout().clone();
    let tensor = first_broken(&layout, engine.weights())
        .map_or_else(|| format!("gradient of {parameter}"), |name| format!("weight {name}"));
    NonFinite { step, quantity: "gradient", rows: suspects(rows, &all), tensor }
}

fn first_broken(layout: &Layout, arena: &[f32]) -> Option<String> {
    let broken = |p: &&crate::params::Param| arena[p.range.clone()].iter().any(|x| !x.is_finite());
    layout.params().iter().find(broken).map(|p| p.name.clone())
}

fn suspects(rows: &Rows, ids: &[u64]) -> Vec<SuspectRow> {
    ids.iter().map(|&row| SuspectRow { row, place: rows.store.place(row as usize) }).collect()
}

/// The targets of row `r` alone.
fn one_target(targets: &Targets, r: usize) -> Targets {
    let part = |width: usize, values: &[f32]| values[r * width..(r + 1) * width].to_vec();
    match targets {
        Targets::None => Targets::None,
        Targets::Class(classes) => Targets::Class(vec![classes[r]]),
        Targets::Multi { width, values } => Targets::Multi { width: *width, values: part(*width, values) },
        Targets::Value { width, values } => Targets::Value { width: *width, values: part(*width, values) },
    }
}
