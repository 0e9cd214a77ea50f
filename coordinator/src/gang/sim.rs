//! Simulated ranks under random faults: crashes, hangs, broken sessions, late and repeated events, leaving nodes. What
//! must hold is checked at every decision; after the faults stop, every run must end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use muster_proto::v1::{self, Origin, RankEvent, RankReport, rank_event::Event as Said};

use super::*;

const STEPS: u64 = 150;
const STEP: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, PartialEq)]
enum Doing {
    Starting,
    Waiting,
    Forming(u64),
    Training(u64),
    Gone,
}

#[derive(Debug, Clone)]
struct Rank {
    node: String,
    doing: Doing,
    hung: bool,
    step: Option<u64>,
    installed: u64,
    last: Option<Said>,
    exit: Option<Exit>,
}

#[derive(Debug, Clone)]
enum Ev {
    Gang(Event),
    Command(String, Command),
    Step(u64),
    Detect(u64),
    Fault,
    Session(String),
    Tick,
}

#[derive(Debug, Clone)]
enum Command {
    Install(u64),
    Regroup(u64),
    Abandon(u64),
    Stop(Save),
}

#[derive(Debug, Default)]
struct Team {
    members: Vec<String>,
    pause: bool,
    stop: Option<Save>,
    step: u64,
    over: bool,
}

struct Sim {
    gang: Gang,
    now: Moment,
    queue: BinaryHeap<Reverse<(Moment, u64)>>,
    events: BTreeMap<u64, Ev>,
    seq: u64,
    ranks: BTreeMap<String, Rank>,
    sessions: BTreeMap<String, bool>,
    teams: BTreeMap<u64, Team>,
    checkpoint: u64,
    faults_until: Moment,
    random: u64,
    outcome: Option<Outcome>,
    min: u32,
    trace: Vec<String>,
    best: u64,
    tick_at: Moment,
}

