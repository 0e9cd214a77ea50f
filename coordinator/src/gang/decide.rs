//! What follows from the state: processes to start, generations to form.

use muster_proto::v1::Origin;

use super::types::{Action, Moment, Placed, SlotKey};
use super::{Gang, Live, Member, Phase, State};

impl Gang {
    /// Takes every decision that is due.
    pub(super) fn settle(&mut self, now: Moment) {
        self.expel_silent(now);
        self.close_generation(now);
        match self.phase {
            Phase::Ended => {}
            Phase::Ending { .. } => self.settle_ending(now),
            Phase::Open => {
                self.drop_removed();
                if self.live.is_some() {
                    self.settle_live(now);
                } else {
                    self.settle_waiting(now);
                }
                self.start_due(now);
                // Whoever must leave with the only weights may have ended the run just now.
                if matches!(self.phase, Phase::Ending { .. }) {
                    self.settle_ending(now);
                }
            }
        }
    }

    /// A generation is over when none of its members is in it any more.
    fn close_generation(&mut self, now: Moment) {
        if self.live.is_none() || self.members_iter().any(|(_, _, member)| member.is_active()) {
            return;
        }
        let Some(live) = self.live.take() else { return };
        self.changed_at = now;
        if live.broken_since.is_none() || live.progressed {
            return;
        }
        self.idle_breaks += 1;
        let most = live.blamed.iter().max_by_key(|(id, (votes, _))| (*votes, (*id).clone()));
        let error = format!("generation {} broke before it did a step", live.generation);
        if matches!(self.phase, Phase::Open) && self.count_failure(now) {
            let failure = super::Failure {
                kind: muster_proto::v1::FailureKind::Other,
                error,
                hints: vec!["look at the network between the nodes, and at the logs of the ranks".into()],
                exit_code: 1,
            };
            return self.fail_for_failures(now, failure);
        }
        if let Some((id, (votes, _))) = most.filter(|_| self.idle_breaks >= 2) {
            let reason = format!("{error}, the second time in a row; {votes} ranks blame this one");
            self.expel(now, &id.clone(), reason);
        }
    }

    /// Nodes that take no part any more lose their slots once these are empty.
    fn drop_removed(&mut self) {
        self.slots.retain(|_, slot| !(slot.removed && slot.member.is_none()));
    }

    /// Members that can take part in the next generation.
    fn candidates(&self) -> impl Iterator<Item = (&SlotKey, &Member)> {
        let stays = self.members_iter().filter(|(_, slot, _)| !slot.leaving && !slot.removed);
        stays.map(|(key, _, member)| (key, member)).filter(|(_, m)| m.is_waiting() && m.told.is_none())
    }

    fn settle_waiting(&mut self, now: Moment) {
        let count = self.candidates().count();
        let with_weights = self.candidates().any(|(_, member)| member.waits_with().is_some());
        let missing = self.policy.ranks_min.max(1) as usize > count;
        if !with_weights && self.rescue(now) {
            return;
        }
        self.release_leaving(now);
        if with_weights && !missing && (self.formed || self.may_form_first(now, count)) {
            self.below_since = None;
            return self.install(now);
        }
        if self.formed || self.potential() < self.policy.ranks_min.max(1) as usize {
            let since = *self.below_since.get_or_insert(now);
            if now >= since + self.policy.wait_for_ranks {
                let waited = self.policy.wait_for_ranks.as_secs();
                let reason = format!("too few ranks for {waited} s: {}", self.waits_for());
                self.requeue(now, reason);
            }
        } else {
            self.below_since = None;
        }
    }

