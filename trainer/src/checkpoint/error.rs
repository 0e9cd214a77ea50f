//! What can go wrong with checkpoints.

use std::io;
use std::path::PathBuf;

use crate::weights::WeightsError;

/// Reasons why a checkpoint can't be written, found, trusted or continued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or folder operation failed.
    #[error("can't {action} {path}", path = path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Another process writes checkpoints there.
    #[error("{dir} is in use by another run", dir = dir.display())]
    InUse {
        /// The folder.
        dir: PathBuf,
    },
    /// The file system can't take the files.
    #[error("not enough space in {dir}: {needed} bytes needed, {available} available", dir = dir.display())]
    NoSpace {
        /// The folder.
        dir: PathBuf,
        /// Bytes about to be written.
        needed: u64,
        /// Bytes the file system would still take from this user.
        available: u64,
    },
    /// A file of the checkpoint is missing, shortened or changed.
    #[error("checkpoint {path} is damaged: {reason}", path = path.display())]
    Damaged {
        /// The checkpoint.
        path: PathBuf,
        /// The file and what is wrong with it.
        reason: String,
    },
    /// Checkpoints exist, but none of them can be used.
    #[error("none of the {count} checkpoints in {dir} is usable: {reasons}", dir = dir.display())]
    NoneValid {
        /// The folder.
        dir: PathBuf,
        /// How many there are.
        count: usize,
        /// Why each was refused.
        reasons: String,
    },
    /// The checkpoint was written by another version of the format.
    #[error("{path} has format {found}, this Muster reads {expected}", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Version found.
        found: u64,
        /// Version read.
        expected: u32,
    },
    /// `state.json` or the manifest lacks a member, has an unknown one or one of a wrong type.
    #[error("{path} is not complete", path = path.display())]
    Members {
        /// The file.
        path: PathBuf,
        /// Names the member.
        #[source]
        source: serde_json::Error,
    },
    /// A tensor of the trainer state is missing or has another size.
    #[error("`{member}` in {path} can't be used", path = path.display())]
    Member {
        /// The file.
        path: PathBuf,
        /// The tensor.
        member: String,
        /// Why.
        #[source]
        source: Box<WeightsError>,
    },
    /// The weights don't fit the model.
    #[error("the weights of checkpoint {path} don't fit the model", path = path.display())]
    Weights {
        /// The checkpoint.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<WeightsError>,
    },
    /// Something that must stay the same since the checkpoint was written has changed.
    #[error("the {what} changed since the checkpoint was written (was {saved:016x}, is {now:016x})")]
    Changed {
        /// `run file`, `data`, `tokenizer`, `labels` or `model`.
        what: &'static str,
        /// Fingerprint in the checkpoint.
        saved: u64,
        /// Fingerprint of this run.
        now: u64,
    },
}

impl CheckpointError {
    /// Gives the fix for the user, where there is one.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::InUse { .. } => "wait for it or choose another `output_dir`".into(),
            Self::NoSpace { .. } => {
                "free space, lower `checkpoint.keep_last` or choose another `output_dir`".into()
            }
            Self::NoneValid { .. } => {
                "restore one of them from a copy, or move them away to start from scratch".into()
            }
            Self::Damaged { .. } => "resume from an older checkpoint".into(),
            Self::Format { .. } => "continue with the Muster version that wrote it".into(),
            Self::Changed { what, .. } => {
                format!(
                    "continue with the {what} of the first start, or start a new run in another `output_dir`"
                )
            }
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                    "a file is where the directory should be: remove it or choose another `output_dir`".into()
                }
                io::ErrorKind::PermissionDenied
                | io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::NotFound => "choose an `output_dir` in which this user may write".into(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "free space and go on with --resume; the checkpoints written before are whole".into()
                }
                _ => return None,
            },
            _ => return None,
        })
    }

    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
