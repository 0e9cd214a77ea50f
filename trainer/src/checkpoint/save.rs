//! Writes checkpoints and removes old ones.
//!
//! Order of events: all files are written and synced in a folder with a temporary name, the manifest last; the
//! folder is synced and renamed; its parent is synced. Only then are old checkpoints removed, each renamed out of
//! the way first. A crash at any point leaves every complete checkpoint as it was, and leftovers that the next
//! start removes.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::durable::{check_space, install_dir, sync_dir, write_file, write_tokenizer_file};
use super::error::CheckpointError;
use super::manifest::{Depth, MANIFEST, MANIFEST_FORMAT, Manifest};
use super::read::list;
use super::state::{STATE_FORMAT, State};
use crate::export::{CONFIG, WEIGHTS, config_text, model_tensors};
use crate::params::Layout;
use crate::tokenizer::TokenizerFile;
use crate::weights::{FileDtype, SafetensorsWriter, TensorOut};

/// File with the moments and, in bf16 runs, the f32 master weights.
pub const TRAINER_STATE: &str = "trainer_state.safetensors";
/// File with the scalar state.
pub const STATE: &str = "state.json";
/// Names that a crash may leave behind start with one of these.
pub(super) const TEMP_PREFIX: &str = ".tmp-";
const TRASH_PREFIX: &str = ".trash-";
const LOCK: &str = ".lock";
/// Room for directory blocks and the rounding of file sizes.
const SLACK_BYTES: u64 = 256 * 1024;

/// Tensors of [`TRAINER_STATE`].
pub(super) const MOMENT_1: &str = "moment1";
pub(super) const MOMENT_2: &str = "moment2";
pub(super) const MASTER: &str = "master";

/// Everything a checkpoint holds, borrowed from the run.
#[derive(Debug, Clone, Copy)]
pub struct Contents<'a> {
    /// Scalar state; `state.step` names the checkpoint.
    pub state: &'a State,
    /// What the arenas mean.
    pub layout: &'a Layout,
    /// f32 weights, arena order.
    pub master: &'a [f32],
    /// First moments, arena order.
    pub moment1: &'a [f32],
    /// Second moments, arena order.
    pub moment2: &'a [f32],
    /// Final `config.json` of the model.
    pub config: &'a Value,
    /// Element type of `model.safetensors`; with bf16 the f32 master weights are stored besides.
    pub dtype: FileDtype,
    /// Tokenizer files, copied.
    pub tokenizer_files: &'a [TokenizerFile],
}

/// A finished checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Its folder.
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Steps whose checkpoints were removed.
    pub pruned: Vec<u64>,
}

/// The one writer of a checkpoint folder.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    keep_last: usize,
    _lock: File,
}

