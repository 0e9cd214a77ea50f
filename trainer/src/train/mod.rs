//! One training run on one rank: the step loop, evaluation, the best model, early stopping, the metrics log, resume.
//!
//! [`Trainer`] owns the loop. What it tells the world goes through [`Event`]s and `metrics.jsonl`; what it needs from
//! the world, the time and the stop flag, is handed in by [`Hooks`]. It does not parse arguments, draw progress or
//! install signal handlers; the command line does.

mod error;
mod evaluate;
mod event;
mod finish;
mod inspect;
mod join;
mod log;
mod non_finite;
mod pace;
mod prepare;
mod progress;
mod rebind;
mod runner;
mod settings;
mod step;
mod store;
mod trained;

#[cfg(test)]
mod parallel_tests;
#[cfg(test)]
mod tests;

pub use error::TrainError;
pub use evaluate::{EvalHooks, EvalPlan, Evaluators, Rows, evaluate};
pub use event::{Event, StepTimes};
pub use finish::{Conclusion, RankPlace, Results};
pub use inspect::{InspectContext, Inspected, inspect, truncation_rule};
pub use log::{EvalRecord, Line, LogEnd, LogError, MetricsLog, StepRecord};
pub use non_finite::{NonFinite, SuspectRow};
pub use pace::Pace;
pub use prepare::{Loaded, Prepared, Start, Writer, prepare};
pub use progress::{Best, BestRule, LoopState};
pub use runner::Trainer;
pub use settings::{Ending, Hooks, RunRows, Settings};
pub use store::{Identity, Restored, RunStore};
pub use trained::{Trained, collate_encodings};
