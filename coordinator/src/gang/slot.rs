//! A slot of a gang: the place of one process, and the process that is there.

use std::time::Duration;

use muster_proto::v1::Origin;

use super::types::{Moment, Policy, Save};

/// The process of a slot.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub id: String,
    pub state: State,
    /// Whether it has weights, or gets them without its peers.
    pub has_weights: bool,
    /// When it was heard last, while it starts.
    pub heard: Moment,
    /// What it was told about its end, and when.
    pub told: Option<(Save, Moment)>,
}

/// What a process is doing.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// Reads data and weights.
    Starting,
    /// Waits for a generation.
    Waiting { step: Option<u64>, addresses: Vec<String>, threads: u32 },
    /// Forms or trains the live generation.
    Active { running: bool, addresses: Vec<String>, threads: u32 },
    /// Said its last word; only its exit is missing.
    Leaving,
}

impl Member {
    pub fn new(id: String, origin: Origin, now: Moment) -> Self {
        let has_weights = origin != Origin::Peers;
        Self { id, state: State::Starting, has_weights, heard: now, told: None }
    }

    pub fn is_active(&self) -> bool {
        matches!(self.state, State::Active { .. })
    }

    pub fn starts(&self) -> bool {
        matches!(self.state, State::Starting)
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Active { running: true, .. })
    }

    /// Step of the weights that a waiting process holds.
    pub fn waits_with(&self) -> Option<u64> {
        match self.state {
            State::Waiting { step, .. } => step,
            _ => None,
        }
    }
}

/// The place of one process.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    /// Processes of the run on this node.
    pub local_ranks: u32,
    pub member: Option<Member>,
    /// When the last process started.
    pub started: Moment,
    /// When the next process may start.
    pub start_at: Moment,
    /// Pause after the last failure.
    pub cool_down: Duration,
    /// Whether there is a session with the node.
    pub reachable: bool,
    /// Whether the node was told to end.
    pub leaving: bool,
    /// Whether the node takes no part any more; the slot goes when its process is gone.
    pub removed: bool,
    /// The highest incarnation that was given up; its process must not come back.
    pub given_up: u64,
}

impl Slot {
    pub fn new(local_ranks: u32, reachable: bool) -> Self {
        Self {
            local_ranks,
            member: None,
            started: Moment::ZERO,
            start_at: Moment::ZERO,
            cool_down: Duration::ZERO,
            reachable,
            leaving: false,
            removed: false,
            given_up: 0,
        }
    }

    /// Whether a process may be started here, now or later.
    pub fn usable(&self) -> bool {
        self.reachable && !self.leaving && !self.removed
    }

    /// Puts off the next process: twice as long as the last time, unless the last process lived long.
    pub fn cool(&mut self, now: Moment, policy: &Policy) -> Duration {
        let lived = now.saturating_sub(self.started);
        let next = match lived >= policy.healthy_after || self.cool_down.is_zero() {
            true => policy.cool_down_min,
            false => (self.cool_down * 2).min(policy.cool_down_max),
        };
        self.cool_down = next;
        self.start_at = now + next;
        next
    }
}

impl Slot {
    /// Forgets the process; should it turn up again, it is killed.
    pub fn give_up(&mut self) {
        let id = self.member.take().map(|member| member.id).unwrap_or_default();
        let incarnation = super::SlotKey::of_member(&id).map_or(0, |(_, incarnation)| incarnation);
        self.given_up = self.given_up.max(incarnation);
    }
}
