//! What a run tells whoever watches it.

use std::path::PathBuf;

use super::log::{EvalRecord, StepRecord};
use crate::metrics::Report;

/// Something that happened; a closed list, so that a display can't miss one.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The loop begins.
    Started {
        /// Steps done before (0 for a fresh run).
        step: u64,
        /// Steps of the whole run.
        total_steps: u64,
    },
    /// A step is done.
    StepDone(StepRecord),
    /// An evaluation goes on.
    EvalProgress {
        /// Rows done.
        rows_done: u64,
        /// All rows.
        rows: u64,
    },
    /// An evaluation during training is done.
    EvalDone(EvalRecord),
    /// The chosen model was tested on the rows set apart for it.
    TestDone(Report),
    /// A checkpoint is safely on disk.
    CheckpointSaved {
        /// Steps done.
        step: u64,
        /// Its directory.
        path: PathBuf,
    },
    /// The trained model is safely on disk.
    Exported {
        /// Steps after which it was taken.
        step: u64,
        /// Its directory.
        path: PathBuf,
    },
    /// Something a person should know; training goes on.
    Warning(String),
}
