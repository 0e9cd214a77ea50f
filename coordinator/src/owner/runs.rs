//! Runs that have nodes: events of agents go in, commands and stored state come out.

use std::collections::VecDeque;
use std::time::Duration;

use muster_proto::limits::{MAX_PENDING_NOTES, MAX_RUN_LOG_LINES};
use muster_proto::v1::{self, AgentCommand, AgentEvent, NodeReport, RunState, agent_command, agent_event};
use tokio::sync::{mpsc, oneshot};

use super::nodes::{Link, Node, Sent};
use super::{Owner, SessionOpen, wall_ms};
use crate::gang::{AfterStop, Event, Gang, Outcome, Policy, Save};
use crate::run::{Effect, ForRun, Recipe, Run, route};
use crate::secret::random_bytes;
use crate::store::{LogLine, RunRow};

/// A run: what is stored of it, its gang while it has nodes, and who watches.
#[derive(Debug)]
pub(super) struct Entry {
    pub row: RunRow,
    pub spec: muster_proto::run_spec::RanksSpec,
    pub live: Option<Run>,
    /// Whether the row is newer than the disk.
    pub unsaved: bool,
    pub events: Vec<(u64, String)>,
    pub lines: VecDeque<LogLine>,
    pub watchers: Vec<mpsc::Sender<v1::WatchRunResponse>>,
    pub log_watchers: Vec<mpsc::Sender<v1::LogsResponse>>,
    pub notes: VecDeque<String>,
    /// What watchers saw last.
    pub shown: Option<v1::Run>,
    /// Not started again before this moment.
    pub not_before: crate::gang::Moment,
    /// Since when it waits in the queue.
    pub queued_at: crate::gang::Moment,
    /// Step when it was started last.
    pub first_step: u64,
}

impl Entry {
    pub fn new(row: RunRow, spec: muster_proto::run_spec::RanksSpec) -> Self {
        Self {
            row,
            spec,
            live: None,
            unsaved: false,
            events: Vec::new(),
            lines: VecDeque::new(),
            watchers: Vec::new(),
            log_watchers: Vec::new(),
            notes: VecDeque::new(),
            shown: None,
            not_before: crate::gang::Moment::ZERO,
            queued_at: crate::gang::Moment::ZERO,
            first_step: 0,
        }
    }

    pub fn recipe(&self) -> Recipe {
        Recipe {
            id: self.row.id.clone(),
            run_file: self.row.run_file.clone(),
            run_file_path: self.row.run_file_path.clone(),
            overrides: self.row.overrides.clone(),
            ranks: self.row.ranks,
        }
    }

    /// A run's gang with the course that is stored.
    pub fn with_course(&self, run: Run) -> Run {
        let last_recovery = Duration::from_millis(self.row.last_recovery_ms);
        run.with_course(self.row.progress, self.row.recoveries, last_recovery)
    }

    /// Notes how far the run is, to be stored.
    pub fn note_course(&mut self) {
        let Some(live) = &self.live else { return };
        let mut now = v1::Run::default();
        live.describe(&mut now);
        let row = &mut self.row;
        row.progress = now.progress.or(row.progress);
        (row.recoveries, row.last_recovery_ms) = (now.recoveries, now.last_recovery_ms);
        row.generation = now.generation;
        self.unsaved = true;
    }

    /// The run as people see it.
    pub fn message(&self) -> v1::Run {
        let mut message = self.row.to_message();
        if let Some(live) = &self.live {
            live.describe(&mut message);
        }
        message
    }

    fn note(&mut self, text: String) {
        tracing::info!(run = self.row.id, "{text}");
        if self.events.len() < MAX_PENDING_NOTES {
            self.events.push((wall_ms(), text));
        }
    }
}

impl Owner {
    pub(super) fn policy(&self, entry: &Entry) -> Policy {
        self.options.policy.clone().for_run(&entry.spec)
    }

    pub(super) fn session_up(
        &mut self,
        address: String,
        mut report: NodeReport,
        commands: mpsc::Sender<AgentCommand>,
    ) -> Result<SessionOpen, String> {
        self.listed.check(&address, &report)?;
        let current = self.listed.current(&report.node);
        self.nodes.admit(&address, &report, &self.options.version, current)?;
        self.sessions += 1;
        let (number, name) = (self.sessions, report.node.clone());
        tracing::info!("node {name} at {address} is connected");
        let ranks = std::mem::take(&mut report.ranks);
        let (open, closed) = oneshot::channel();
        let session = Some(Link { number, commands, _open: open });
        let node = Node { address, report, session, leaving: None, lost: String::new() };
        if self.nodes.known.insert(name.clone(), node).is_some_and(|old| old.session.is_some()) {
            tracing::info!("{name} was made again; the session with its last pod is over");
            self.all_runs_on(&name, Event::Unreachable { node: name.clone() });
        }
        let here = |entry: &Entry| {
            entry.live.as_ref().is_some_and(|live| live.gang().nodes().contains_key(name.as_str()))
                || entry.live.is_some() && ranks.iter().any(|rank| rank.run_id == entry.row.id)
        };
        let runs: Vec<String> = self.runs.iter().filter(|(_, e)| here(e)).map(|(id, _)| id.clone()).collect();
        let strangers = ranks.iter().filter(|rank| rank.exited.is_none() && !runs.contains(&rank.run_id));
        for stranger in strangers {
            let reason = "no run of this coordinator has it".to_owned();
            tracing::warn!("{} on {name} is killed: {reason}", stranger.member_id);
            let kill = v1::KillRank { member_id: stranger.member_id.clone(), reason };
            let command = AgentCommand { command: Some(agent_command::Command::Kill(kill)) };
            self.send(&name, command);
        }
        for id in runs {
            let ranks = ranks.iter().filter(|rank| rank.run_id == id).cloned().collect();
            self.run_event(&id, Event::Reported { node: name.clone(), ranks });
        }
        self.note_leaving();
        self.schedule_due = true;
        Ok(SessionOpen { number, closed })
    }

