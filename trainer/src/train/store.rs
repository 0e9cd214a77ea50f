//! The output directory of a run: checkpoints, the metrics log, the trained model, the results.
//!
//! ```text
//! <output_dir>/checkpoint-00000120/   resumable, and a Hugging Face model folder
//!              metrics.jsonl          one line per logged step and evaluation
//!              final/                 the chosen model, for transformers and `muster predict`
//!              results.json           the numbers of the run
//!              report.html            the same for people
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_kernels::Element;
use serde_json::Value;

use super::error::TrainError;
use super::progress::{BestRule, LoopState};
use crate::checkpoint::durable::replace_file;
use crate::checkpoint::{self, Contents, Fingerprints, STATE_FORMAT, State, Store, Totals};
use crate::data::Sampler;
use crate::engine::Engine;
use crate::export::{ModelExport, export_model};
use crate::tokenizer::TokenizerFile;
use crate::weights::FileDtype;

/// What every checkpoint of a run repeats.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Final `config.json`.
    pub config: Value,
    /// Saved beside the weights.
    pub tokenizer_files: Vec<TokenizerFile>,
    /// What must not change between stop and resume.
    pub fingerprints: Fingerprints,
    /// Seed of all random streams.
    pub seed: u64,
    /// Rows of a global batch.
    pub global_batch: u64,
    /// Training rows.
    pub train_rows: u64,
}

/// The output directory. Every rank reads it; the one that writes holds it.
pub struct RunStore {
    dir: PathBuf,
    keep_last: usize,
    identity: Identity,
    writer: Option<Store>,
}

/// What the newest whole checkpoint holds besides weights and moments.
pub struct Restored {
    /// The loop's state.
    pub state: LoopState,
    /// Newer checkpoints that were damaged, each with its reason.
    pub skipped: Vec<String>,
}

/// The weights are always stored as they are trained, in f32.
pub(super) const STORED: FileDtype = FileDtype::F32;

impl RunStore {
    /// Names the directory, to read.
    pub fn new(dir: &Path, keep_last: usize, identity: Identity) -> Self {
        Self { dir: dir.to_owned(), keep_last, identity, writer: None }
    }

    /// Takes the directory for this process, creating it if needed.
    ///
    /// # Errors
    /// If it can't be written or another process has it.
    pub fn hold(&mut self) -> Result<(), TrainError> {
        if self.writer.is_none() {
            self.writer = Some(Store::open(&self.dir, self.keep_last)?);
        }
        Ok(())
    }

    /// Leaves the directory to another process.
    pub fn release(&mut self) {
        self.writer = None;
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the metrics log.
    pub fn metrics_path(&self) -> PathBuf {
        self.dir().join("metrics.jsonl")
    }

    /// Path of the trained model.
    pub fn model_path(&self) -> PathBuf {
        self.dir().join("final")
    }

    /// Writes a checkpoint and removes older ones that are neither among the last nor the best.
    ///
    /// # Errors
    /// No space, or a failed write; older checkpoints are then untouched.
    ///
    /// # Panics
    /// If the directory is not held.
    pub fn save<E: Element>(
        &self,
        engine: &mut Engine<E>,
        state: &LoopState,
        rule: &BestRule,
    ) -> Result<PathBuf, TrainError> {
        let layout = engine.model().layout().clone();
        let (master, first_moment, second_moment) = engine.state();
        let contents = Contents {
            state: &self.state(state, rule),
            layout: &layout,
            master,
            first_moment,
            second_moment,
            config: &self.identity.config,
            dtype: STORED,
            tokenizer_files: &self.identity.tokenizer_files,
        };
        let writer = self.writer.as_ref().expect("only the rank that holds the directory writes");
        Ok(writer.save(&contents)?.path)
    }

    /// Whether the checkpoint of a step is there; one that is there is whole.
    pub fn is_saved(&self, step: u64) -> bool {
        self.dir.join(checkpoint::checkpoint_name(step)).join(checkpoint::MANIFEST).is_file()
    }

    /// What a checkpoint says beside weights and moments.
    pub fn state(&self, state: &LoopState, rule: &BestRule) -> State {
        let Identity { seed, global_batch, train_rows, fingerprints, .. } = self.identity;
        let sampler = Sampler::new(seed, train_rows, global_batch);
        let metric = rule.name.clone();
        State {
            format: STATE_FORMAT,
            step: state.step,
            epoch: sampler.epoch_of_step(state.step),
            cursor_rows: sampler.cursor_of_step(state.step),
            global_batch,
            seed,
            best: state.best.map(|best| checkpoint::Best { metric, value: best.value, step: best.step }),
            evaluations_without_improvement: state.without_improvement,
            totals: Totals {
                rows: state.rows,
                tokens: state.tokens,
                skipped_steps: state.skipped_steps,
                train_ms: state.train_ms,
            },
            evaluations: state.evaluations.clone(),
            fingerprints,
        }
    }

    /// Checks that a state is of this run.
    ///
    /// # Errors
    /// If it is of another model, data or run file.
    pub fn check(&self, state: &State) -> Result<(), TrainError> {
        Ok(state.fingerprints.check(&self.identity.fingerprints)?)
    }

    /// Reads the newest whole checkpoint into the engine; `None` if there is none at all.
    ///
    /// # Errors
    /// If all are damaged, or the checkpoint is of another model, data or run file.
    pub fn restore_newest<E: Element>(
        &self,
        engine: &mut Engine<E>,
        rule: &BestRule,
    ) -> Result<Option<Restored>, TrainError> {
        let Some(found) = checkpoint::latest_valid(self.dir())? else { return Ok(None) };
        checkpoint::read_state(&found.path)?.fingerprints.check(&self.identity.fingerprints)?;
        let layout = Arc::clone(engine.model().layout());
        let state = engine.restore(|arenas| checkpoint::load_found(&found, &layout, arenas))?;
        Ok(Some(Restored { state: LoopState::restore(&state, rule), skipped: found.skipped }))
    }

    /// Reads weights and moments of the checkpoint after `step` steps into the engine.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn restore<E: Element>(&self, step: u64, engine: &mut Engine<E>) -> Result<(), TrainError> {
        let path = self.dir().join(checkpoint::checkpoint_name(step));
        let layout = Arc::clone(engine.model().layout());
        engine.restore(|arenas| checkpoint::load(&path, &layout, arenas))?;
        Ok(())
    }

    /// Writes the model folder that `transformers` loads unchanged.
    ///
    /// # Errors
    /// No space, a failed write, or foreign files in its place.
    pub fn export<E: Element>(&self, engine: &mut Engine<E>) -> Result<PathBuf, TrainError> {
        let path = self.model_path();
        let layout = engine.model().layout().clone();
        let model = ModelExport {
            config: &self.identity.config,
            layout: &layout,
            master: engine.weights(),
            dtype: STORED,
            tokenizer_files: &self.identity.tokenizer_files,
        };
        export_model(&path, &model)?;
        Ok(path)
    }

    /// Writes `results.json` in one step: readers see the old file or the new one.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn write_results(&self, results: &impl serde::Serialize) -> Result<(), TrainError> {
        let mut text =
            serde_json::to_vec_pretty(results).expect("results have string keys and no foreign types");
        text.push(b'\n');
        Ok(replace_file(self.dir(), "results.json", &text)?)
    }
}