impl Sim {
    fn new(seed: u64, min: u32) -> Self {
        let policy = Policy {
            ranks_min: min,
            failures_max: 1_000,
            hang_timeout: Duration::from_secs(300),
            ..Policy::default()
        };
        let mut sim = Self {
            gang: Gang::new(policy, Origin::Fresh),
            now: Moment::from_secs(1),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            seq: 0,
            ranks: BTreeMap::new(),
            sessions: BTreeMap::new(),
            teams: BTreeMap::new(),
            checkpoint: 0,
            faults_until: Moment::from_secs(60),
            random: seed | 1,
            outcome: None,
            min,
            trace: Vec::new(),
            best: 0,
            tick_at: Moment::ZERO,
        };
        for node in ["a", "b"] {
            sim.sessions.insert(node.into(), true);
            sim.after(0, Ev::Gang(Event::NodeAdded { node: node.into(), local_ranks: 2 }));
        }
        sim.after(500, Ev::Fault);
        sim
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn after(&mut self, ms: u64, event: Ev) {
        self.seq += 1;
        self.events.insert(self.seq, event);
        self.queue.push(Reverse((self.now + Duration::from_millis(ms), self.seq)));
    }

    /// An event on its way to the coordinator: late, lost with the session, sometimes twice.
    fn say(&mut self, id: &str, said: Said) {
        let rank = self.ranks.get_mut(id).expect("a rank that speaks exists");
        if !matches!(said, Said::Progress(_)) {
            rank.last = Some(said.clone());
        }
        let node = rank.node.clone();
        if !self.sessions[&node] {
            return;
        }
        let late = 1 + self.below(20);
        let event = Event::Said { member: id.into(), said };
        if self.below(10) == 0 {
            let later = late + self.below(500);
            self.after(later, Ev::Gang(event.clone()));
        }
        self.after(late, Ev::Gang(event));
    }

    fn exit(&mut self, id: &str, signal: Option<i32>) {
        let rank = self.ranks.get_mut(id).expect("a rank that exits exists");
        if rank.doing == Doing::Gone {
            return;
        }
        rank.doing = Doing::Gone;
        let exit = Exit { code: signal.is_none().then_some(0), signal, out_of_memory: false };
        rank.exit = Some(exit);
        let node = rank.node.clone();
        if self.sessions[&node] {
            self.after(25, Ev::Gang(Event::Exited { member: id.into(), exit }));
        }
        let teams: Vec<u64> =
            self.teams.iter().filter(|(_, t)| t.members.iter().any(|m| m == id)).map(|(g, _)| *g).collect();
        teams.into_iter().for_each(|generation| self.after(5, Ev::Detect(generation)));
    }

    fn run(&mut self) {
        while let Some(Reverse((at, seq))) = self.queue.pop() {
            assert!(at < Moment::from_secs(7200), "the run does not end:\n{}", self.trace.join("\n"));
            self.now = at;
            let event = self.events.remove(&seq).expect("queued once");
            self.event(event);
            if self.outcome.is_some() {
                return;
            }
        }
        panic!("nothing happens any more:\n{}", self.trace.join("\n"));
    }

    fn event(&mut self, event: Ev) {
        match event {
            Ev::Gang(event) => self.tell_gang(event),
            Ev::Tick => self.tell_gang(Event::Tick),
            Ev::Command(id, command) => self.command(&id, command),
            Ev::Step(generation) => self.step(generation),
            Ev::Detect(generation) => self.detect(generation),
            Ev::Fault => self.fault(),
            Ev::Session(node) => self.session(node),
        }
    }

    fn tell_gang(&mut self, event: Event) {
        if !matches!(event, Event::Said { said: Said::Progress(_), .. } | Event::Tick) {
            self.trace.push(format!("{:?} {event:?}", self.now));
        }
        for decision in self.gang.handle(self.now, event) {
            self.trace.push(format!("{:?}   -> {decision:?}", self.now));
            self.act(decision.action);
        }
        let next = self.gang.poll_timeout().filter(|_| self.outcome.is_none());
        if let Some(at) = next.filter(|&at| self.tick_at <= self.now || at < self.tick_at) {
            self.tick_at = at;
            let wait = (at - self.now).as_millis() as u64;
            self.after(wait + 1, Ev::Tick);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Start { slot, member, origin, .. } => {
                if !self.sessions[&slot.node] {
                    return;
                }
                let step = match origin {
                    Origin::Peers => None,
                    Origin::Fresh => Some(0),
                    _ => Some(self.checkpoint),
                };
                let rank = Rank {
                    node: slot.node,
                    doing: Doing::Starting,
                    hung: false,
                    step,
                    installed: 0,
                    last: None,
                    exit: None,
                };
                assert!(self.ranks.insert(member.clone(), rank).is_none(), "{member} twice");
                let ready = 200 + self.below(2000);
                self.after(ready, Ev::Command(member, Command::Install(0)));
            }
            Action::Install { generation, members } => self.install(generation, members),
            Action::InstallAgain { generation, member } => self.send(&member, Command::Install(generation)),
            Action::Regroup { member, generation } => self.send(&member, Command::Regroup(generation)),
            Action::Abandon { member, generation } => self.send(&member, Command::Abandon(generation)),
            Action::Stop { member, save } => self.send(&member, Command::Stop(save)),
            Action::Kill { node, member } => {
                if self.sessions[&node] && self.ranks.contains_key(&member) {
                    self.exit(&member, Some(9));
                }
            }
            Action::Training { .. } | Action::Note => {}
            Action::Ended(outcome) => self.outcome = Some(outcome),
        }
    }

    fn send(&mut self, id: &str, command: Command) {
        let node = self.ranks[id].node.clone();
        if self.sessions[&node] {
            let late = 1 + self.below(20);
            self.after(late, Ev::Command(id.into(), command));
        }
    }

    fn install(&mut self, generation: u64, members: Vec<Placed>) {
        let names: Vec<String> = members.iter().map(|placed| placed.member.clone()).collect();
        let trace = || self.trace.join("\n");
        assert!(self.teams.keys().all(|&old| old < generation), "generations grow\n{}", trace());
        assert!(names.len() >= self.min as usize, "{} ranks, minimum {}\n{}", names.len(), self.min, trace());
        assert!(names.iter().any(|id| self.ranks[id].step.is_some()), "nobody has weights\n{}", trace());
        let mut sorted = members.clone();
        sorted.sort_by_key(|placed| SlotKey::of_member(&placed.member));
        assert_eq!(sorted, members, "node by node");
        for (old, team) in &self.teams {
            let whole = team
                .members
                .iter()
                .all(|id| self.ranks[id].doing == Doing::Training(*old) && !self.ranks[id].hung);
            assert!(!whole, "generation {old} is still alive\n{}", trace());
        }
        self.teams.insert(generation, Team { members: names.clone(), ..Team::default() });
        names.iter().for_each(|id| self.send(id, Command::Install(generation)));
        // A generation whose members never meet breaks by the ranks' own deadlines.
        self.after(5_000, Ev::Detect(generation));
    }

    fn command(&mut self, id: &str, command: Command) {
        let Some(rank) = self.ranks.get_mut(id).filter(|rank| rank.doing != Doing::Gone && !rank.hung) else {
            return;
        };
        match command {
            // The rank's own work: it has read everything.
            Command::Install(0) => {
                rank.doing = Doing::Waiting;
                let ready = v1::Ready {
                    addresses: vec![format!("{id}:1")],
                    step: rank.step,
                    threads: 1,
                    total_steps: STEPS,
                };
                self.say(id, Said::Ready(ready));
            }
            Command::Install(generation) if rank.doing == Doing::Waiting && generation > rank.installed => {
                (rank.doing, rank.installed) = (Doing::Forming(generation), generation);
                // A rank that does not meet its peers gives up by its own deadline.
                self.after(5_000, Ev::Detect(generation));
                self.form(generation);
            }
            Command::Regroup(generation) if rank.doing == Doing::Training(generation) => {
                self.teams.get_mut(&generation).expect("a team").pause = true;
            }
            Command::Abandon(generation) => self.detect(generation),
            Command::Stop(save) => match rank.doing {
                Doing::Training(generation) => {
                    self.teams.get_mut(&generation).expect("a team").stop = Some(save)
                }
                _ => self.stopped(id, save == Save::Yes),
            },
            Command::Install(_) | Command::Regroup(_) => {}
        }
    }

    fn stopped(&mut self, id: &str, saves: bool) {
        let step = self.ranks[id].step.unwrap_or(0);
        if saves {
            self.checkpoint = self.checkpoint.max(step);
        }
        self.say(id, Said::Stopped(v1::Stopped { step, saved: saves }));
        self.exit(id, None);
    }

    fn form(&mut self, generation: u64) {
        let team = &self.teams[&generation];
        let ready = |id: &String| self.ranks[id].doing == Doing::Forming(generation) && !self.ranks[id].hung;
        if team.over || !team.members.iter().all(ready) {
            return;
        }
        let members = team.members.clone();
        let step = members.iter().filter_map(|id| self.ranks[id].step).max().expect("somebody has weights");
        self.teams.get_mut(&generation).expect("a team").step = step;
        for (idx, id) in members.iter().enumerate() {
            let rank = self.ranks.get_mut(id).expect("a rank");
            (rank.doing, rank.step) = (Doing::Training(generation), Some(step));
            self.say(id, Said::Running(v1::Running { generation, step, rank: idx as u32, formed_us: 1 }));
        }
        self.after(STEP.as_millis() as u64, Ev::Step(generation));
    }

    fn step(&mut self, generation: u64) {
        let team = self.teams.get_mut(&generation).expect("a team");
        let able = |id: &String| self.ranks[id].doing == Doing::Training(generation) && !self.ranks[id].hung;
        if team.over || !team.members.iter().all(able) {
            return self.after(1_000, Ev::Detect(generation));
        }
        team.step += 1;
        let (step, members, pause, stop) = (team.step, team.members.clone(), team.pause, team.stop);
        self.best = self.best.max(step);
        if step.is_multiple_of(40) {
            self.checkpoint = self.checkpoint.max(step);
        }
        let over = stop.is_some() || pause || step >= STEPS;
        self.teams.get_mut(&generation).expect("a team").over = over;
        for (idx, id) in members.iter().enumerate() {
            self.ranks.get_mut(id).expect("a rank").step = Some(step);
            let progress =
                v1::Progress { generation, step, step_us: STEP.as_micros() as u64, ..Default::default() };
            self.say(id, Said::Progress(progress));
            if step >= STEPS {
                let results = if idx == 0 { "{}".to_owned() } else { String::new() };
                self.say(id, Said::Finished(v1::Finished { results, step }));
                self.exit(id, None);
            } else if let Some(save) = stop {
                self.stopped(id, save == Save::Yes && idx == 0);
            } else if pause {
                self.ranks.get_mut(id).expect("a rank").doing = Doing::Waiting;
                let addresses = vec![format!("{id}:1")];
                self.say(id, Said::Paused(v1::Paused { generation, step, addresses }));
            }
        }
        if !over {
            self.after(STEP.as_millis() as u64, Ev::Step(generation));
        }
    }

    /// Ranks that can speak notice that a generation can't go on.
    fn detect(&mut self, generation: u64) {
        let team = &self.teams[&generation];
        let inside = |rank: &Rank| {
            !rank.hung && matches!(rank.doing, Doing::Training(g) | Doing::Forming(g) if g == generation)
        };
        let culprits: Vec<u32> = (0..team.members.len() as u32)
            .filter(|&idx| !inside(&self.ranks[&team.members[idx as usize]]))
            .collect();
        let forming = team.members.iter().any(|id| self.ranks[id].doing == Doing::Forming(generation));
        if culprits.is_empty() && !forming {
            return;
        }
        let members = team.members.clone();
        self.teams.get_mut(&generation).expect("a team").over = true;
        for id in members {
            if inside(&self.ranks[&id]) {
                self.ranks.get_mut(&id).expect("a rank").doing = Doing::Waiting;
                let step = self.ranks[&id].step.unwrap_or(0);
                let (error, addresses) = ("lost a peer".to_owned(), vec![format!("{id}:1")]);
                let culprits = culprits.clone();
                self.say(
                    &id,
                    Said::Broken(v1::Broken { generation, step: Some(step), addresses, error, culprits }),
                );
            }
        }
    }

    fn fault(&mut self) {
        if self.now > self.faults_until {
            return;
        }
        let next = 200 + self.below(6_000);
        self.after(next, Ev::Fault);
        let alive: Vec<String> = self
            .ranks
            .iter()
            .filter(|(_, r)| r.doing != Doing::Gone && !r.hung)
            .map(|(id, _)| id.clone())
            .collect();
        let node = if self.below(2) == 0 { "a" } else { "b" };
        let kind = self.below(8);
        self.trace.push(format!("{:?} FAULT {kind} {node}", self.now));
        match kind {
            0..=2 if !alive.is_empty() => {
                let id = alive[self.below(alive.len() as u64) as usize].clone();
                self.exit(&id, Some(11));
            }
            3 | 4 if !alive.is_empty() => {
                let id = alive[self.below(alive.len() as u64) as usize].clone();
                self.ranks.get_mut(&id).expect("a rank").hung = true;
            }
            5 => alive.iter().filter(|id| id.starts_with(node)).for_each(|id| self.exit(id, Some(9))),
            _ if self.sessions[node] => {
                self.sessions.insert(node.into(), false);
                self.tell_gang(Event::Unreachable { node: node.into() });
                let back = 50 + self.below(8_000);
                self.after(back, Ev::Session(node.into()));
            }
            _ => {}
        }
    }

    fn session(&mut self, node: String) {
        self.sessions.insert(node.clone(), true);
        let ranks = self.ranks.iter().filter(|(_, rank)| rank.node == node);
        let reports: Vec<RankReport> = ranks
            .map(|(id, rank)| RankReport {
                run_id: "run".into(),
                member_id: id.clone(),
                last: rank.last.clone().map(|event| RankEvent { event: Some(event) }),
                installed: rank.installed,
                threads: 1,
                exited: rank.exit.map(|exit| v1::RankExited {
                    code: exit.code,
                    signal: exit.signal,
                    ..Default::default()
                }),
            })
            .collect();
        self.tell_gang(Event::Reported { node, ranks: reports });
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(256))]
    #[test]
    fn every_run_ends_when_the_faults_stop(seed in 1u64.., min in 1u32..=3) {
        let mut sim = Sim::new(seed, min);
        sim.run();
        match sim.outcome {
            Some(Outcome::Succeeded { .. }) => assert!(sim.best >= STEPS),
            // Below the minimum, or without anybody who has weights, for too long: the queue starts it again.
            Some(Outcome::Stopped { then: AfterStop::Requeue, .. }) => {}
            other => panic!("{other:?}\n{}", sim.trace.join("\n")),
        }
    }

    #[test]
    fn a_stop_at_any_moment_ends_the_run(seed in 1u64.., at_ms in 0u64..80_000) {
        let mut sim = Sim::new(seed, 1);
        let stop = Event::Stop { save: Save::Yes, reason: "a person wants it".into(), then: AfterStop::Over };
        sim.after(at_ms, Ev::Gang(stop));
        sim.run();
        let fine = matches!(sim.outcome, Some(Outcome::Stopped { then: AfterStop::Over, .. } | Outcome::Succeeded { .. }));
        assert!(fine, "{:?}\n{}", sim.outcome, sim.trace.join("\n"));
    }
}

#[test]
fn an_undisturbed_run_forms_one_generation() {
    let mut sim = Sim::new(7, 4);
    sim.faults_until = Moment::ZERO;
    sim.run();
    assert_eq!(sim.teams.len(), 1, "{}", sim.trace.join("\n"));
    assert!(matches!(sim.outcome, Some(Outcome::Succeeded { .. })));
}
