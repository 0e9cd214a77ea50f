//! What goes into the state machine of a gang and what comes out.

use std::fmt;
use std::time::Duration;

use muster_proto::run_spec::RanksSpec;
use muster_proto::v1::{FailureKind, Origin, RankReport, rank_event};

/// Moments are times since some fixed moment of the process that drives the machine.
pub type Moment = Duration;

/// The numbers by which a gang is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Fewest ranks that train.
    pub ranks_min: u32,
    /// The first generation starts without the missing ranks after this long without a change.
    pub form_grace: Duration,
    /// A process that starts, or a generation that trains, for this long without a word hangs.
    pub hang_timeout: Duration,
    /// A generation that forms for longer has ranks that never met.
    pub form_timeout: Duration,
    /// How long a member may stay silent after others said that the generation broke, beyond three steps.
    pub lease: Duration,
    /// How long a member that others blame may take to speak for itself.
    pub blame_grace: Duration,
    /// Newcomers within this time enter together.
    pub regroup_debounce: Duration,
    /// How long a run below its minimum waits for ranks.
    pub wait_for_ranks: Duration,
    /// How long ranks may take to save and end.
    pub save_timeout: Duration,
    /// How long ranks may take to end without saving.
    pub stop_timeout: Duration,
    /// Pause before a rank's process is started again, at first; it doubles.
    pub cool_down_min: Duration,
    /// The longest such pause.
    pub cool_down_max: Duration,
    /// A process that lived this long starts its pauses from the beginning.
    pub healthy_after: Duration,
    /// Failures within `failure_window`, without a step between them, after which the run fails.
    pub failures_max: usize,
    /// See `failures_max`.
    pub failure_window: Duration,
    /// Failures for lack of memory or disk after which the run fails.
    pub resource_failures_max: u32,
}

impl Policy {
    /// The policy of a run: its minimum, and a lease as long as its ranks may keep each other waiting. Whoever saves while
    /// another one dies must not be taken for dead too.
    #[must_use]
    pub fn for_run(self, ranks: &RanksSpec) -> Self {
        let ranks_min = ranks.min.unwrap_or(1);
        Self { ranks_min, lease: Duration::from_secs(ranks.patience_s.into()), ..self }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            ranks_min: 1,
            form_grace: Duration::from_secs(10),
            hang_timeout: Duration::from_secs(1_800),
            form_timeout: Duration::from_secs(600),
            lease: Duration::from_secs(30),
            blame_grace: Duration::from_millis(300),
            regroup_debounce: Duration::from_millis(200),
            wait_for_ranks: Duration::from_secs(60),
            save_timeout: Duration::from_secs(600),
            stop_timeout: Duration::from_secs(30),
            cool_down_min: Duration::from_secs(1),
            cool_down_max: Duration::from_secs(60),
            healthy_after: Duration::from_secs(600),
            failures_max: 10,
            failure_window: Duration::from_secs(600),
            resource_failures_max: 2,
        }
    }
}

/// Where a rank's process runs: slots are ordered node by node, and so are ranks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotKey {
    /// The node.
    pub node: String,
    /// Number of the process on its node.
    pub local_rank: u32,
}

impl fmt::Display for SlotKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.local_rank)
    }
}

impl SlotKey {
    /// Name of the slot's process number `incarnation`.
    pub fn member_id(&self, incarnation: u64) -> String {
        format!("{self}#{incarnation}")
    }