    pub(super) fn session_down(&mut self, session: u64, reason: &str) {
        let Some((name, node)) = self.nodes.of_session(session) else { return };
        tracing::warn!("the session with node {name} is over: {reason}");
        node.session = None;
        reason.clone_into(&mut node.lost);
        let name = name.clone();
        self.all_runs_on(&name, Event::Unreachable { node: name.clone() });
    }

    pub(super) fn all_runs_on(&mut self, node: &str, event: Event) {
        let here =
            |entry: &&Entry| entry.live.as_ref().is_some_and(|live| live.gang().nodes().contains_key(node));
        let ids: Vec<String> = self.runs.values().filter(here).map(|entry| entry.row.id.clone()).collect();
        ids.iter().for_each(|id| self.run_event(id, event.clone()));
    }

    pub(super) fn hear_agent(&mut self, session: u64, event: AgentEvent) {
        // Events of a session that was replaced are in the report of the new one.
        let Some((name, node)) = self.nodes.of_session(session) else { return };
        let name = name.clone();
        if let Some(ForRun { run_id, event }) = route(&event) {
            self.take_note(&run_id, &event);
            return self.run_event(&run_id, event);
        }
        match event.event {
            Some(agent_event::Event::Leaving(leaving)) => {
                node.leaving = Some(leaving.reason.clone());
                self.all_runs_on(&name, Event::Leaving { node: name.clone(), reason: leaving.reason });
            }
            Some(agent_event::Event::Log(log)) => self.log(log),
            _ => {}
        }
    }

    /// Events of training that people watch, from the rank that writes them.
    fn take_note(&mut self, run_id: &str, event: &Event) {
        let Event::Said { member, said: v1::rank_event::Event::Note(note) } = event else { return };
        let Some(entry) = self.runs.get_mut(run_id) else { return };
        if entry.live.as_ref().is_some_and(|live| live.rank_of(member) == 0) {
            if entry.notes.len() >= MAX_PENDING_NOTES {
                entry.notes.pop_front();
            }
            entry.notes.push_back(note.clone());
        }
    }

    fn log(&mut self, log: v1::LogLines) {
        let Some(entry) = self.runs.get_mut(&log.run_id) else { return };
        let response = v1::LogsResponse { member_id: log.member_id.clone(), lines: log.lines.clone() };
        // Who reads too slowly is sent away; the lines are stored.
        entry.log_watchers.retain(|watcher| watcher.try_send(response.clone()).is_ok());
        for line in log.lines {
            if entry.lines.len() >= MAX_RUN_LOG_LINES {
                entry.lines.pop_front();
            }
            entry.lines.push_back(LogLine { member: log.member_id.clone(), line });
        }
    }

    pub(super) fn tick_gangs(&mut self) {
        let now = self.now();
        let due = |entry: &&Entry| {
            let at = entry.live.as_ref().and_then(Run::poll_timeout);
            at.is_some_and(|at| at <= now)
        };
        let ids: Vec<String> = self.runs.values().filter(due).map(|entry| entry.row.id.clone()).collect();
        ids.iter().for_each(|id| self.run_event(id, Event::Tick));
    }

    /// Gives an event to a run's gang and carries out what it decides.
    pub(super) fn run_event(&mut self, id: &str, event: Event) {
        let now = self.now();
        let Some(entry) = self.runs.get_mut(id) else { return };
        let Some(live) = &mut entry.live else { return };
        let effects = live.handle(now, event);
        self.carry_out(id, effects);
        self.show(id);
    }

    fn carry_out(&mut self, id: &str, effects: Vec<Effect>) {
        let numbered = effects.iter().filter_map(|effect| match effect {
            Effect::Numbered { incarnation } => Some(*incarnation),
            _ => None,
        });
        if let (Some(most), Some(entry)) = (numbered.max(), self.runs.get_mut(id)) {
            entry.row.incarnation = entry.row.incarnation.max(most);
            self.save_row(id);
        }
        for effect in effects {
            match effect {
                Effect::Numbered { .. } => {}
                Effect::Formed { generation, members, reason } => {
                    // On disk before anybody hears of it: numbers must never be used twice.
                    let stored = self.store.add_generation(id, generation, &members, &reason, wall_ms());
                    self.stored(stored);
                }
                Effect::Send { node, command } => self.send(&node, command),
                Effect::Note(text) => {
                    if let Some(entry) = self.runs.get_mut(id) {
                        entry.note(text);
                    }
                }
                Effect::Ended(outcome) => self.ended(id, outcome),
            }
        }
    }