    /// Deals with the case that no member that stays has weights. True if nothing else can be decided now.
    fn rescue(&mut self, now: Moment) -> bool {
        let waits = |leaving: bool| {
            let of =
                self.members_iter().filter(move |(_, slot, _)| (slot.leaving || slot.removed) == leaving);
            of.filter(|(_, _, member)| member.told.is_none() && member.waits_with().is_some()).count()
        };
        if waits(true) > 0 && self.formed {
            self.requeue(now, "every rank with weights is on a node that leaves".into());
            return true;
        }
        let may_bring = |member: &Member| match &member.state {
            State::Starting => member.has_weights,
            State::Waiting { step, .. } => step.is_some(),
            State::Active { .. } => true,
            State::Leaving => false,
        };
        if self.members_iter().any(|(_, _, member)| may_bring(member)) {
            return false;
        }
        if self.formed {
            self.decide(
                Action::Note,
                "no rank with weights is left: all start again from the last checkpoint",
            );
            (self.formed, self.origin) = (false, Origin::ResumeOrFresh);
        }
        let empty: Vec<String> = self.members_iter().map(|(_, _, member)| member.id.clone()).collect();
        for id in &empty {
            // A process that waits for the weights of peers would wait for ever.
            if self.slot_of(id).is_some_and(|(_, slot)| {
                slot.member.as_ref().is_some_and(|m| !matches!(m.state, State::Leaving))
            }) {
                self.kill(id, "there are no peers with weights; it starts again from the checkpoint".into());
            }
        }
        false
    }

    /// Ranks of leaving nodes that wait are let go.
    fn release_leaving(&mut self, now: Moment) {
        let leaving = self.members_iter().filter(|(_, slot, _)| slot.leaving || slot.removed);
        let idle = |member: &Member| {
            member.told.is_none() && matches!(member.state, State::Waiting { .. } | State::Starting)
        };
        let ids: Vec<_> = leaving.filter(|(_, _, m)| idle(m)).map(|(_, _, m)| m.id.clone()).collect();
        for id in ids {
            self.tell_stop(now, &id, super::Save::No, "its node leaves".into());
        }
    }

    /// The first generation waits for everybody, within reason.
    fn may_form_first(&self, now: Moment, ready: usize) -> bool {
        let wanted = self.slots.values().filter(|slot| !slot.leaving && !slot.removed).count();
        ready >= wanted || now >= self.changed_at + self.policy.form_grace
    }

    /// Ranks that are there or can be started.
    fn potential(&self) -> usize {
        self.slots.values().filter(|slot| slot.member.is_some() || slot.usable()).count()
    }

    fn install(&mut self, now: Moment) {
        self.generation += 1;
        let mut placed = Vec::new();
        for (key, slot) in &mut self.slots {
            let stays = !slot.leaving && !slot.removed;
            let Some(member) = slot.member.as_mut().filter(|member| stays && member.told.is_none()) else {
                continue;
            };
            let State::Waiting { addresses, threads, .. } = &member.state else { continue };
            let (addresses, threads) = (addresses.clone(), *threads);
            placed.push(Placed {
                member: member.id.clone(),
                node: key.node.clone(),
                addresses: addresses.clone(),
                threads,
            });
            member.state = State::Active { running: false, addresses, threads };
        }
        let names = placed.iter().map(|member| member.member.clone()).collect();
        self.live = Some(Live::new(self.generation, names, now));
        (self.formed, self.changed_at) = (true, now);
        let all = self.slots.len();
        let reason = format!("{} of {all} ranks are ready", placed.len());
        self.decide(Action::Install { generation: self.generation, members: placed }, reason);
    }

    fn start_due(&mut self, now: Moment) {
        if !matches!(self.phase, Phase::Open) || self.live.as_ref().is_some_and(|live| live.finishing) {
            return;
        }
        let from_peers = self.formed && self.members_iter().any(|(_, _, member)| member.has_weights);
        let origin = if from_peers { Origin::Peers } else { self.origin };
        let due = self.slots.iter_mut();
        let due = due.filter(|(_, slot)| slot.member.is_none() && slot.usable() && slot.start_at <= now);
        let mut started = Vec::new();
        for (key, slot) in due {
            // Above whatever this slot had, even if the count was lost with a disk.
            self.incarnation = self.incarnation.max(slot.given_up) + 1;
            let member = key.member_id(self.incarnation);
            slot.member = Some(Member::new(member.clone(), origin, now));
            slot.started = now;
            started.push(Action::Start { slot: key.clone(), member, local_ranks: slot.local_ranks, origin });
        }
        if !started.is_empty() {
            self.changed_at = now;
        }
        let reason = match from_peers {
            true => "a rank is missing; it gets its weights from its peers",
            false => "the run begins",
        };
        started.into_iter().for_each(|action| self.decide(action, reason));
    }
}
