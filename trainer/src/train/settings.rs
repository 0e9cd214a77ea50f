//! What a run is given: settings, rows, and what the outside lends it; and how it ended.

use std::time::Duration;

use muster_proto::run_spec::{OnNonFinite, ReportTo};

use super::evaluate::Rows;
use super::event::Event;
use super::pace::Pace;
use super::progress::BestRule;
use crate::data::Budget;
use crate::peers::Wish;
use crate::schedule::LearningRate;

/// What a run needs to know beside its data and its engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Seed of the order of rows.
    pub seed: u64,
    /// Rows of a global batch.
    pub global_batch: u64,
    /// When to log, evaluate and save.
    pub pace: Pace,
    /// Learning rate of each step.
    pub learning_rate: LearningRate,
    /// Gradients with a larger norm are scaled down to it.
    pub max_grad_norm: Option<f64>,
    /// What happens at a loss or gradient that is not finite.
    pub on_non_finite: OnNonFinite,
    /// Size of a micro-batch in training.
    pub budget: Budget,
    /// Size of a batch in evaluation.
    pub eval_budget: Budget,
    /// Steps that the loader prepares ahead.
    pub load_ahead: usize,
    /// What decides which model is the best, and when to give up.
    pub best: BestRule,
    /// Labels or targets in model order.
    pub names: Vec<String>,
    /// Probability from which a label of a multi-label task counts as given.
    pub threshold: f32,
    /// Where the numbers of the log go besides.
    pub report_to: ReportTo,
}

/// The rows of a run.
#[derive(Clone)]
pub struct RunRows {
    /// To train on.
    pub train: Rows,
    /// To choose the best model by.
    pub eval: Option<Rows>,
    /// To test the chosen model on.
    pub test: Option<Rows>,
}

/// What the outside lends to a run.
pub struct Hooks<'a> {
    /// What the outside wishes; looked at between steps.
    pub wish: &'a dyn Fn() -> Wish,
    /// Time since some fixed moment.
    pub clock: &'a dyn Fn() -> Duration,
    /// Told of everything that happens.
    pub observe: &'a mut dyn FnMut(&Event),
}

/// How a loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All steps are done.
    Finished,
    /// The metric stopped improving.
    StoppedEarly,
    /// Somebody wished to end; if they wished so, a checkpoint of this step is on disk.
    Interrupted,
    /// Somebody wished to change the membership; the loop can go on with other peers.
    Regroup,
}
