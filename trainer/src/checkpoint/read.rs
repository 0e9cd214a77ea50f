//! Finds, checks and reads checkpoints. Never writes, so it works on the folder of a running job too.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use muster_proto::limits::MAX_STATE_BYTES;

use super::error::CheckpointError;
use super::manifest::{Depth, Manifest};
use super::save::{FIRST_MOMENT, MASTER, SECOND_MOMENT, STATE, TRAINER_STATE};
use super::state::{State, layout_fingerprint};
use crate::bounded;
use crate::export::WEIGHTS;
use crate::params::{ArenasMut, Layout};
use crate::weights::{HeadRule, LoadRules, WeightFiles, WeightsError, load_into};

/// A folder that is named like a checkpoint; not yet checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Finished steps, from the name.
    pub step: u64,
    /// The folder.
    pub path: PathBuf,
}

/// The newest checkpoint that is whole, and the newer ones that are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Finished steps.
    pub step: u64,
    /// The folder.
    pub path: PathBuf,
    /// Newer checkpoints that were passed over, newest first, each with the file and the reason.
    pub skipped: Vec<String>,
}

/// Lists the checkpoints of a folder, oldest first; a missing folder has none.
///
/// # Errors
/// The folder can't be read.
pub fn list(dir: &Path) -> Result<Vec<Entry>, CheckpointError> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(CheckpointError::io("list", dir))?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(CheckpointError::io("list", dir))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let digits = name.strip_prefix("checkpoint-").filter(|digits| digits.len() >= 8);
        if let Some(step) = digits.and_then(|digits| digits.parse().ok()) {
            found.push(Entry { step, path });
        }
    }
    found.sort_by_key(|entry| entry.step);
    Ok(found)
}

/// Checks every byte of a checkpoint against its manifest.
///
/// # Errors
/// [`CheckpointError::Damaged`] naming the file and what is wrong with it.
pub fn verify(checkpoint: &Path) -> Result<Manifest, CheckpointError> {
    let manifest = Manifest::check(checkpoint, Depth::Checksums)?;
    for needed in [WEIGHTS, TRAINER_STATE, STATE] {
        if !manifest.files.iter().any(|file| file.name == needed) {
            let reason = format!("its manifest doesn't list {needed}");
            return Err(CheckpointError::Damaged { path: checkpoint.to_owned(), reason });
        }
    }
    Ok(manifest)
}

/// Finds the newest whole checkpoint; `None` if there is no checkpoint at all.
///
/// # Errors
/// Checkpoints exist but none is whole: that must never look like a first start.
pub fn latest_valid(dir: &Path) -> Result<Option<Found>, CheckpointError> {
    let mut skipped = Vec::new();
    for entry in list(dir)?.into_iter().rev() {
        match verify(&entry.path) {
            Ok(_) => return Ok(Some(Found { step: entry.step, path: entry.path, skipped })),
            Err(error) => {
                tracing::warn!(%error, "skipping a checkpoint");
                skipped.push(error.to_string());
            }
        }
    }
    if skipped.is_empty() {
        return Ok(None);
    }
    let (count, reasons) = (skipped.len(), skipped.join("; "));
    Err(CheckpointError::NoneValid { dir: dir.to_owned(), count, reasons })
}

/// Reads the scalar state of a checkpoint.
///
/// # Errors
/// The file is missing, or a member is missing, unknown or of a wrong type.
pub fn read_state(checkpoint: &Path) -> Result<State, CheckpointError> {
    let path = checkpoint.join(STATE);
    let text = bounded::read(&path, MAX_STATE_BYTES).map_err(io::Error::from);
    let text = text.map_err(CheckpointError::io("read", path.as_path()))?;
    State::from_json(&path, &text)
}

/// Verifies a checkpoint and fills the arenas from it.
///
/// # Errors
/// Damage, a missing member, or a model of another layout.
///
/// # Panics
/// If an arena is not as long as the layout's.
pub fn load(checkpoint: &Path, layout: &Layout, arenas: ArenasMut) -> Result<State, CheckpointError> {
    verify(checkpoint)?;
    fill(checkpoint, layout, arenas)
}

/// As [`load`], for a checkpoint whose bytes [`latest_valid`] has just verified: they are not read once more for that.
///
/// # Errors
/// As [`load`].
///
/// # Panics
/// As [`load`].
pub fn load_found(found: &Found, layout: &Layout, arenas: ArenasMut) -> Result<State, CheckpointError> {
    fill(&found.path, layout, arenas)
}

fn fill(checkpoint: &Path, layout: &Layout, arenas: ArenasMut) -> Result<State, CheckpointError> {
    for arena in [&*arenas.master, &*arenas.first_moment, &*arenas.second_moment] {
        assert_eq!(arena.len(), layout.arena_len(), "arenas must have the layout's length");
    }
    let state = read_state(checkpoint)?;
    let now = layout_fingerprint(layout);
    if state.fingerprints.layout != now {
        return Err(CheckpointError::Changed { what: "model", saved: state.fingerprints.layout, now });
    }
    let path = checkpoint.join(TRAINER_STATE);
    let weights_error = |source: WeightsError| CheckpointError::Weights {
        path: checkpoint.to_owned(),
        source: source.into(),
    };
    let trainer_state = WeightFiles::open_file(&path).map_err(weights_error)?;
    let read = |member: &str, out: &mut [f32]| {
        let wrong = |source: WeightsError| CheckpointError::Member {
            path: path.clone(),
            member: member.to_owned(),
            source: source.into(),
        };
        trainer_state.read_f32(member, out).map_err(wrong)
    };
    read(FIRST_MOMENT, arenas.first_moment)?;
    read(SECOND_MOMENT, arenas.second_moment)?;
    let model = WeightFiles::open_file(&checkpoint.join(WEIGHTS)).map_err(weights_error)?;
    if model.tensors().all(|tensor| tensor.dtype == crate::weights::StoredDtype::F32) {
        arenas.master.fill(0.0);
        load_into(&model, layout, &LoadRules::new(HeadRule::Required), arenas.master)
            .map_err(weights_error)?;
    } else {
        read(MASTER, arenas.master)?;
    }
    Ok(state)
}
