//! The owner task: nodes, queue, runs and their gangs, and the state on disk. Sessions and services only translate and
//! send [`Input`]s; everything is decided here, one input at a time.
//!
//! The task has a thread of its own, because the disk may keep it waiting. A disk that is full or broken stops no
//! training: what could not be stored is tried again, and new runs are refused with the reason.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_proto::limits::COORDINATOR_INBOX;
use muster_proto::v1::{AgentCommand, AgentEvent, NodeReport};
use tokio::sync::{mpsc, oneshot, watch};

use crate::discovery::{Demand, Found, Standing};
use crate::gang::{Moment, Policy};
use crate::store::{Store, StoreError};

use listed::Listings;
use nodes::Nodes;
use runs::Entry;

pub use request::{LogStream, Refusal, Request, RunStream};

mod listed;
mod metrics;
mod nodes;
mod query;
mod queue;
mod request;
mod runs;
mod schedule;
mod submit;

/// How often changes are written out, shown to those who watch, and tried again.
const TICK: Duration = Duration::from_millis(200);

/// Ticks between two looks at the queue for which there is no other reason.
const SCHEDULE_TICKS: u64 = 5;

/// Ticks between two times that the progress of runs is stored.
const COURSE_TICKS: u64 = 25;

/// What reaches the owner task.
#[derive(Debug)]
pub enum Input {
    /// A session with an agent has begun.
    SessionUp {
        /// Where the agent is.
        address: String,
        /// Its first report.
        report: NodeReport,
        /// Where its commands go.
        commands: mpsc::Sender<AgentCommand>,
        /// The session, or why it is not wanted.
        reply: oneshot::Sender<Result<SessionOpen, String>>,
    },
    /// An agent said something.
    FromAgent {
        /// Number of the session.
        session: u64,
        /// What it said.
        event: AgentEvent,
    },
    /// A session has ended.
    SessionDown {
        /// Its number.
        session: u64,
        /// Why.
        reason: String,
    },
    /// An address can't be reached.
    Unreachable {
        /// The address.
        address: String,
        /// Why not.
        reason: String,
    },
    /// Discovery has dropped an address.
    Forget {
        /// The address.
        address: String,
    },
    /// A way of discovery lists other agents than before.
    Listed {
        /// Number of the way.
        source: usize,
        /// All that it lists.
        found: Found,
    },
    /// Why pods are not there or not ready, by their names: all that is known.
    Explained(BTreeMap<String, String>),
    /// Somebody asks for something.
    Request(Request),
}

/// A session that the owner wants.
#[derive(Debug)]
pub struct SessionOpen {
    /// Its number.
    pub number: u64,
    /// Ready when the owner wants it no more.
    pub closed: oneshot::Receiver<()>,
}

/// What the owner is told at its start.
#[derive(Debug, Clone)]
pub struct OwnerOptions {
    /// The numbers by which gangs are run; the minimum of ranks comes from the run file.
    pub policy: Policy,
    /// Version of Muster; agents of others are refused.
    pub version: String,
    /// How nodes are found.
    pub discovery: Vec<Standing>,
    /// Where it is told what runs need of the cluster.
    pub demand: watch::Sender<Demand>,
    /// Runs of one tenant that have nodes at once.
    pub tenant_limit: Option<u32>,
}

/// The state. See the module.
pub(crate) struct Owner {
    options: OwnerOptions,
    store: Store,
    begun: Instant,
    nodes: Nodes,
    listed: Listings,
    runs: BTreeMap<String, Entry>,
    sessions: u64,
    /// Why the last thing could not be stored; none while the disk is well.
    storage_error: Option<String>,
    schedule_due: bool,
    /// Nodes whose sessions were closed just now.
    closed: Vec<String>,
    ticks: u64,
}

/// Milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Starts the owner on a thread of its own; it ends when all senders of inputs are gone.
///
/// # Errors
/// State that can't be read, or a system that refuses a thread.
pub fn start(
    store: Store,
    options: OwnerOptions,
) -> Result<(mpsc::Sender<Input>, JoinHandle<()>), OwnerError> {
    let mut owner = Owner::new(store, options)?;
    owner.restore()?;
    let (inputs, receiver) = mpsc::channel(COORDINATOR_INBOX);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(OwnerError::Thread)?;
    let run = move || runtime.block_on(owner.run(receiver));
    let thread = std::thread::Builder::new().name("muster-owner".into()).spawn(run);
    Ok((inputs, thread.map_err(OwnerError::Thread)?))
}

/// Why the owner can't start.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// Its state can't be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No thread for it.
    #[error("can't start the coordinator's thread")]
    Thread(#[source] std::io::Error),
}

impl OwnerError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Store(error) => error.hint(),
            Self::Thread(_) => None,
        }
    }
}

impl Owner {
    fn new(store: Store, options: OwnerOptions) -> Result<Self, OwnerError> {
        Ok(Self {
            options,
            store,
            begun: Instant::now(),
            nodes: Nodes::default(),
            listed: Listings::default(),
            runs: BTreeMap::new(),
            sessions: 0,
            storage_error: None,
            schedule_due: true,
            closed: Vec::new(),
            ticks: 0,
        })
    }

    fn now(&self) -> Moment {
        self.begun.elapsed()
    }

    async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let due = self.poll_timeout().saturating_sub(self.now());
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.input(input),
                    None => break,
                },
                () = tokio::time::sleep(due) => self.tick_gangs(),
                _ = tick.tick() => self.tick(),
            }
            if std::mem::take(&mut self.schedule_due) {
                self.schedule();
            }
        }
        self.flush();
    }

    fn poll_timeout(&self) -> Moment {
        let live = self.runs.values().filter_map(|entry| entry.live.as_ref()?.poll_timeout());
        live.min().unwrap_or(self.now() + Duration::from_secs(60))
    }

    fn input(&mut self, input: Input) {
        match input {
            Input::SessionUp { address, report, commands, reply } => {
                let answer = self.session_up(address, report, commands);
                let number = answer.as_ref().ok().map(|open| open.number);
                let told = reply.send(answer).is_ok();
                if let (false, Some(number)) = (told, number) {
                    self.session_down(number, "it ended at once");
                }
            }
            Input::FromAgent { session, event } => self.hear_agent(session, event),
            Input::SessionDown { session, reason } => self.session_down(session, &reason),
            Input::Unreachable { address, reason } => self.nodes.unreachable(&address, &reason),
            Input::Forget { address } => self.nodes.forget(&address),
            Input::Listed { source, found } => self.listed(source, found),
            Input::Explained(why) => self.listed.explain(why),
            Input::Request(request) => self.request(request),
        }
        for node in std::mem::take(&mut self.closed) {
            self.all_runs_on(&node, crate::gang::Event::Unreachable { node: node.clone() });
        }
    }

    fn tick(&mut self) {
        self.ticks += 1;
        if self.ticks.is_multiple_of(COURSE_TICKS) {
            self.runs.values_mut().for_each(Entry::note_course);
        }
        self.flush();
        self.show_progress();
        // Queued runs may have waited long enough for another decision.
        self.schedule_due |= self.ticks.is_multiple_of(SCHEDULE_TICKS);
    }
}
