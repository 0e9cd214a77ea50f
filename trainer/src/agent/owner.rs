//! The owner task: all ranks of the node, and the session with the coordinator if there is one.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use muster_proto::limits::{AGENT_INBOX, ENDED_RANKS_KEPT, MAX_RANKS_PER_NODE, SESSION_QUEUE};
use muster_proto::v1::{
    AgentCommand, AgentEvent, Failed, FailureKind, FromRank, Leaving, LogLines, NodeReport, Progress,
    RankCommand, RankEvent, RankExited, RankReport, Start, StartFailed, StartRank, agent_command,
    agent_event, rank_command, rank_event,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::aside::Aside;
use super::farewell::{Known, farewell};
use super::process::{self, FromProcess, Process};
use super::{AgentOptions, Commands, Request, Session, SessionError, describe, metrics, reap};
use crate::topology::split_cpus;

/// How long a leaving agent waits for a coordinator that is away.
const COORDINATOR_PATIENCE: Duration = Duration::from_secs(3);

/// How often orphans and frozen ranks are looked for.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Rank {
    run_id: String,
    process: Option<Process>,
    last: Option<RankEvent>,
    progress: Option<Progress>,
    installed: u64,
    threads: u32,
    /// When it said last that it can run; none before the first time.
    alive: Option<Instant>,
    exited: Option<RankExited>,
}

#[derive(Debug)]
struct Open {
    number: u64,
    coordinator: String,
    events: mpsc::Sender<AgentEvent>,
    dropped: u64,
}

/// The state of an agent. See the module.
pub(super) struct Owner {
    options: AgentOptions,
    ranks: BTreeMap<String, Rank>,
    /// Names of ended ranks, oldest first.
    ended: VecDeque<String>,
    session: Option<Open>,
    sessions: u64,
    inbox: mpsc::Sender<Request>,
    leaving: Option<(String, Instant)>,
    aside: Aside,
    /// When frozen ranks were looked for last.
    looked: Instant,
    /// Since when no coordinator is there; looked at now and then.
    alone_since: Option<Instant>,
    /// Ranks were told to stop by the agent itself.
    said_farewell: bool,
}

impl Owner {
    pub fn new(options: AgentOptions, inbox: mpsc::Sender<Request>) -> Self {
        Self {
            options,
            ranks: BTreeMap::new(),
            ended: VecDeque::new(),
            session: None,
            sessions: 0,
            inbox,
            leaving: None,
            aside: Aside::new(),
            looked: Instant::now(),
            alone_since: None,
            said_farewell: false,
        }
    }

