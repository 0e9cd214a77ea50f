//! What happens to the live generation: members that are silent, newcomers, members that leave.

use std::time::Duration;

use super::types::{Action, Moment, Save};
use super::{Gang, Live, Member, Slot, State};

/// A generation that waits for a step may wait for this many.
pub(super) const LEASE_STEPS: u32 = 3;

impl Gang {
    pub(super) fn lease(&self) -> Duration {
        self.policy.lease + self.step_time * LEASE_STEPS
    }

    /// When a member that is still in the live generation is given up, and why; none while all is well.
    fn patience(&self, live: &Live, slot: &Slot, member: &Member) -> Option<(Moment, &'static str)> {
        let lease = self.lease();
        let mut all: Vec<(Moment, &'static str)> = Vec::new();
        if slot.reachable {
            // Before the first step nobody knows how long one takes.
            let knows_steps = member.is_running() && self.step_time > Duration::ZERO;
            let silence = if knows_steps { lease } else { self.policy.hang_timeout };
            all.push((live.heard + silence, "no rank of the generation says anything"));
        }
        if let Some(since) = live.broken_since {
            // While a generation forms there is no long computation or checkpoint that a rank could be busy with.
            let lease = if live.restored || member.is_running() { lease } else { lease / 3 };
            all.push((since + lease, "it is silent although the generation broke"));
        }
        if let Some((_, since)) = live.blamed.get(&member.id) {
            all.push((*since + self.policy.blame_grace, "its peers blame it and it is silent"));
        }
        if let Some(since) = live.paused_since {
            all.push((since + lease, "it is silent although its peers have paused"));
        }
        if !live.restored && !member.is_running() {
            let until = live.formed_at + self.policy.form_timeout;
            all.push((until, "it did not join the generation in time"));
        }
        all.into_iter().min()
    }

    /// Gives up members that are silent for too long.
    pub(super) fn expel_silent(&mut self, now: Moment) {
        let hang_timeout = self.policy.hang_timeout;
        let starting =
            self.members_iter().filter(|(_, slot, m)| slot.reachable && m.told.is_none() && m.starts());
        let hung = starting.filter(|(_, _, member)| now >= member.heard + hang_timeout);
        let hung: Vec<String> = hung.map(|(_, _, member)| member.id.clone()).collect();
        for id in hung {
            self.expel(now, &id, format!("it said nothing for {} s", hang_timeout.as_secs()));
        }
        let Some(live) = &self.live else { return };
        let active = self.members_iter().filter(|(_, _, member)| member.is_active());
        let silent: Vec<(String, &str)> = active
            .filter_map(|(_, slot, member)| {
                let (until, why) = self.patience(live, slot, member)?;
                (now >= until).then(|| (member.id.clone(), why))
            })
            .collect();
        for (id, why) in silent {
            self.expel(now, &id, why.into());
        }
    }

    /// Kills a process that failed its peers; another one takes its place after a pause.
    pub(super) fn expel(&mut self, now: Moment, id: &str, reason: String) {
        let was_active = self.members_iter().any(|(_, _, member)| member.id == id && member.is_active());
        self.kill(id, reason);
        let key = super::SlotKey::of_member(id).map(|(key, _)| key);
        if let Some(slot) = key.and_then(|key| self.slots.get_mut(&key)) {
            slot.cool(now, &self.policy);
        }
        if was_active {
            self.lost_from_live(now, id);
        }
    }

    /// Kills a process; from now on it counts as gone.
    pub(super) fn kill(&mut self, id: &str, reason: String) {
        let Some((key, slot)) = self.slot_of(id) else { return };
        slot.give_up();
        self.decide(Action::Kill { node: key.node, member: id.into() }, reason);
    }

    pub(super) fn tell_stop(&mut self, now: Moment, id: &str, save: Save, reason: String) {
        let Some((_, slot)) = self.slot_of(id) else { return };
        let Some(member) = &mut slot.member else { return };
        member.told = Some((save, now));
        self.decide(Action::Stop { member: id.into(), save }, reason);
    }

    /// Decides whether the live generation should pause for another membership.
    pub(super) fn settle_live(&mut self, now: Moment) {
        self.let_go_of_starting(now);
        let Some(live) = &self.live else { return };
        if live.broken_since.is_some() || live.finishing || live.paused_since.is_some() {
            return;
        }
        let leaves = |(_, slot, _): &(_, &Slot, _)| slot.leaving || slot.removed;
        let leaving = self.members_iter().filter(leaves).filter(|(_, _, m)| m.is_active()).count();
        let staying = self.members_iter().filter(|m| !leaves(m));
        let newcomers = staying.clone().filter(|(_, _, m)| m.is_waiting() && m.told.is_none()).count();
        let active = staying.filter(|(_, _, member)| member.is_active()).count();
        if leaving == 0 && newcomers == 0 {
            return;
        }
        if active == 0 {
            return self.requeue(now, "every node of the run leaves".into());
        }
        let reachable = |(_, slot, member): &(_, &Slot, &Member)| slot.reachable && member.is_running();
        let target = self.members_iter().find(reachable).map(|(_, _, member)| member.id.clone());
        let Some(target) = target else { return };
        let (lease, debounce) = (self.lease(), self.policy.regroup_debounce);
        let Some(live) = &mut self.live else { return };
        let wanted = *live.regroup_wanted.get_or_insert(now);
        let due = match live.regroup_sent {
            None => leaving > 0 || now >= wanted + debounce,
            Some(sent) => now >= sent + lease,
        };
        if due {
            live.regroup_sent = Some(now);
            let generation = live.generation;
            let ranks = |n: usize| if n == 1 { "1 rank is".to_owned() } else { format!("{n} ranks are") };
            let reason = match (newcomers, leaving) {
                (n, 0) => format!("{} about to join", ranks(n)),
                (0, n) => format!("{} about to leave", ranks(n)),
                (new, old) => format!("{} about to join, {old} to leave", ranks(new)),
            };
            self.decide(Action::Regroup { member: target, generation }, reason);
        }
    }

    /// Processes of leaving nodes that are in no generation end at once.
    fn let_go_of_starting(&mut self, now: Moment) {
        let leaving = self.members_iter().filter(|(_, slot, _)| slot.leaving || slot.removed);
        let idle = leaving.filter(|(_, _, member)| member.told.is_none());
        let idle = idle.filter(|(_, _, m)| matches!(m.state, State::Starting | State::Waiting { .. }));
        // Those that paused with a generation that still pauses are dealt with when all have paused.
        let members = self.live.as_ref().map(|live| live.members.clone()).unwrap_or_default();
        let ids: Vec<_> = idle.map(|(_, _, m)| m.id.clone()).filter(|id| !members.contains(id)).collect();
        for id in ids {
            self.tell_stop(now, &id, Save::No, "its node leaves".into());
        }
    }

    /// Every moment at which something may become due.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Moment> + '_ {
        let live = self.live.iter().flat_map(move |live| {
            let active = self.members_iter().filter(|(_, _, member)| member.is_active());
            let patience = active.filter_map(|(_, slot, m)| Some(self.patience(live, slot, m)?.0));
            let debounce = match live.regroup_sent {
                None => live.regroup_wanted.map(|at| at + self.policy.regroup_debounce),
                Some(sent) => Some(sent + self.lease()),
            };
            patience.chain(debounce)
        });
        let starts = self.slots.values().filter(|slot| slot.member.is_none() && slot.usable());
        let form = (self.live.is_none() && !self.formed).then_some(self.changed_at + self.policy.form_grace);
        let below = self.below_since.map(|since| since + self.policy.wait_for_ranks);
        let ending = self.ending_deadline();
        let hung = self.members_iter().filter(|(_, _, member)| member.starts());
        let hung = hung.map(|(_, _, member)| member.heard + self.policy.hang_timeout);
        live.chain(hung).chain(starts.map(|slot| slot.start_at)).chain(form).chain(below).chain(ending)
    }
}
