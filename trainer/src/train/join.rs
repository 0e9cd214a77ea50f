//! How a rank takes up its peers at the start of a generation.

use std::thread;
use std::time::Duration;

use muster_kernels::Element;
use muster_proto::run_spec::ReportTo;
use serde::{Deserialize, Serialize};

use super::error::TrainError;
use super::log::{LogEnd, MetricsLog, NewestLines};
use super::progress::LoopState;
use super::runner::Trainer;
use crate::checkpoint::{CheckpointError, State};
use crate::gradients::Gradients;
use crate::peers::{Peers, StateSource, agree, transfer};
use crate::report::EventFiles;

/// How often a rank asks for an output directory that another process still holds, and the pause between.
const HOLD_TRIES: u32 = 40;
const HOLD_PAUSE: Duration = Duration::from_millis(50);

/// What a rank gets besides weights and moments.
#[derive(Serialize, Deserialize)]
struct Handed {
    state: State,
    newest_lines: NewestLines,
}

impl<E: Element> Trainer<'_, E> {
    /// Takes up the peers of a generation: weights become equal, those of the newest step, and the first rank takes
    /// the output directory. Returns the step from which all go on.
    ///
    /// # Errors
    /// [`TrainError::Peers`] if the generation ended meanwhile: other peers may be joined then. An output directory or
    /// a log that can't be written.
    pub fn join(&mut self, peers: Peers) -> Result<u64, TrainError> {
        self.peers = peers;
        let lens = self.engine.gradients_mut().dense_lens();
        match self.peers.buffers(&lens)? {
            Some(buffers) => self.engine.gradients_mut().replace(buffers),
            // What a failed sum had is lost.
            None => {
                let model = self.engine.model();
                *self.engine.gradients_mut() =
                    Gradients::new(&model.layout().clone(), &model.words().clone());
            }
        }
        self.engine.clear_gradients();
        if self.peers.world_size() > 1 {
            self.agree()?;
        }
        self.take_output()?;
        Ok(self.state.step)
    }

    /// Leaves the peers, e.g. before the next generation. The output directory stays with whoever held it until it
    /// joins others.
    pub fn leave(&mut self) -> Peers {
        std::mem::take(&mut self.peers)
    }

    fn agree(&mut self) -> Result<(), TrainError> {
        let digest = self.digest();
        let mine = StateSource { step: self.step_done(), digest };
        let agreement = agree(&self.peers, mine)?;
        let receives = agreement.receivers.contains(&self.peers.rank());
        if receives {
            self.has_state = false;
        }
        let state = self.store.state(&self.state, &self.settings.best);
        let text = serde_json::to_string(&Handed { state, newest_lines: self.newest_lines.clone() });
        let text = text.expect("a state has string keys and no foreign types");
        let Some(text) = transfer(&self.peers, &agreement, &mut self.engine, &text)? else { return Ok(()) };
        let Handed { state, newest_lines } = serde_json::from_str(&text)
            .map_err(|e| TrainError::ForeignState { problem: format!("its state can't be read: {e}") })?;
        self.store.check(&state)?;
        self.newest_lines = newest_lines;
        self.state = LoopState::restore(&state, &self.settings.best);
        self.best_report = None;
        if self.digest() != agreement.digest {
            let problem = "the weights that arrived are not those that were sent".to_owned();
            return Err(TrainError::ForeignState { problem });
        }
        self.has_state = true;
        // Its clock begins with what it received.
        self.started = ((self.hooks.clock)(), self.state.train_ms);
        tracing::info!(
            "received weights and moments of step {} from {} ranks",
            state.step,
            agreement.donors.len()
        );
        Ok(())
    }

    /// What has to be equal on all ranks: weights, moments, and which evaluations are done.
    fn digest(&mut self) -> u64 {
        self.engine.state_digest() ^ (self.state.evaluations.len() as u64).rotate_left(17)
    }

    /// Takes the output directory. The rank that held it before may be frozen and not yet killed, so it is asked for
    /// several times.
    fn hold_output(&mut self) -> Result<(), TrainError> {
        for _ in 0..HOLD_TRIES {
            match self.store.hold() {
                Err(TrainError::Checkpoint(CheckpointError::InUse { .. })) if self.peers.has_generation() => {
                    thread::sleep(HOLD_PAUSE);
                }
                other => return other,
            }
        }
        self.store.hold()
    }

    /// Saves the present step if it should be on disk and isn't: who wrote before may have died while all knew already
    /// that this step's model is the best one. Earlier steps are saved for sure, as it has begun another step since.
    fn complete_checkpoints(&mut self) -> Result<(), TrainError> {
        let step = self.state.step;
        let is_best = self.state.best.is_some_and(|best| best.step == step);
        if step == 0 || !(is_best || self.settings.pace.saves(step)) {
            return Ok(());
        }
        if self.store.is_saved(step) {
            self.saved_step = Some(step);
        }
        self.save_unless_saved()
    }

    /// The first rank holds the output directory and the log, which it cuts after the present step.
    fn take_output(&mut self) -> Result<(), TrainError> {
        self.log = None;
        if !self.peers.is_writer() {
            self.store.release();
            return Ok(());
        }
        self.hold_output()?;
        let end = LogEnd { step: self.state.step, evaluated: self.state.is_evaluated() };
        let log = MetricsLog::open(&self.store.metrics_path(), end)?;
        let mut log = match self.settings.report_to {
            ReportTo::None => log,
            ReportTo::Tensorboard => {
                log.with_events(EventFiles::new(self.store.dir().join("tensorboard"), self.state.step))
            }
        };
        log.complete(&self.newest_lines)?;
        self.log = Some(log);
        self.complete_checkpoints()
    }
}