    /// Serves until it is told to end, or has left.
    pub async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let (to_me, mut from_ranks) = mpsc::channel::<(String, FromProcess)>(AGENT_INBOX);
        let mut tick = tokio::time::interval(LOOK_INTERVAL);
        let is_init = std::process::id() == 1;
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    None | Some(Request::End) => break,
                    Some(request) => self.request(request, &to_me),
                },
                Some((member, from)) = from_ranks.recv() => self.hear_rank(&member, from),
                _ = tick.tick() => {
                    if is_init {
                        self.reap();
                    }
                    self.kill_frozen(Instant::now());
                    self.leave_alone();
                }
            }
            if self.has_left() {
                break;
            }
        }
        self.kill_all(&mut from_ranks).await;
    }

    /// Ends what is still there and waits until it is gone.
    async fn kill_all(&mut self, from_ranks: &mut mpsc::Receiver<(String, FromProcess)>) {
        self.ranks.values().filter_map(|rank| rank.process.as_ref()).for_each(Process::kill);
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.ranks.values().any(|rank| rank.process.is_some()) {
            let Ok(Some((member, from))) = tokio::time::timeout_at(deadline, from_ranks.recv()).await else {
                return;
            };
            self.hear_rank(&member, from);
        }
    }

    fn has_left(&self) -> bool {
        let Some((_, deadline)) = &self.leaving else { return false };
        let alive = self.ranks.values().any(|rank| rank.process.is_some());
        !alive || Instant::now() >= *deadline
    }

    /// Tells ranks to save and stop if the agent has to end and no coordinator is there to do so.
    fn leave_alone(&mut self) {
        let is_there = self.session.as_ref().is_some_and(|open| !open.events.is_closed());
        self.alone_since = if is_there { None } else { self.alone_since.or(Some(Instant::now())) };
        let Some((reason, _)) = &self.leaving else { return };
        let is_alone = self.alone_since.is_some_and(|since| since.elapsed() >= COORDINATOR_PATIENCE);
        if self.said_farewell || !is_alone {
            return;
        }
        self.said_farewell = true;
        let reason = format!("{reason}, and no coordinator is there");
        let alive = self.ranks.iter().filter(|(_, rank)| rank.process.is_some());
        let known: Vec<Known<'_>> = alive
            .map(|(member, rank)| Known { member, run: &rank.run_id, last: rank.last.as_ref() })
            .collect();
        for (member, stop) in farewell(&known, &reason) {
            tracing::info!("{member} is told to stop{}: {reason}", if stop.save { " and save" } else { "" });
            let process = self.ranks.get(&member).and_then(|rank| rank.process.as_ref());
            let command = RankCommand { command: Some(rank_command::Command::Stop(stop)) };
            if process.is_some_and(|process| process.commands.try_send(command).is_err()) {
                tracing::warn!("{member} takes no commands");
            }
        }
    }

    fn reap(&self) {
        let ours = self.ranks.values().filter_map(|rank| Some(rank.process.as_ref()?.pid));
        let count = reap::reap_orphans(&ours.collect::<HashSet<u32>>());
        if count > 0 {
            tracing::debug!("collected {count} orphans");
        }
    }

    /// Kills ranks that can't run, e.g. stopped ones: their peers wait for them otherwise. Not if it was this process
    /// that could not run.
    fn kill_frozen(&mut self, now: Instant) {
        let was_away = now.saturating_duration_since(self.looked) > 3 * LOOK_INTERVAL;
        self.looked = now;
        for (id, rank) in &mut self.ranks {
            let (Some(alive), Some(process)) = (rank.alive, &rank.process) else { continue };
            if was_away {
                rank.alive = Some(now);
                continue;
            }
            let silent = now.saturating_duration_since(alive);
            if silent >= self.options.frozen_after {
                tracing::warn!("killing {id}: it could not run for {:.0} s", silent.as_secs_f64());
                process.kill();
                rank.alive = None;
            }
        }
    }

    fn request(&mut self, request: Request, to_me: &mpsc::Sender<(String, FromProcess)>) {
        match request {
            Request::Session { coordinator, reply } => {
                let session = self.open(coordinator);
                // Who asked may be gone; its session then ends with the next event.
                let _ = reply.send(session);
            }
            Request::Describe { reply } => {
                let _ = reply.send(self.report());
            }
            Request::Metrics { reply } => {
                let ranks = self.ranks.iter().filter(|(_, rank)| rank.process.is_some());
                let ranks =
                    ranks.map(|(id, rank)| (id.as_str(), rank.run_id.as_str(), rank.progress.as_ref()));
                let connected = self.session.as_ref().is_some_and(|open| !open.events.is_closed());
                let _ = reply.send(metrics::text(&self.options.node, connected, ranks));
            }
            Request::Leave { reason } => self.leave(reason),
            Request::Command { session, command } => {
                if self.session.as_ref().is_some_and(|open| open.number == session) {
                    self.command(command, to_me);
                }
            }
            Request::End => {}
        }
    }

    fn open(&mut self, coordinator: String) -> Result<Session, SessionError> {
        if let Some(open) = self.session.as_ref().filter(|open| !open.events.is_closed())
            && open.coordinator != coordinator
        {
            return Err(SessionError::Held {
                node: self.options.node.clone(),
                holder: open.coordinator.clone(),
                wanted: coordinator,
            });
        }
        let (events, receiver) = mpsc::channel(SESSION_QUEUE);
        self.sessions += 1;
        let number = self.sessions;
        tracing::info!("session {number} with coordinator {coordinator}");
        self.session = Some(Open { number, coordinator, events, dropped: 0 });
        self.emit(agent_event::Event::Report(self.report()));
        if let Some((reason, _)) = &self.leaving {
            self.emit(agent_event::Event::Leaving(Leaving { reason: reason.clone() }));
        }
        Ok(Session { commands: Commands { session: number, inbox: self.inbox.clone() }, events: receiver })
    }

    fn leave(&mut self, reason: String) {
        if self.leaving.is_none() {
            tracing::info!("leaving: {reason}");
            self.leaving = Some((reason.clone(), Instant::now() + self.options.leave_timeout));
            self.emit(agent_event::Event::Leaving(Leaving { reason }));
        }
    }

    fn report(&self) -> NodeReport {
        let ranks = self.ranks.iter().map(|(member, rank)| RankReport {
            run_id: rank.run_id.clone(),
            member_id: member.clone(),
            last: rank.last.clone(),
            installed: rank.installed,
            threads: rank.threads,
            exited: rank.exited.clone(),
        });
        NodeReport { ranks: ranks.collect(), ..describe::node_report(&self.options) }
    }

    /// Passes an event on. Without a session the state of ranks is kept for the next one, and the rest is lost.
    fn emit(&mut self, event: agent_event::Event) {
        let Some(open) = &mut self.session else { return };
        let may_be_lost = match &event {
            agent_event::Event::Log(_) => true,
            agent_event::Event::FromRank(from) => {
                let event = from.event.as_ref().and_then(|event| event.event.as_ref());
                matches!(event, Some(rank_event::Event::Progress(_) | rank_event::Event::Note(_)))
            }
            _ => false,
        };
        match open.events.try_send(AgentEvent { event: Some(event) }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) if may_be_lost => open.dropped += 1,
            Err(error) => {
                let (number, dropped) = (open.number, open.dropped);
                tracing::info!("session {number} is over: {error}; {dropped} messages were dropped before");
                self.session = None;
            }
        }
    }

    fn command(&mut self, command: AgentCommand, to_me: &mpsc::Sender<(String, FromProcess)>) {
        use agent_command::Command;
        match command.command {
            Some(Command::Start(start)) => self.start(start, to_me),
            Some(Command::ToRank(to)) => {
                let Some(command) = to.command else { return };
                self.tell_rank(&to.member_id, command);
            }
            Some(Command::Kill(kill)) => {
                if let Some(process) = self.ranks.get(&kill.member_id).and_then(|rank| rank.process.as_ref())
                {
                    tracing::warn!("killing {}: {}", kill.member_id, kill.reason);
                    process.kill();
                }
            }
            // From a newer coordinator; versions are compared before a session begins.
            None => tracing::warn!("a command of an unknown kind is ignored"),
        }
    }

    fn tell_rank(&mut self, member: &str, command: RankCommand) {
        let Some(rank) = self.ranks.get_mut(member) else { return };
        let Some(process) = &rank.process else { return };
        if let Some(rank_command::Command::Install(install)) = &command.command {
            rank.installed = install.generation;
        }
        if process.commands.try_send(command).is_err() {
            tracing::warn!("{member} takes no commands any more; killing it");
            process.kill();
        }
    }

    fn start(&mut self, start: StartRank, to_me: &mpsc::Sender<(String, FromProcess)>) {
        let world = start.ranks as usize;
        let Some(start) = start.start else { return };
        let (run_id, member_id) = (start.run_id.clone(), start.member_id.clone());
        match self.try_start(start, world, to_me) {
            Ok(rank) => {
                self.ended.retain(|ended| *ended != member_id);
                self.ranks.insert(member_id, rank);
            }
            Err(error) => {
                tracing::warn!("can't start {member_id}: {error}");
                self.emit(agent_event::Event::StartFailed(StartFailed { run_id, member_id, error }));
            }
        }
    }

    fn try_start(
        &mut self,
        mut start: Start,
        world: usize,
        to_me: &mpsc::Sender<(String, FromProcess)>,
    ) -> Result<Rank, String> {
        let alive = self.ranks.values().filter(|rank| rank.process.is_some()).count();
        if alive >= MAX_RANKS_PER_NODE {
            return Err(format!("{alive} ranks run here; at most {MAX_RANKS_PER_NODE} may"));
        }
        // Names are new within a run; one of an earlier run that has ended makes room.
        let known = self.ranks.get(&start.member_id);
        let is_taken = known.is_some_and(|rank| rank.process.is_some() || rank.run_id == start.run_id);
        if start.member_id.is_empty() || is_taken {
            return Err(format!("there is, or was, a rank with the name {:?}", start.member_id));
        }
        if let Some((reason, _)) = &self.leaving {
            return Err(format!("this node is leaving: {reason}"));
        }
        if start.listen.is_empty() {
            start.listen.clone_from(&self.options.listen);
        }
        start.node.clone_from(&self.options.node);
        if alive == 0
            && let Some(facts) = self.aside.news()
        {
            self.options.facts = facts;
        }
        if start.cpus.is_empty() {
            let split = split_cpus(&self.options.facts, start.local_ranks as usize, world);
            let split = split.map_err(|error| match error.hint() {
                Some(hint) => format!("{error}; {hint}"),
                None => error.to_string(),
            })?;
            self.aside.keep_to(&split.spare);
            let share = split.ranks.into_iter().nth(start.local_rank as usize);
            (start.cpus, start.spare_cpus) = share.map(|share| (share.cpus, share.spare)).unwrap_or_default();
        }
        let cpus = self.aside.birthplace(&start.cpus);
        let process = process::start(&self.options, (&start.member_id, cpus), to_me.clone())
            .map_err(|error| format!("{}: {error}", self.options.program.display()))?;
        let rank = Rank {
            run_id: start.run_id.clone(),
            process: None,
            last: None,
            progress: None,
            installed: 0,
            threads: 0,
            alive: None,
            exited: None,
        };
        let command = RankCommand { command: Some(rank_command::Command::Start(start)) };
        process.commands.try_send(command).map_err(|error| error.to_string())?;
        Ok(Rank { process: Some(process), ..rank })
    }

    fn hear_rank(&mut self, member: &str, from: FromProcess) {
        let Some(rank) = self.ranks.get_mut(member) else { return };
        let (run_id, member_id) = (rank.run_id.clone(), member.to_owned());
        match from {
            FromProcess::Event(event) => {
                match &event.event {
                    Some(rank_event::Event::Alive(_)) => {
                        rank.alive = Some(Instant::now());
                        return;
                    }
                    Some(rank_event::Event::Progress(progress)) => rank.progress = Some(*progress),
                    Some(rank_event::Event::Note(_)) => {}
                    Some(rank_event::Event::Ready(ready)) => {
                        rank.threads = ready.threads;
                        rank.last = Some(event.clone());
                    }
                    Some(_) => rank.last = Some(event.clone()),
                    None => return,
                }
                self.emit(agent_event::Event::FromRank(FromRank { run_id, member_id, event: Some(event) }));
            }
            FromProcess::Garbage(error) => {
                if let Some(process) = &rank.process {
                    process.kill();
                }
                let kind = FailureKind::Other as i32;
                let failed = Failed { kind, error, hints: Vec::new(), exit_code: 1 };
                let event = RankEvent { event: Some(rank_event::Event::Failed(failed)) };
                rank.last = Some(event.clone());
                self.emit(agent_event::Event::FromRank(FromRank { run_id, member_id, event: Some(event) }));
            }
            FromProcess::Lines(lines) => {
                lines
                    .iter()
                    .for_each(|line| tracing::debug!(target: "muster_trainer::rank", "{member}: {line}"));
                self.emit(agent_event::Event::Log(LogLines { run_id, member_id, lines }));
            }
            FromProcess::Exited(exited) => {
                let exited = RankExited { run_id, member_id, ..exited };
                rank.process = None;
                rank.exited = Some(exited.clone());
                self.ended.push_back(member.to_owned());
                if self.ended.len() > ENDED_RANKS_KEPT
                    && let Some(oldest) = self.ended.pop_front()
                {
                    self.ranks.remove(&oldest);
                }
                self.emit(agent_event::Event::Exited(exited));
            }
        }
    }
}
