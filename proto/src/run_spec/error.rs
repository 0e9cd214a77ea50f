//! What can be wrong with a run file, and how it is told.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::VERSION;
use crate::limits;

/// A run file that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The file can't be read.
    #[error("can't read the run file {}", path.display())]
    Read {
        /// The run file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is larger than any run file can be.
    #[error("{} has {bytes} bytes; a run file has at most {}", path.display(), limits::MAX_RUN_FILE_BYTES)]
    TooLarge {
        /// The run file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The file is not text.
    #[error("{}:{line}:{column}: the run file is not UTF-8 text", path.display())]
    NotUtf8 {
        /// The run file.
        path: PathBuf,
        /// Line of the first wrong byte, from 1.
        line: usize,
        /// Byte of that line, from 1.
        column: usize,
    },
    /// The file is of another version than is read.
    #[error("{}:{line}:{column}: {}", path.display(), migration(*found))]
    Version {
        /// The run file.
        path: PathBuf,
        /// Line of the value, from 1.
        line: usize,
        /// Character of that line, from 1.
        column: usize,
        /// The version that the file names.
        found: i128,
    },
    /// The file has mistakes; all of them are listed.
    #[error("{}", listed(path, problems))]
    Invalid {
        /// The run file.
        path: PathBuf,
        /// The mistakes, in order of their place.
        problems: Vec<Problem>,
    },
}

impl SpecError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("check the path; examples/ holds run files that work as they are".into())
            }
            Self::Read { .. } => None,
            Self::TooLarge { .. } => Some("is this a data file? The run file only names data files".into()),
            Self::NotUtf8 { .. } => Some("save the file as UTF-8".into()),
            Self::Version { found, .. } if *found > i128::from(VERSION) => Some(
                "use the release of Muster that wrote it, or a newer one; CHANGELOG.md lists versions".into(),
            ),
            Self::Version { .. } => {
                Some(format!("write `version = {VERSION}`; docs/run-file.md lists all keys"))
            }
            Self::Invalid { .. } => {
                Some("docs/run-file.md lists all keys with their types and defaults".into())
            }
        }
    }
}

fn migration(found: i128) -> String {
    if found > i128::from(VERSION) {
        format!("version = {found} was written for a newer Muster; this one reads version {VERSION}")
    } else {
        format!("version = {found} never existed; the first and current one is {VERSION}")
    }
}

fn listed(path: &std::path::Path, problems: &[Problem]) -> String {
    let shown = problems.iter().take(limits::MAX_PROBLEMS);
    let mut text = match problems.len() {
        1 => format!("{} has a problem", path.display()),
        n => format!("{} has {n} problems", path.display()),
    };
    for problem in shown {
        text.push_str(&format!("\n  {problem}"));
    }
    if problems.len() > limits::MAX_PROBLEMS {
        text.push_str(&format!("\n  and {} more", problems.len() - limits::MAX_PROBLEMS));
    }
    text
}

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the run file.
    File {
        /// Line, from 1.
        line: usize,
        /// Character of the line, from 1.
        column: usize,
    },
    /// In a `--set` override.
    Override(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { line, column } => write!(f, "line {line}, column {column}"),
            Self::Override(text) => write!(f, "--set {text}"),
        }
    }
}

/// One mistake of a run file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where it was written, or where it should have been.
    pub place: Place,
    /// The key, with its section: `train.learning_rate`; empty for a mistake of TOML itself.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            write!(f, "{}: {}", self.place, self.message)
        } else {
            write!(f, "{}: `{}` {}", self.place, self.key, self.message)
        }
    }
}
