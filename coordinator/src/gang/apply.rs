//! From events to the state of slots and of the live generation. What follows from it is decided afterwards.

use std::time::Duration;

use muster_proto::v1::{self, FailureKind, rank_event};

use super::types::{Action, AfterStop, Event, Exit, Failure, Moment, Outcome, Save, SlotKey};
use super::{Gang, Member, Phase, Slot, State};

impl Gang {
    pub(super) fn apply(&mut self, now: Moment, event: Event) {
        match event {
            Event::Tick => {}
            Event::Said { member, said } => self.said(now, &member, said),
            Event::Exited { member, exit } => self.exited(now, &member, exit),
            Event::StartFailed { member, error } => self.start_failed(now, &member, error),
            Event::Reported { node, ranks } => self.reported(now, &node, ranks),
            Event::Unreachable { node } => self.on_node(&node, |slot| slot.reachable = false),
            Event::Leaving { node, reason } => {
                if self.slots.iter().any(|(key, slot)| key.node == node && !slot.leaving) {
                    self.decide(Action::Note, format!("node {node} leaves: {reason}"));
                }
                self.on_node(&node, |slot| slot.leaving = true);
                self.changed_at = now;
            }
            Event::NodeAdded { node, local_ranks } => self.add_node(now, &node, local_ranks),
            Event::NodeRemoved { node } => self.on_node(&node, |slot| slot.removed = true),
            Event::Stop { save, reason, then } => {
                if matches!(self.phase, Phase::Open) {
                    self.decide(Action::Note, format!("told to end: {reason}"));
                    self.end(now, Outcome::Stopped { saved: None, reason, then }, save);
                }
            }
        }
    }

    /// Begins the end of the run.
    pub(super) fn end(&mut self, now: Moment, outcome: Outcome, save: Save) {
        if matches!(self.phase, Phase::Open) {
            self.phase = Phase::Ending { outcome, save, since: now };
        }
    }

    /// Ends the run so that it can go on later from a checkpoint.
    pub(super) fn requeue(&mut self, now: Moment, reason: String) {
        self.end(now, Outcome::Stopped { saved: None, reason, then: AfterStop::Requeue }, Save::Yes);
    }

    fn on_node(&mut self, node: &str, change: impl Fn(&mut Slot)) {
        self.slots.iter_mut().filter(|(key, _)| key.node == node).for_each(|(_, slot)| change(slot));
    }

    fn add_node(&mut self, now: Moment, node: &str, local_ranks: u32) {
        for local_rank in 0..local_ranks {
            let key = SlotKey { node: node.into(), local_rank };
            let slot = self.slots.entry(key).or_insert_with(|| Slot::new(local_ranks, true));
            (slot.reachable, slot.leaving, slot.removed) = (true, false, false);
        }
        self.changed_at = now;
    }

    pub(super) fn said(&mut self, now: Moment, id: &str, said: rank_event::Event) {
        use rank_event::Event as Said;
        if let Some(live) = self.live.as_mut().filter(|live| live.members.iter().any(|member| member == id)) {
            live.heard = now;
        }
        match said {
            Said::Ready(ready) => self.ready(now, id, ready),
            Said::Running(running) => self.running(now, id, &running),
            Said::Paused(paused) => {
                self.leaves_generation(now, id, paused.generation, Some(paused.step), paused.addresses)
            }
            Said::Broken(broken) => self.broken(now, id, broken),
            Said::Progress(progress) => self.progress(id, &progress),
            Said::Note(_) => {
                if let Some(member) = self.slot_of(id).and_then(|(_, slot)| slot.member.as_mut()) {
                    member.heard = now;
                }
            }
            Said::Finished(finished) => self.finished(now, id, finished),
            Said::Stopped(stopped) => {
                if let Some((_, slot)) = self.slot_of(id)
                    && let Some(member) = &mut slot.member
                {
                    member.state = State::Leaving;
                    if stopped.saved {
                        self.saved = self.saved.max(Some(stopped.step));
                    }
                }
            }
            Said::Failed(failed) => self.said_failed(now, id, failed),
            // The agent keeps it to itself.
            Said::Alive(_) => {}
        }
    }

    fn ready(&mut self, now: Moment, id: &str, ready: v1::Ready) {
        let Some((_, slot)) = self.slot_of(id) else { return };
        let Some(member) = &mut slot.member else { return };
        if matches!(member.state, State::Starting) {
            member.has_weights = ready.step.is_some();
            let v1::Ready { addresses, step, threads, .. } = ready;
            member.state = State::Waiting { step, addresses, threads };
            self.changed_at = now;
        }
    }

    fn running(&mut self, now: Moment, id: &str, said: &v1::Running) {
        let generation = self.live.as_ref().map(|live| live.generation);
        if generation != Some(said.generation) {
            return;
        }
        let first = !self.members_iter().any(|(_, _, member)| member.is_running());
        let Some((_, slot)) = self.slot_of(id) else { return };
        let Some(member) = &mut slot.member else { return };
        let State::Active { running, .. } = &mut member.state else { return };
        (*running, member.has_weights) = (true, true);
        if first {
            let recovered_after = self.broke_at.take().map(|broke| now.saturating_sub(broke));
            let world = self.live.as_ref().map_or(0, |live| live.members.len());
            let action = Action::Training { generation: said.generation, recovered_after };
            self.decide(action, format!("{world} ranks train from step {}", said.step));
        }
    }

