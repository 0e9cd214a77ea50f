//! Why a run can't start or go on.

use std::io;
use std::path::PathBuf;

use muster_kernels::pool::PoolError;

use super::log::LogError;
use super::non_finite::NonFinite;
use crate::checkpoint::CheckpointError;
use crate::data::DataError;
use crate::export::ExportError;
use crate::hub::HubError;
use crate::metrics::MetricError;
use crate::model::ConfigError;
use crate::plan::PlanError;
use crate::tokenizer::TokenizerError;
use crate::weights::WeightsError;

/// Why a run can't start or go on: its own reasons, and those of its parts.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A loss or gradient is NaN or infinite.
    #[error("{0}")]
    NonFinite(Box<NonFinite>),
    /// The output directory holds another run, and nobody said to resume it.
    #[error("{} already holds a run of {step} steps", dir.display())]
    RunExists {
        /// The output directory.
        dir: PathBuf,
        /// Steps of its newest checkpoint.
        step: u64,
    },
    /// Nothing to resume; a run never starts from scratch silently.
    #[error("{} holds no checkpoint to resume", dir.display())]
    NothingToResume {
        /// The output directory.
        dir: PathBuf,
    },
    /// Rows would be longer than the model's position table.
    #[error("data.max_length is {max_length}; the model takes rows of at most {limit} tokens")]
    MaxLength {
        /// As in the run file.
        max_length: usize,
        /// Longest row of the model.
        limit: usize,
    },
    /// A model folder whose labels or task can't be told.
    #[error("{}: {problem}", path.display())]
    ModelFolder {
        /// Its `config.json`.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A file can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The data can't be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The metrics log can't be written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A checkpoint can't be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model can't be saved.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The model can't be found.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// `config.json` can't be used.
    #[error("can't use {}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: ConfigError,
    },
    /// The tokenizer can't be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The weights can't be used.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The metric of the best model means nothing.
    #[error(transparent)]
    Metric(#[from] MetricError),
    /// The run does not fit this machine.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Another rank's loss is NaN or infinite; that rank says which rows.
    #[error("a loss of another rank in step {step} is not finite")]
    NonFiniteElsewhere {
        /// Number of the step, from 1.
        step: u64,
    },
    /// The generation is over: a rank is gone or ranks disagree. Weights and moments are those of the last step.
    #[error("the ranks can't go on together")]
    Peers(#[source] muster_allreduce::Error),
    /// What a peer sent to a rank that joined can't be used.
    #[error("the state received from a peer can't be used: {problem}")]
    ForeignState {
        /// What is wrong with it.
        problem: String,
    },
    /// Compute threads can't be started.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl From<muster_allreduce::Error> for TrainError {
    fn from(error: muster_allreduce::Error) -> Self {
        Self::Peers(error)
    }
}

impl TrainError {
    /// Says what the user can do, where there is something to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NonFinite(_) | Self::NonFiniteElsewhere { .. } => Some(
                "check the rows named above, lower train.learning_rate, or set train.on_non_finite = \"skip\"".into(),
            ),
            Self::RunExists { .. } => {
                Some("continue it with --resume, or choose another output_dir, or remove the directory".into())
            }
            Self::NothingToResume { .. } => Some("start the run without --resume".into()),
            Self::MaxLength { limit, .. } => Some(format!("set data.max_length = {limit} or less")),
            Self::ModelFolder { .. } => Some("name a folder that Muster or transformers saved after training".into()),
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("a model folder holds config.json, weights and tokenizer files".into())
            }
            Self::Read { .. } | Self::Log(_) | Self::ForeignState { .. } => None,
            Self::Data(e) => e.hint(),
            Self::Checkpoint(e) => e.hint(),
            Self::Export(e) => e.hint(),
            Self::Hub(e) => e.hint(),
            Self::Config { source, .. } => source.hint(),
            Self::Tokenizer(e) => e.hint(),
            Self::Weights(e) => e.hint(),
            Self::Metric(e) => e.hint(),
            Self::Plan(e) => e.hint(),
            Self::Pool(e) => e.hint(),
            Self::Peers(e) => e.hint(),
        }
    }
}
