//! Membership of one run: which processes exist, which of them form the live generation, and what happens when one
//! comes, goes, breaks or is silent.
//!
//! [`Gang`] is a pure state machine: [`Gang::handle`] takes a moment and an event and returns decisions, each with
//! its reason. Invariants:
//!
//! * at most one generation is live, and generations only grow;
//! * a generation is never formed below the minimum of ranks, nor without a member that has weights;
//! * a member of the live generation counts as there until it says otherwise, exits, or is given up and killed: a
//!   lost session with its node, or a restart of the coordinator, changes nothing.
//!
//! Nothing here knows sockets, clocks, secrets or the queue. Weights never pass through: ranks hand them to each other.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_proto::v1::Origin;

use slot::{Member, Slot, State};
pub use types::{
    Action, AfterStop, Decision, Event, Exit, Failure, GangState, Moment, Outcome, Placed, Policy, Save,
    SlotKey,
};

mod apply;
mod decide;
mod ending;
mod failure;
mod live;
mod report;
#[cfg(test)]
mod sim;
mod slot;
#[cfg(test)]
mod tests;
mod types;

/// The generation that forms or trains.
#[derive(Debug, Clone)]
struct Live {
    generation: u64,
    /// Names in rank order.
    members: Vec<String>,
    formed_at: Moment,
    /// When a member was heard last.
    heard: Moment,
    /// Taken over from an earlier coordinator: its key is not known here.
    restored: bool,
    /// When the first sign came that it is over.
    broken_since: Option<Moment>,
    /// When the first member paused.
    paused_since: Option<Moment>,
    /// Since when another membership is wanted.
    regroup_wanted: Option<Moment>,
    /// When the members were last asked to pause.
    regroup_sent: Option<Moment>,
    /// Who was blamed, by how many, since when.
    blamed: BTreeMap<String, (u32, Moment)>,
    /// Whether a step was done.
    progressed: bool,
    /// Whether a member has finished.
    finishing: bool,
}

/// How far the run as a whole is.
#[derive(Debug, Clone)]
enum Phase {
    Open,
    Ending { outcome: Outcome, save: Save, since: Moment },
    Ended,
}

/// What an earlier coordinator left of a gang.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// The last generation.
    pub generation: u64,
    /// Its members, in rank order; empty if none was formed, or it is known to be over.
    pub members: Vec<String>,
    /// Number of the last process that was started.
    pub incarnation: u64,
}

/// The membership of one run. See the module.
#[derive(Debug)]
pub struct Gang {
    policy: Policy,
    slots: BTreeMap<SlotKey, Slot>,
    /// Where processes get weights that can't get them from peers.
    origin: Origin,
    now: Moment,
    incarnation: u64,
    generation: u64,
    live: Option<Live>,
    phase: Phase,
    /// Whether the processes that exist have been in a generation together.
    formed: bool,
    step: u64,
    step_time: Duration,
    failures: VecDeque<Moment>,
    resource_failures: u32,
    /// Generations in a row that broke before a step.
    idle_breaks: u32,
    changed_at: Moment,
    below_since: Option<Moment>,
    broke_at: Option<Moment>,
    saved: Option<u64>,
    out: Vec<Decision>,
}

impl Gang {
    /// A gang without processes. Nodes are added by [`Event::NodeAdded`]; processes take their weights from `origin`
    /// until there are peers.
    pub fn new(policy: Policy, origin: Origin) -> Self {
        Self {
            policy,
            slots: BTreeMap::new(),
            origin,
            now: Moment::ZERO,
            incarnation: 0,
            generation: 0,
            live: None,
            phase: Phase::Open,
            formed: false,
            step: 0,
            step_time: Duration::ZERO,
            failures: VecDeque::new(),
            resource_failures: 0,
            idle_breaks: 0,
            changed_at: Moment::ZERO,
            below_since: None,
            broke_at: None,
            saved: None,
            out: Vec::new(),
        }
    }

    /// A gang of a run that had processes and generations before: their numbers are not used again.
    #[must_use]
    pub fn with_past(mut self, past: &Past) -> Self {
        (self.generation, self.incarnation) = (past.generation, past.incarnation);
        self
    }

    /// The gang of an earlier coordinator, whose last generation is taken to go on until its nodes report.
    pub fn restore(mut self, now: Moment, nodes: &[(String, u32)], past: &Past) -> Self {
        self = self.with_past(past);
        self.changed_at = now;
        for (node, local_ranks) in nodes {
            for local_rank in 0..*local_ranks {
                let key = SlotKey { node: node.clone(), local_rank };
                self.slots.insert(key, Slot::new(*local_ranks, false));
            }
        }
        for id in &past.members {
            let slot = SlotKey::of_member(id).and_then(|(key, _)| self.slots.get_mut(&key));
            let Some(slot) = slot else { continue };
            let mut member = Member::new(id.clone(), Origin::ResumeOrFresh, now);
            member.state = State::Active { running: true, addresses: Vec::new(), threads: 0 };
            slot.member = Some(member);
        }
        if past.generation > 0 {
            // What was written since then is the better start.
            self.origin = Origin::ResumeOrFresh;
        }
        if !past.members.is_empty() {
            self.formed = true;
            let live = Live::new(past.generation, past.members.clone(), now);
            self.live = Some(Live { restored: true, progressed: true, ..live });
        }
        self
    }

