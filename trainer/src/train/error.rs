//! Why a run can't go on.

use std::path::PathBuf;

use super::log::LogError;
use super::non_finite::NonFinite;
use crate::data::DataError;

/// Why training can't start or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A loss or gradient is NaN or infinite.
    #[error("{0}")]
    NonFinite(Box<NonFinite>),
    /// The data can't be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The metrics log can't be written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A file of the output directory can't be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
}
