//! One run: its gang, and what people see of it.
//!
//! [`Run`] turns what agents say into events of the gang, and the gang's decisions into commands for agents, in order.
//! It knows no sockets and no disk: whoever drives it sends the commands, and stores what must outlive this process
//! *before* it sends what comes after it in the list.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_proto::v1::{self, AgentCommand, RankCommand, RankEvent, agent_command, rank_command, rank_event};

use crate::gang::{Action, Decision, Event, Gang, GangState, Moment, Outcome, Placed, Save, SlotKey};

pub use translate::{ForRun, route};

mod translate;

/// What is to be trained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Identity of the run.
    pub id: String,
    /// Text of the run file.
    pub run_file: String,
    /// Its path on the nodes.
    pub run_file_path: String,
    /// `--set` overrides.
    pub overrides: Vec<String>,
    /// Ranks that it should have in all.
    pub ranks: u32,
}

/// What to do for a run, in this order.
#[allow(clippy::large_enum_variant, reason = "short lists, each effect moved once")]
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Store that processes were numbered up to this.
    Numbered {
        /// The highest number.
        incarnation: u64,
    },
    /// Store a generation.
    Formed {
        /// Its number.
        generation: u64,
        /// Its members in rank order.
        members: Vec<String>,
        /// Why it was formed.
        reason: String,
    },
    /// Send a command to the agent of a node.
    Send {
        /// The node.
        node: String,
        /// The command.
        command: AgentCommand,
    },
    /// Store and show what happened, in words.
    Note(String),
    /// The run is over.
    Ended(Outcome),
}

/// One run. See the module.
#[derive(Debug)]
pub struct Run {
    recipe: Recipe,
    gang: Gang,
    /// The last Install of each member of the last generation.
    installs: BTreeMap<String, v1::Install>,
    /// What each process said last about its steps.
    progress: BTreeMap<String, v1::Progress>,
    furthest: Option<v1::Progress>,
    recoveries: u32,
    last_recovery: Duration,
    trains: bool,
    reason: String,
    new_key: fn() -> [u8; 32],
}

impl Run {
    /// A run with its gang. `new_key` makes the secret of a generation.
    pub fn new(recipe: Recipe, gang: Gang, new_key: fn() -> [u8; 32]) -> Self {
        Self {
            recipe,
            gang,
            installs: BTreeMap::new(),
            progress: BTreeMap::new(),
            furthest: None,
            recoveries: 0,
            last_recovery: Duration::ZERO,
            trains: false,
            reason: "its ranks start".into(),
            new_key,
        }
    }

    /// Takes over what an earlier coordinator knew of the run's course.
    #[must_use]
    pub fn with_course(
        mut self,
        progress: Option<v1::Progress>,
        recoveries: u32,
        last_recovery: Duration,
    ) -> Self {
        self.furthest = progress;
        (self.recoveries, self.last_recovery) = (recoveries, last_recovery);
        if self.gang.generation().is_some() {
            self.trains = true;
            self.reason = "it trained when this coordinator started; its nodes will say more".into();
        }
        self
    }

    /// What is trained.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The membership.
    pub fn gang(&self) -> &Gang {
        &self.gang
    }