    /// Takes note of an event and decides what follows from it.
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Decision> {
        self.now = now;
        self.apply(now, event);
        self.settle(now);
        std::mem::take(&mut self.out)
    }

    /// When [`Event::Tick`] is due, if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Moment> {
        if matches!(self.phase, Phase::Ended) {
            return None;
        }
        // What is past and was not acted on waits for something else than time.
        self.deadlines().filter(|&at| at > self.now).min()
    }

    /// What people see.
    pub fn state(&self) -> GangState {
        match self.phase {
            Phase::Ended => GangState::Ended,
            Phase::Ending { .. } => GangState::Stopping,
            Phase::Open if self.live.is_some() => GangState::Training,
            Phase::Open if self.formed => GangState::Waiting,
            Phase::Open => GangState::Forming,
        }
    }

    /// The live generation and its members in rank order.
    pub fn generation(&self) -> Option<(u64, &[String])> {
        self.live.as_ref().map(|live| (live.generation, live.members.as_slice()))
    }

    /// The last generation that was formed.
    pub fn last_generation(&self) -> u64 {
        self.generation
    }

    /// Every process with a word on what it does, node by node.
    pub fn members(&self) -> impl Iterator<Item = (&SlotKey, &str, &'static str)> {
        self.slots.iter().filter_map(|(key, slot)| {
            let member = slot.member.as_ref()?;
            let word = match &member.state {
                _ if !slot.reachable => "out of sight",
                State::Starting => "reading data",
                State::Waiting { .. } => "waiting",
                State::Active { running: false, .. } => "joining",
                State::Active { running: true, .. } => "training",
                State::Leaving => "ending",
            };
            Some((key, member.id.as_str(), word))
        })
    }

    /// Nodes that take part, with their numbers of processes.
    pub fn nodes(&self) -> BTreeMap<&str, u32> {
        let slots = self.slots.iter().filter(|(_, slot)| !slot.removed);
        slots.map(|(key, slot)| (key.node.as_str(), slot.local_ranks)).collect()
    }

    /// Nodes that are out of sight and have no process that could come back.
    pub fn lost_nodes(&self) -> Vec<String> {
        let lost = |node: &str| {
            let mut slots = self.slots.iter().filter(|(key, _)| key.node == node);
            slots.all(|(_, slot)| !slot.reachable && slot.member.is_none())
        };
        self.nodes().into_keys().filter(|node| lost(node)).map(str::to_owned).collect()
    }

    /// In words, what a gang that does not train waits for.
    pub fn waits_for(&self) -> String {
        let count = |test: fn(&Slot) -> bool| self.slots.values().filter(|slot| test(slot)).count();
        let all = count(|slot| !slot.leaving && !slot.removed);
        let waiting = count(|slot| slot.member.as_ref().is_some_and(Member::is_waiting));
        let starting =
            count(|slot| slot.member.as_ref().is_some_and(|member| matches!(member.state, State::Starting)));
        let idle = count(|slot| slot.member.is_none() && slot.usable());
        let lost = count(|slot| !slot.reachable);
        let mut text = format!("{waiting} of {all} ranks are ready");
        for (count, what) in [
            (starting, "still reading"),
            (idle, "to be started again soon"),
            (lost, "on nodes without a session"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        let min = self.policy.ranks_min;
        if waiting < min as usize { text + &format!("; at least {min} are needed") } else { text }
    }

    fn decide(&mut self, action: Action, reason: impl Into<String>) {
        self.out.push(Decision { action, reason: reason.into() });
    }

    /// The slot whose present process has this name.
    fn slot_of(&mut self, member: &str) -> Option<(SlotKey, &mut Slot)> {
        let (key, _) = SlotKey::of_member(member)?;
        let slot = self.slots.get_mut(&key)?;
        slot.member.as_ref().is_some_and(|present| present.id == member).then_some((key, slot))
    }

    fn members_iter(&self) -> impl Iterator<Item = (&SlotKey, &Slot, &Member)> + Clone {
        self.slots.iter().filter_map(|(key, slot)| Some((key, slot, slot.member.as_ref()?)))
    }
}

impl Live {
    fn new(generation: u64, members: Vec<String>, now: Moment) -> Self {
        Self {
            generation,
            members,
            formed_at: now,
            heard: now,
            restored: false,
            broken_since: None,
            paused_since: None,
            regroup_wanted: None,
            regroup_sent: None,
            blamed: BTreeMap::new(),
            progressed: false,
            finishing: false,
        }
    }
}
