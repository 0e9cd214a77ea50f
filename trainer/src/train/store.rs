//! The output directory of a run: checkpoints, the metrics log, the trained model, the results.
//!
//! ```text
//! <output_dir>/checkpoint-00000120/   resumable, and a Hugging Face model folder
//!              metrics.jsonl          one line per logged step and evaluation
//!              final/                 the chosen model, for transformers and `muster predict`
//!              results.json           the numbers of the run
//! ```

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use muster_kernels::Element;
use serde_json::Value;

use super::error::TrainError;
use super::progress::{BestRule, LoopState};
use crate::checkpoint::{
    self, ArenasMut, Contents, Fingerprints, STATE_FORMAT, State, Store, Totals, Window,
};
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

/// The output directory, held by this process.
pub struct RunStore {
    store: Store,
    identity: Identity,
}

/// What a checkpoint holds beside weights and moments.
pub struct Restored {
    /// The loop's state.
    pub state: LoopState,
    /// Newer checkpoints that were damaged, each with its reason.
    pub skipped: Vec<String>,
}

/// The weights are always stored as they are trained, in f32.
pub(super) const STORED: FileDtype = FileDtype::F32;

impl RunStore {
    /// Takes the directory for this process, creating it if needed.
    ///
    /// # Errors
    /// If it can't be written or another process has it.
    pub fn open(dir: &Path, keep_last: usize, identity: Identity) -> Result<Self, TrainError> {
        Ok(Self { store: Store::open(dir, keep_last)?, identity })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        self.store.dir()
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
    pub fn save<E: Element>(
        &self,
        engine: &Engine<E>,
        state: &LoopState,
        rule: &BestRule,
    ) -> Result<PathBuf, TrainError> {
        let (moment1, moment2) = engine.moments();
        let contents = Contents {
            state: &self.state(state, rule),
            layout: engine.model().layout(),
            master: engine.weights(),
            moment1,
            moment2,
            config: &self.identity.config,
            dtype: STORED,
            tokenizer_files: &self.identity.tokenizer_files,
        };
        Ok(self.store.save(&contents)?.path)
    }

    fn state(&self, state: &LoopState, rule: &BestRule) -> State {
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
            evaluations_without_gain: state.without_improvement,
            window: Window::default(),
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
        let state = self.read(&found.path, engine, rule)?;
        Ok(Some(Restored { state, skipped: found.skipped }))
    }

    /// Reads the checkpoint after `step` steps into the engine.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn restore<E: Element>(
        &self,
        step: u64,
        engine: &mut Engine<E>,
        rule: &BestRule,
    ) -> Result<LoopState, TrainError> {
        self.read(&self.dir().join(checkpoint::checkpoint_name(step)), engine, rule)
    }

    fn read<E: Element>(
        &self,
        path: &Path,
        engine: &mut Engine<E>,
        rule: &BestRule,
    ) -> Result<LoopState, TrainError> {
        let layout = engine.model().layout().clone();
        let state = engine.refill(|arenas| {
            let arenas = ArenasMut {
                master: arenas.weights,
                moment1: arenas.first_moment,
                moment2: arenas.second_moment,
            };
            checkpoint::load(path, &layout, arenas)
        })?;
        Ok(LoopState::restore(&state, rule))
    }

    /// Writes the model folder that `transformers` loads unchanged.
    ///
    /// # Errors
    /// No space, a failed write, or foreign files in its place.
    pub fn export<E: Element>(&self, engine: &Engine<E>) -> Result<PathBuf, TrainError> {
        let path = self.model_path();
        let model = ModelExport {
            config: &self.identity.config,
            layout: engine.model().layout(),
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
        let (path, temp) = (self.dir().join("results.json"), self.dir().join(".tmp-results.json"));
        let text =
            serde_json::to_string_pretty(results).expect("results have string keys and no foreign types");
        let write = || {
            let mut file = fs::File::create(&temp)?;
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&temp, &path)
        };
        write().map_err(|source| TrainError::Write { path: path.clone(), source })
    }
}
