//! The loop goes where its process may compute: between steps, when that has changed.

use muster_kernels::Element;
use muster_kernels::isa;
use muster_kernels::pool::Pool;

use super::error::TrainError;
use super::runner::Trainer;
use crate::topology::{Binder, Place};

impl<'a, E: Element> Trainer<'a, E> {
    /// Has the loop follow what this watches.
    pub fn follow(&mut self, binder: &'a Binder) {
        self.binder = Some(binder);
    }

    /// Starts other compute threads, if this process computes elsewhere from now on. Results are the same on any number
    /// of them.
    pub(super) fn rebind(&mut self) {
        let Some(rebound) = self.binder.and_then(Binder::rebound) else { return };
        match start_pool(rebound.threads, rebound.pinned.as_deref()) {
            Ok(pool) => {
                self.engine.replace_pool(pool);
                self.warn(rebound.warning);
            }
            // The old threads compute wherever the system lets them.
            Err(error) => self.warn(format!("{}; but new threads were refused: {error}", rebound.warning)),
        }
    }

    /// What this rank has of its machine, looked at now.
    pub(super) fn place(&self) -> Place {
        self.binder.map(Binder::look).unwrap_or_default()
    }
}

/// Starts compute threads. One that can't be bound computes all the same, only not as steadily.
pub(super) fn start_pool(threads: usize, pinned: Option<&[u32]>) -> Result<Pool, TrainError> {
    let Some(cpus) = pinned else { return Ok(Pool::new(threads)?) };
    let pool = Pool::pinned(cpus, isa::selected())?;
    for refusal in pool.refusals() {
        tracing::warn!("{refusal}; the scheduler places it");
    }
    Ok(pool)
}
