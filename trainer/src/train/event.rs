//! What a run tells whoever watches it.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::log::{EvalRecord, StepRecord};
use crate::metrics::Report;

/// Where the time of a step went on this rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTimes {
    /// The whole step.
    pub step: Duration,
    /// Waiting for the loader.
    pub data: Duration,
    /// Forward and backward, and what overlaps with them.
    pub compute: Duration,
    /// Waiting for the sums of gradients after the last of them was there.
    pub exposed: Duration,
    /// How much longer that was than on the rank that waited least, which is the one that was ready last.
    pub early: Duration,
}

/// Something that happened; a closed list, so that a display can't miss one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The loop begins.
    Started {
        /// Steps done before (0 for a fresh run).
        step: u64,
        /// Steps of the whole run.
        total_steps: u64,
    },
    /// A step is done.
    StepDone(StepRecord, StepTimes),
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