    /// Sends a command. Without a session it is lost: the node's next report settles what it was for.
    fn send(&mut self, node: &str, command: AgentCommand) {
        match self.nodes.send(node, command) {
            Sent::Yes => {}
            Sent::NoSession => tracing::debug!("node {node} has no session"),
            // The gangs are told when this event is dealt with.
            Sent::Closed => self.closed.push(node.to_owned()),
        }
    }

    fn ended(&mut self, id: &str, outcome: Outcome) {
        let now = self.now();
        let Some(entry) = self.runs.get_mut(id) else { return };
        entry.note_course();
        entry.live = None;
        entry.row.nodes.clear();
        entry.end(outcome, now);
        let (state, reason) = (entry.row.state, entry.row.reason.clone());
        entry.note(format!(
            "{}: {reason}",
            state.as_str_name().trim_start_matches("RUN_STATE_").to_lowercase()
        ));
        self.save_row(id);
        self.schedule_due = true;
    }

    /// Starts a run on nodes.
    pub(super) fn begin(&mut self, id: &str, nodes: Vec<(String, u32)>) {
        let Some(entry) = self.runs.get_mut(id) else { return };
        let ranks: u32 = nodes.iter().map(|(_, ranks)| ranks).sum();
        let origin = match (entry.row.requeues, entry.row.resume) {
            (0, true) => v1::Origin::Resume,
            (0, false) => v1::Origin::Fresh,
            _ => v1::Origin::ResumeOrFresh,
        };
        entry.row.ranks = ranks;
        entry.row.nodes.clone_from(&nodes);
        entry.row.state = RunState::Forming;
        entry.row.started_ms = if entry.row.started_ms == 0 { wall_ms() } else { entry.row.started_ms };
        entry.first_step = entry.row.progress.map_or(0, |progress| progress.step);
        let names: Vec<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
        entry.note(format!("{ranks} ranks start on {}", names.join(", ")));
        let Some(entry) = self.runs.get(id) else { return };
        let past = self.store.past(&entry.row);
        let mut past = self.stored(past).unwrap_or_default();
        past.members.clear();
        let Some(entry) = self.runs.get(id) else { return };
        let gang = Gang::new(self.policy(entry), origin).with_past(&past);
        let recipe = entry.recipe();
        let Some(entry) = self.runs.get_mut(id) else { return };
        let run = Run::new(recipe, gang, random_bytes::<32>);
        entry.live = Some(entry.with_course(run));
        self.save_row(id);
        for (node, local_ranks) in nodes {
            self.run_event(id, Event::NodeAdded { node, local_ranks });
        }
    }

    /// Tells a run that has nodes to end.
    pub(super) fn stop(&mut self, id: &str, reason: &str) {
        if let Some(entry) = self.runs.get_mut(id) {
            entry.row.state = RunState::Stopping;
            self.save_row(id);
        }
        let stop = Event::Stop { save: Save::Yes, reason: reason.into(), then: AfterStop::Over };
        self.run_event(id, stop);
    }

    /// Stores the row of a run; if that fails, it is tried again with the next tick.
    pub(super) fn save_row(&mut self, id: &str) {
        let Some(entry) = self.runs.get(id) else { return };
        let stored = self.store.update_run(&entry.row);
        let failed = self.stored(stored).is_none();
        if let Some(entry) = self.runs.get_mut(id) {
            entry.unsaved = failed;
        }
    }

    /// Notes whether the disk is well.
    pub(super) fn stored<T>(&mut self, result: Result<T, crate::store::StoreError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if self.storage_error.is_none() {
                    tracing::error!("{error}; runs go on, new ones are refused until it is mended");
                }
                self.storage_error = Some(error.to_string());
                None
            }
        }
    }

    /// Writes out what is newer than the disk.
    pub(super) fn flush(&mut self) {
        let dirty = |entry: &&Entry| entry.unsaved || !entry.events.is_empty() || !entry.lines.is_empty();
        let ids: Vec<String> = self.runs.values().filter(dirty).map(|entry| entry.row.id.clone()).collect();
        let mut well = true;
        for id in ids {
            let Some(entry) = self.runs.get_mut(&id) else { continue };
            let result = self.store.add_lines(&id, &entry.events, entry.lines.make_contiguous());
            let unsaved = entry.unsaved;
            well &= self.stored(result).is_some();
            if let Some(entry) = self.runs.get_mut(&id).filter(|_| well) {
                entry.events.clear();
                entry.lines.clear();
            }
            if unsaved {
                self.save_row(&id);
                well &= self.runs.get(&id).is_some_and(|entry| !entry.unsaved);
            }
        }
        if well && self.storage_error.take().is_some() {
            tracing::info!("the state can be written again");
        }
    }
}
