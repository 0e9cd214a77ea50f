//! The node agent: starts rank processes, passes on what they are told and what they say, and outlives sessions with
//! the coordinator.
//!
//! One owner task on a thread of its own holds the state; [`Handle`] sends it requests, and a [`Session`] is a pair of
//! bounded queues, whether a gRPC stream or an owner in the same process is at the other end. Invariants:
//!
//! * ranks go on when a session breaks; the next one begins with a report of what each of them does;
//! * a rank dies with its agent (`PR_SET_PDEATHSIG`, and the end of its standard input);
//! * nothing a rank writes or a coordinator sends makes a queue grow without bound.
//!
//! The agent decides nothing about a run: membership is the coordinator's.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use muster_proto::v1::{AgentCommand, AgentEvent, NodeReport, Pod};
use tokio::sync::{mpsc, oneshot};

use crate::topology::HostFacts;

pub use describe::{boot_id, new_incarnation};
pub use server::{AgentService, COORDINATOR_ID};

mod aside;
mod birth;
mod death;
mod describe;
mod farewell;
mod lines;
mod metrics;
mod owner;
mod process;
mod reap;
mod server;
#[cfg(test)]
mod tests;
mod wire;

/// What an agent is and how it starts ranks.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// Name of the node.
    pub node: String,
    /// Changes with every start of the agent.
    pub incarnation: String,
    /// Changes with every boot of the machine.
    pub boot_id: String,
    /// Version of Muster.
    pub version: String,
    /// Instruction set of the kernels.
    pub isa: String,
    /// IP address that ranks listen on.
    pub listen: String,
    /// The program of a rank.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// CPUs and memory of the node.
    pub facts: HostFacts,
    /// The pod that it runs in.
    pub pod: Option<Pod>,
    /// How long ranks may take to leave when the agent is told to end.
    pub leave_timeout: Duration,
    /// A rank that has not said for this long that it can run is frozen, and killed.
    pub frozen_after: Duration,
}

/// Why a session was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// Another coordinator holds the session.
    #[error("node {node} has a session with coordinator {holder}; {wanted} must wait until it ends")]
    Held {
        /// The node.
        node: String,
        /// Who holds it.
        holder: String,
        /// Who asked.
        wanted: String,
    },
    /// The agent is gone.
    #[error("the agent of this node has ended")]
    Ended,
}

/// The one long-lived conversation with a coordinator. Dropping either end ends it; ranks go on.
#[derive(Debug)]
pub struct Session {
    /// Commands of the coordinator.
    pub commands: Commands,
    /// Events for it; the first one is a report of the node.
    pub events: mpsc::Receiver<AgentEvent>,
}

/// The coordinator's side of a session's commands.
#[derive(Debug, Clone)]
pub struct Commands {
    session: u64,
    inbox: mpsc::Sender<Request>,
}

impl Commands {
    /// Hands a command to the agent.
    ///
    /// # Errors
    /// If the agent has ended.
    pub async fn send(&self, command: AgentCommand) -> Result<(), SessionError> {
        let request = Request::Command { session: self.session, command };
        self.inbox.send(request).await.map_err(|_| SessionError::Ended)
    }
}

/// What the owner task is asked.
#[allow(clippy::large_enum_variant, reason = "a short queue, each moved once")]
#[derive(Debug)]
enum Request {
    Session { coordinator: String, reply: oneshot::Sender<Result<Session, SessionError>> },
    Command { session: u64, command: AgentCommand },
    Describe { reply: oneshot::Sender<NodeReport> },
    Metrics { reply: oneshot::Sender<String> },
    Leave { reason: String },
    End,
}

/// A running agent. Dropping it ends the agent and kills its ranks.
#[derive(Debug)]
pub struct Handle {
    inbox: mpsc::Sender<Request>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A way to ask a running agent that does not keep it running.
#[derive(Debug, Clone)]
pub struct Asker {
    inbox: mpsc::Sender<Request>,
}

impl Handle {
    /// Starts an agent on a thread of its own.
    ///
    /// # Errors
    /// If the system refuses a thread, or the event loop can't be made.
    pub fn start(options: AgentOptions) -> std::io::Result<Self> {
        let (inbox, requests) = mpsc::channel(muster_proto::limits::AGENT_INBOX);
        // Ranks die with the thread that started them, so it must be one that lasts as long as the agent.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sender = inbox.clone();
        let run = move || runtime.block_on(owner::Owner::new(options, sender).run(requests));
        let thread = std::thread::Builder::new().name("muster-agent".into()).spawn(run)?;
        Ok(Self { inbox, thread: Some(thread) })
    }

    /// Something that asks this agent.
    pub fn asker(&self) -> Asker {
        Asker { inbox: self.inbox.clone() }
    }

    /// Whether the agent has ended by itself: it was told to leave and its ranks are gone.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(std::thread::JoinHandle::is_finished)
    }
}

impl Asker {
    /// Opens a session; an older one of the same coordinator ends.
    ///
    /// # Errors
    /// If another coordinator has one, or the agent has ended.
    pub async fn session(&self, coordinator: &str) -> Result<Session, SessionError> {
        let (reply, answer) = oneshot::channel();
        let request = Request::Session { coordinator: coordinator.into(), reply };
        self.inbox.send(request).await.map_err(|_| SessionError::Ended)?;
        answer.await.map_err(|_| SessionError::Ended)?
    }

    /// The node and its ranks.
    ///
    /// # Errors
    /// If the agent has ended.
    pub async fn describe(&self) -> Result<NodeReport, SessionError> {
        let (reply, answer) = oneshot::channel();
        self.inbox.send(Request::Describe { reply }).await.map_err(|_| SessionError::Ended)?;
        answer.await.map_err(|_| SessionError::Ended)
    }

    /// What the agent knows, in the text format of Prometheus.
    ///
    /// # Errors
    /// If the agent has ended.
    pub async fn metrics(&self) -> Result<String, SessionError> {
        let (reply, answer) = oneshot::channel();
        self.inbox.send(Request::Metrics { reply }).await.map_err(|_| SessionError::Ended)?;
        answer.await.map_err(|_| SessionError::Ended)
    }

    /// Tells the agent to end once its ranks have left.
    pub async fn leave(&self, reason: &str) {
        // An agent that has ended has left.
        let _ = self.inbox.send(Request::Leave { reason: reason.into() }).await;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A full inbox: ranks are then ended with the process.
        let _ = self.inbox.try_send(Request::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