    /// A member is through with the live generation and waits.
    fn leaves_generation(
        &mut self,
        now: Moment,
        id: &str,
        generation: u64,
        step: Option<u64>,
        addresses: Vec<String>,
    ) {
        if self.live.as_ref().is_none_or(|live| live.generation != generation) {
            return;
        }
        let Some((_, slot)) = self.slot_of(id) else { return };
        let Some(member) = &mut slot.member else { return };
        let State::Active { addresses: old, threads, .. } = &member.state else { return };
        let addresses = if addresses.is_empty() { old.clone() } else { addresses };
        // A newcomer whose first generation broke before it received anything has nothing.
        let step = step.filter(|_| member.has_weights);
        member.has_weights = step.is_some();
        member.state = State::Waiting { step, addresses, threads: *threads };
        member.told = None;
        self.changed_at = now;
        if let Some(live) = &mut self.live {
            live.paused_since.get_or_insert(now);
        }
    }

    fn broken(&mut self, now: Moment, id: &str, broken: v1::Broken) {
        let Some(live) = self.live.as_mut().filter(|live| live.generation == broken.generation) else {
            return;
        };
        if !live.members.iter().any(|member| member == id) {
            return;
        }
        if live.broken_since.is_none() {
            live.broken_since = Some(now);
            let reason = format!("generation {} broke: {id} says: {}", live.generation, broken.error);
            self.decide(Action::Note, reason);
        }
        self.broke_at.get_or_insert(now);
        let is_first_word =
            self.slot_of(id).is_some_and(|(_, slot)| slot.member.as_ref().is_some_and(Member::is_active));
        if let Some(live) = self.live.as_mut().filter(|_| is_first_word) {
            for culprit in broken.culprits.iter().filter_map(|&rank| live.members.get(rank as usize)) {
                if culprit != id {
                    live.blamed.entry(culprit.clone()).or_insert((0, now)).0 += 1;
                }
            }
        }
        self.leaves_generation(now, id, broken.generation, broken.step, broken.addresses);
    }

    fn progress(&mut self, id: &str, progress: &v1::Progress) {
        if self.slot_of(id).is_none() {
            return;
        }
        self.step_time = Duration::from_micros(progress.step_us);
        if progress.step > self.step {
            self.step = progress.step;
            self.failures.clear();
        }
        if let Some(live) = self.live.as_mut().filter(|live| live.generation == progress.generation)
            && !live.progressed
        {
            live.progressed = true;
            self.idle_breaks = 0;
        }
    }

    fn finished(&mut self, now: Moment, id: &str, finished: v1::Finished) {
        let Some((_, slot)) = self.slot_of(id) else { return };
        let Some(member) = &mut slot.member else { return };
        member.state = State::Leaving;
        if let Some(live) = &mut self.live {
            live.finishing = true;
        }
        if finished.results.is_empty() {
            return;
        }
        let outcome = Outcome::Succeeded { results: finished.results };
        match &mut self.phase {
            // Done is done, even if somebody wanted to stop it a moment ago.
            Phase::Ending { outcome: ending, .. } => *ending = outcome,
            Phase::Open => {
                self.decide(Action::Note, format!("all steps are done, {id} has written the results"));
                self.end(now, outcome, Save::No);
            }
            Phase::Ended => {}
        }
    }

    fn said_failed(&mut self, now: Moment, id: &str, failed: v1::Failed) {
        let Some((key, slot)) = self.slot_of(id) else { return };
        let Some(member) = &mut slot.member else { return };
        let was_active = member.is_active();
        member.state = State::Leaving;
        let failure = Failure {
            kind: FailureKind::try_from(failed.kind).unwrap_or(FailureKind::Other),
            error: failed.error,
            hints: failed.hints,
            exit_code: failed.exit_code,
        };
        if was_active {
            self.lost_from_live(now, id);
        }
        self.failed(now, &key, failure);
    }

    pub(super) fn exited(&mut self, now: Moment, id: &str, exit: Exit) {
        let Some((key, slot)) = self.slot_of(id) else { return };
        let Some(member) = slot.member.as_ref().cloned() else { return };
        slot.give_up();
        self.changed_at = now;
        if member.is_active() {
            self.lost_from_live(now, id);
        }
        let told_to_end = member.told.is_some();
        if !matches!(member.state, State::Leaving) && !told_to_end {
            self.failed(now, &key, Failure::of_exit(id, exit));
        }
    }

    fn start_failed(&mut self, now: Moment, id: &str, error: String) {
        let Some((key, slot)) = self.slot_of(id) else { return };
        slot.give_up();
        self.changed_at = now;
        let error = format!("node {} can't start {id}: {error}", key.node);
        let failure = Failure { kind: FailureKind::Other, error, hints: Vec::new(), exit_code: 1 };
        self.failed(now, &key, failure);
    }

    /// A member of the live generation is gone. Those who trained with it mostly know; those who are still about to
    /// meet it, or whose connection to it is silent, would wait for as long as their patience lasts.
    pub(super) fn lost_from_live(&mut self, now: Moment, gone: &str) {
        let Some(live) = self.live.as_mut().filter(|live| !live.finishing) else { return };
        live.broken_since.get_or_insert(now);
        self.broke_at.get_or_insert(now);
        let generation = live.generation;
        let others = self.members_iter().filter(|(_, _, member)| member.is_active() && member.id != gone);
        let others: Vec<String> = others.map(|(_, _, member)| member.id.clone()).collect();
        for member in others {
            self.decide(Action::Abandon { member, generation }, format!("{gone} is gone"));
        }
    }
}
