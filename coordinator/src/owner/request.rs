//! What people and programs ask the owner, and what they can be told.

use muster_proto::v1;
use tokio::sync::{mpsc, oneshot};

/// Changes of a run.
pub type RunStream = mpsc::Receiver<v1::WatchRunResponse>;
/// Log lines of a run.
pub type LogStream = mpsc::Receiver<v1::LogsResponse>;

/// Why a request is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such run.
    #[error("{0}")]
    NotFound(String),
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The run is in a state in which this can't be done.
    #[error("{0}")]
    State(String),
    /// A bound is reached, or the disk is full.
    #[error("{0}")]
    Exhausted(String),
    /// Something here is broken.
    #[error("{0}")]
    Broken(String),
}

/// Where the answer goes. Who asked may be gone.
pub type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// A request.
#[derive(Debug)]
pub enum Request {
    /// Queue a run, for somebody if it is known who asks.
    Submit(v1::SubmitRequest, String, Reply<v1::Run>),
    /// One run.
    Get(String, Reply<v1::Run>),
    /// Many runs.
    List(v1::ListRunsRequest, Reply<Vec<v1::Run>>),
    /// A run and its changes.
    Watch(String, Reply<RunStream>),
    /// End a run, because somebody asks for it.
    Cancel(String, String, Reply<v1::Run>),
    /// Log lines of a run.
    Logs(v1::LogsRequest, Reply<LogStream>),
    /// What is known, in the text format of Prometheus.
    Metrics(oneshot::Sender<String>),
    /// All nodes, and how they are found.
    Nodes(oneshot::Sender<v1::ListNodesResponse>),
}