    /// Takes note of an event; the effects are to be carried out in order.
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        if let Event::Said { member, said: rank_event::Event::Progress(progress) } = &event {
            self.note_progress(member, progress);
        }
        let decisions = self.gang.handle(now, event);
        decisions.into_iter().flat_map(|decision| self.effects(decision)).collect()
    }

    /// When [`Event::Tick`] is due.
    pub fn poll_timeout(&self) -> Option<Moment> {
        self.gang.poll_timeout()
    }

    /// The rank of a member in the live generation; its number on the node if it is in none.
    pub fn rank_of(&self, member: &str) -> u32 {
        let rank = self.gang.generation().and_then(|(_, ids)| ids.iter().position(|id| id == member));
        let local = || SlotKey::of_member(member).map_or(0, |(slot, _)| slot.local_rank);
        rank.map_or_else(local, |rank| rank as u32)
    }

    /// Fills in what is known of the run's course.
    pub fn describe(&self, run: &mut v1::Run) {
        let (state, reason) = self.state();
        run.state = state as i32;
        run.reason = reason;
        run.generation = self.gang.last_generation();
        run.progress = self.furthest;
        run.recoveries = self.recoveries;
        run.last_recovery_ms = self.last_recovery.as_millis() as u64;
        let rank = |(_, member, word): (&SlotKey, &str, &'static str)| v1::RunRank {
            member_id: member.into(),
            node: SlotKey::of_member(member).map(|(slot, _)| slot.node).unwrap_or_default(),
            rank: self.rank_of(member),
            progress: self.progress.get(member).copied(),
            state: word.into(),
        };
        run.ranks = self.gang.members().map(rank).collect();
    }

    /// The state with its reason, for people.
    pub fn state(&self) -> (v1::RunState, String) {
        use v1::RunState;
        match self.gang.state() {
            GangState::Forming => (RunState::Forming, self.gang.waits_for()),
            GangState::Training if self.trains => (RunState::Training, self.reason.clone()),
            GangState::Training => (RunState::Forming, self.reason.clone()),
            GangState::Waiting => (RunState::Waiting, self.gang.waits_for()),
            GangState::Stopping | GangState::Ended => (RunState::Stopping, self.reason.clone()),
        }
    }

    fn note_progress(&mut self, member: &str, progress: &v1::Progress) {
        if self.gang.members().any(|(_, id, _)| id == member) {
            self.progress.insert(member.into(), *progress);
        }
        if self.furthest.is_none_or(|furthest| progress.step >= furthest.step) {
            self.furthest = Some(*progress);
        }
    }

    fn effects(&mut self, decision: Decision) -> Vec<Effect> {
        let Decision { action, reason } = decision;
        tracing::debug!(run = self.recipe.id, "{action:?}: {reason}");
        match action {
            Action::Start { slot, member, local_ranks, origin } => {
                let incarnation = SlotKey::of_member(&member).map_or(0, |(_, incarnation)| incarnation);
                let start = v1::Start {
                    run_id: self.recipe.id.clone(),
                    run_file: self.recipe.run_file.clone(),
                    run_file_path: self.recipe.run_file_path.clone(),
                    overrides: self.recipe.overrides.clone(),
                    member_id: member.clone(),
                    node: slot.node.clone(),
                    local_rank: slot.local_rank,
                    local_ranks,
                    cpus: Vec::new(),
                    listen: String::new(),
                    origin: origin as i32,
                    spare_cpus: Vec::new(),
                };
                let start = v1::StartRank { start: Some(start), ranks: self.recipe.ranks };
                let send = send(slot.node, agent_command::Command::Start(start));
                let note = Effect::Note(format!("{member} starts: {reason}"));
                vec![Effect::Numbered { incarnation }, send, note]
            }
            Action::Install { generation, members } => self.install(generation, members, reason),
            Action::InstallAgain { member, .. } => {
                let install = self.installs.get(&member).cloned().map(rank_command::Command::Install);
                install.map(|install| to_rank(&member, install)).into_iter().collect()
            }
            Action::Regroup { member, generation } => {
                let regroup = rank_command::Command::Regroup(v1::Regroup { generation });
                vec![Effect::Note(format!("the ranks pause: {reason}")), to_rank(&member, regroup)]
            }
            Action::Abandon { member, generation } => {
                let abandon = v1::Abandon { generation, reason };
                vec![to_rank(&member, rank_command::Command::Abandon(abandon))]
            }
            Action::Stop { member, save } => {
                let stop = v1::Stop { save: save == Save::Yes, reason };
                vec![to_rank(&member, rank_command::Command::Stop(stop))]
            }
            Action::Kill { node, member } => {
                self.progress.remove(&member);
                let note = Effect::Note(format!("{member} is killed: {reason}"));
                let kill = v1::KillRank { member_id: member, reason };
                vec![note, send(node, agent_command::Command::Kill(kill))]
            }
            Action::Training { recovered_after, .. } => self.training(recovered_after, reason),
            Action::Note => {
                self.reason.clone_from(&reason);
                vec![Effect::Note(reason)]
            }
            Action::Ended(outcome) => {
                self.reason = reason;
                vec![Effect::Ended(outcome)]
            }
        }
    }

    fn install(&mut self, generation: u64, placed: Vec<Placed>, reason: String) -> Vec<Effect> {
        let members: Vec<v1::Member> = placed
            .into_iter()
            .map(|placed| v1::Member {
                id: placed.member,
                node: placed.node,
                addresses: placed.addresses,
                threads: placed.threads,
            })
            .collect();
        let names: Vec<String> = members.iter().map(|member| member.id.clone()).collect();
        self.progress.retain(|member, _| names.contains(member));
        self.trains = false;
        self.reason = format!("generation {generation} forms: {reason}");
        let key = (self.new_key)().to_vec();
        let install = |rank: usize| v1::Install {
            generation,
            members: members.clone(),
            rank: rank as u32,
            key: key.clone().into(),
        };
        self.installs = names.iter().enumerate().map(|(rank, name)| (name.clone(), install(rank))).collect();
        let note = Effect::Note(self.reason.clone());
        let formed = Effect::Formed { generation, members: names.clone(), reason };
        let sends = names.iter().enumerate();
        let sends = sends.map(|(rank, name)| to_rank(name, rank_command::Command::Install(install(rank))));
        [formed].into_iter().chain(sends).chain([note]).collect()
    }

    fn training(&mut self, recovered_after: Option<Duration>, reason: String) -> Vec<Effect> {
        self.trains = true;
        let text = match recovered_after {
            Some(after) => {
                self.recoveries += 1;
                self.last_recovery = after;
                format!("{reason}, {} ms after the break", after.as_millis())
            }
            None => reason,
        };
        self.reason.clone_from(&text);
        vec![Effect::Note(text)]
    }
}

fn send(node: String, command: agent_command::Command) -> Effect {
    Effect::Send { node, command: AgentCommand { command: Some(command) } }
}

fn to_rank(member: &str, command: rank_command::Command) -> Effect {
    let node = SlotKey::of_member(member).map(|(slot, _)| slot.node).unwrap_or_default();
    let command = RankCommand { command: Some(command) };
    let to = v1::ToRank { member_id: member.into(), command: Some(command) };
    send(node, agent_command::Command::ToRank(to))
}

/// The part of a rank's event that says something.
pub fn said(event: Option<RankEvent>) -> Option<rank_event::Event> {
    event.and_then(|event| event.event)
}
