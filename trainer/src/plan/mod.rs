//! Every value that a run derives from its run file, model, data and machine, each with its reason.
//!
//! [`derive()`] is a pure function and is called before weights are read; `muster plan` prints what it returns and
//! `muster train` acts on it, so both always agree. A run that can't fit into the memory limit is refused here,
//! with numbers, instead of being killed at its longest micro-batch.

pub use derive::{Decision, DerivedPlan, PlanError, derive};
pub use input::{CpuFacts, DatasetStats, ModelDims, PlanInput};
pub use memory::{MemoryEstimate, Part, Storage, estimate};
pub use precision::{PrecisionChoice, choose as choose_precision};
pub use recipe::published_peak_rate;
pub use steps::{Steps, steps};

mod derive;
mod input;
mod memory;
mod micro_batch;
mod precision;
mod recipe;
mod steps;
#[cfg(test)]
mod tests;
mod units;