impl Store {
    /// Takes the folder (created if needed) for this process and removes what a crash left behind.
    ///
    /// # Errors
    /// The folder can't be written, or another process has it.
    pub fn open(dir: &Path, keep_last: usize) -> Result<Self, CheckpointError> {
        fs::create_dir_all(dir).map_err(CheckpointError::io("create", dir))?;
        let lock_path = dir.join(LOCK);
        let lock = File::create(&lock_path).map_err(CheckpointError::io("create", lock_path.as_path()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(CheckpointError::InUse { dir: dir.to_owned() }),
            // Some network file systems have no locks; the run must not depend on them.
            Err(TryLockError::Error(error)) => {
                tracing::warn!(path = %lock_path.display(), %error, "can't lock")
            }
        }
        let store = Self { dir: dir.to_owned(), keep_last: keep_last.max(1), _lock: lock };
        store.remove_leftovers()?;
        Ok(store)
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a checkpoint, then removes all but the newest `keep_last` and the best one.
    ///
    /// Cost: writes every byte once; memory below 2 MiB.
    ///
    /// # Errors
    /// Not enough space (checked first), or a failed write. Older checkpoints are then untouched.
    pub fn save(&self, contents: &Contents) -> Result<Saved, CheckpointError> {
        let step = contents.state.step;
        let target = self.dir.join(checkpoint_name(step));
        let temp = self.dir.join(format!("{TEMP_PREFIX}{}", checkpoint_name(step)));
        check_space(&self.dir, contents.bytes_needed())?;
        remove_dir(&temp)?;
        let written =
            write_all(&temp, contents).and_then(|bytes| install_dir(&temp, &target).map(|()| bytes));
        let bytes = match written {
            Ok(bytes) => bytes,
            Err(error) => {
                // The error that matters is the first one; the next start removes what stays.
                let _ = remove_dir(&temp);
                return Err(error);
            }
        };
        sync_dir(&self.dir)?;
        // A checkpoint of the same step that was replaced.
        remove_dir(&temp)?;
        let pruned = self.prune(step, contents.state.best.as_ref().map(|best| best.step))?;
        Ok(Saved { path: target, bytes, pruned })
    }

    /// Removes all but the newest `keep_last` up to `newest` and the one of `best`. Checkpoints of later steps
    /// stay: they belong to an earlier attempt, and training will come to replace them.
    fn prune(&self, newest: u64, best: Option<u64>) -> Result<Vec<u64>, CheckpointError> {
        let (mut kept, mut pruned) = (0, Vec::new());
        for entry in list(&self.dir)?.into_iter().rev().filter(|entry| entry.step <= newest) {
            // A shortened one must not take the place of a good one; one of another format is not ours to judge.
            let check = || Manifest::check(&entry.path, Depth::Sizes);
            let whole = entry.step == newest || !matches!(check(), Err(CheckpointError::Damaged { .. }));
            if whole && kept < self.keep_last {
                kept += 1;
            } else if best != Some(entry.step) {
                let trash = self.dir.join(format!("{TRASH_PREFIX}{}", checkpoint_name(entry.step)));
                remove_dir(&trash)?;
                fs::rename(&entry.path, &trash)
                    .map_err(CheckpointError::io("remove", entry.path.as_path()))?;
                remove_dir(&trash)?;
                pruned.push(entry.step);
            }
        }
        Ok(pruned)
    }

    fn remove_leftovers(&self) -> Result<(), CheckpointError> {
        let entries = fs::read_dir(&self.dir).map_err(CheckpointError::io("list", self.dir.as_path()))?;
        for entry in entries {
            let entry = entry.map_err(CheckpointError::io("list", self.dir.as_path()))?;
            let name = entry.file_name();
            let is_leftover =
                |prefix: &str| name.to_string_lossy().starts_with(&format!("{prefix}checkpoint-"));
            if is_leftover(TEMP_PREFIX) || is_leftover(TRASH_PREFIX) {
                tracing::info!(path = %entry.path().display(), "removing what an interrupted run left behind");
                remove_dir(&entry.path())?;
            }
        }
        Ok(())
    }
}

impl<'a> Contents<'a> {
    /// Bytes that writing this checkpoint takes on disk.
    pub fn bytes_needed(&self) -> u64 {
        let tokenizer: u64 = self.tokenizer_files.iter().map(TokenizerFile::len_bytes).sum();
        let arena = [self.layout.arena_len()];
        self.model().len_bytes() + self.trainer_state(&arena).len_bytes() + tokenizer + SLACK_BYTES
    }

    fn model(&self) -> SafetensorsWriter<'a> {
        SafetensorsWriter::new(model_tensors(self.layout, self.master), self.dtype)
    }

    /// Whole arenas as tensors of one dimension, gaps included; `shape` is their length.
    fn trainer_state<'b>(&'b self, shape: &'b [usize]) -> SafetensorsWriter<'b> {
        let arena = |name, data: &'b [f32]| TensorOut { name, shape, data };
        let mut tensors = vec![arena(MOMENT_1, self.moment1), arena(MOMENT_2, self.moment2)];
        // In f32 the master weights are `model.safetensors`, bit by bit.
        if self.dtype != FileDtype::F32 {
            tensors.push(arena(MASTER, self.master));
        }
        SafetensorsWriter::new(tensors, FileDtype::F32)
    }
}

/// Bytes of one checkpoint of this layout, tokenizer files not included; to check space before training.
pub fn estimated_bytes(layout: &Layout, dtype: FileDtype) -> u64 {
    let arena = layout.arena_len() as u64;
    let master = if dtype == FileDtype::F32 { 0 } else { 4 };
    arena * (8 + master + dtype.size_bytes() as u64) + SLACK_BYTES
}

/// Name of the folder of the checkpoint after `step` steps.
pub fn checkpoint_name(step: u64) -> String {
    format!("checkpoint-{step:08}")
}

fn write_all(temp: &Path, contents: &Contents) -> Result<u64, CheckpointError> {
    assert_eq!(contents.state.format, STATE_FORMAT, "only the current format is written");
    fs::create_dir(temp).map_err(CheckpointError::io("create", temp))?;
    let arena = [contents.layout.arena_len()];
    let config = config_text(contents.config);
    let mut files = vec![
        write_file(temp, CONFIG, |out| out.write_all(&config))?,
        write_file(temp, WEIGHTS, |mut out| contents.model().write_to(&mut out))?,
        write_file(temp, TRAINER_STATE, |mut out| contents.trainer_state(&arena).write_to(&mut out))?,
        write_file(temp, STATE, |out| out.write_all(&contents.state.to_json()))?,
    ];
    for file in contents.tokenizer_files {
        files.push(write_tokenizer_file(file, temp)?);
    }
    let bytes = files.iter().map(|file| file.bytes).sum();
    let manifest = Manifest { format: MANIFEST_FORMAT, files };
    let text = serde_json::to_vec_pretty(&manifest).expect("a manifest has text keys only");
    write_file(temp, MANIFEST, |out| out.write_all(&text))?;
    sync_dir(temp)?;
    Ok(bytes)
}

fn remove_dir(path: &Path) -> Result<(), CheckpointError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CheckpointError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}