    /// The slot and the incarnation that a member's name holds.
    pub fn of_member(id: &str) -> Option<(Self, u64)> {
        let (slot, incarnation) = id.rsplit_once('#')?;
        let (node, local) = slot.rsplit_once('/')?;
        Some((Self { node: node.into(), local_rank: local.parse().ok()? }, incarnation.parse().ok()?))
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exit {
    /// Its exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether the kernel's out-of-memory killer was at work.
    pub out_of_memory: bool,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// A member said something.
    Said {
        /// Its name.
        member: String,
        /// What it said.
        said: rank_event::Event,
    },
    /// A member's process ended.
    Exited {
        /// Its name.
        member: String,
        /// How.
        exit: Exit,
    },
    /// A node could not start a process.
    StartFailed {
        /// Name that it should have had.
        member: String,
        /// Why not.
        error: String,
    },
    /// A session with a node began: these are its processes of this run.
    Reported {
        /// The node.
        node: String,
        /// Its processes.
        ranks: Vec<RankReport>,
    },
    /// The session with a node ended; its processes may well go on.
    Unreachable {
        /// The node.
        node: String,
    },
    /// A node was told to end.
    Leaving {
        /// The node.
        node: String,
        /// Why.
        reason: String,
    },
    /// A node takes part from now on with so many processes.
    NodeAdded {
        /// The node, with a session.
        node: String,
        /// Processes.
        local_ranks: u32,
    },
    /// A node takes no part any more.
    NodeRemoved {
        /// The node.
        node: String,
    },
    /// End the run.
    Stop {
        /// Whether to save a checkpoint first.
        save: Save,
        /// Why.
        reason: String,
        /// What becomes of the run.
        then: AfterStop,
    },
}

/// Whether a checkpoint is written before the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Save {
    /// Yes.
    Yes,
    /// No.
    No,
}

/// What becomes of a run that was told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterStop {
    /// It is over.
    Over,
    /// It goes back to the queue.
    Requeue,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Start a process.
    Start {
        /// Where.
        slot: SlotKey,
        /// Its name.
        member: String,
        /// Processes of the run on that node.
        local_ranks: u32,
        /// Where its weights come from.
        origin: Origin,
    },
    /// Tell all members to form a generation.
    Install {
        /// Its number.
        generation: u64,
        /// Its members in rank order.
        members: Vec<Placed>,
    },
    /// Tell one member again to form the generation that the others are forming.
    InstallAgain {
        /// Number of the generation.
        generation: u64,
        /// The member.
        member: String,
    },
    /// Tell a member that all pause at the next boundary.
    Regroup {
        /// The member.
        member: String,
        /// The generation.
        generation: u64,
    },
    /// Tell a member that its generation lost one, in case it can't see that.
    Abandon {
        /// The member.
        member: String,
        /// The generation.
        generation: u64,
    },
    /// Tell a member to end.
    Stop {
        /// The member.
        member: String,
        /// Whether it saves.
        save: Save,
    },
    /// Kill a process.
    Kill {
        /// The node.
        node: String,
        /// The member.
        member: String,
    },
    /// A generation trains.
    Training {
        /// Its number.
        generation: u64,
        /// Time since the one before broke, if it broke.
        recovered_after: Option<Duration>,
    },
    /// Something that a person who looks at the run should know.
    Note,
    /// The run is over.
    Ended(Outcome),
}

/// An action and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// Why, in words.
    pub reason: String,
}

/// A member of a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Its name.
    pub member: String,
    /// Its node.
    pub node: String,
    /// Where peers find it.
    pub addresses: Vec<String>,
    /// Its compute threads.
    pub threads: u32,
}

/// A failure of a process, as it told it or as its exit shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The class.
    pub kind: FailureKind,
    /// The error with its causes.
    pub error: String,
    /// What to do about it.
    pub hints: Vec<String>,
    /// Exit code that says the same.
    pub exit_code: u32,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done.
    Succeeded {
        /// results.json of rank 0.
        results: String,
    },
    /// It can't go on.
    Failed(Failure),
    /// It was told to end.
    Stopped {
        /// Step of the checkpoint that was written last, if one was.
        saved: Option<u64>,
        /// Why it was told so.
        reason: String,
        /// What becomes of it.
        then: AfterStop,
    },
}

/// What people see of a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GangState {
    /// Processes start and wait for each other.
    Forming,
    /// A generation trains, or is about to go on.
    Training,
    /// Fewer ranks than the minimum are there.
    Waiting,
    /// Processes were told to end.
    Stopping,
    /// All processes are gone.
    Ended,
}
