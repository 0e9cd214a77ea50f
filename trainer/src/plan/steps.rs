//! How many optimizer steps a run takes.

use muster_proto::run_spec::TrainSpec;

use crate::schedule::warmup_steps;

/// Steps of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Of one pass over the training rows; the last one may hold fewer rows.
    pub per_epoch: u64,
    /// In all.
    pub total: u64,
    /// Of the warm-up.
    pub warmup: u64,
}

/// Counts the steps of a run over `rows` training rows. Shares are rounded up, as in HF Trainer.
pub fn steps(train: &TrainSpec, rows: u64) -> Steps {
    let per_epoch = rows.div_ceil(train.global_batch as u64).max(1);
    let of_epochs = |epochs: f64| (epochs * per_epoch as f64).ceil() as u64;
    let total = train.max_steps.or(train.epochs.map(of_epochs)).unwrap_or(0).max(1);
    let warmup = warmup_steps(train.warmup_steps, train.warmup_ratio, total).min(total);
    Steps { per_epoch, total, warmup }
}
