//! Taking in what a node says about its processes when a session begins: after a broken connection, a restart of the
//! agent, or a restart of the coordinator.

use muster_proto::v1::{Origin, RankReport, rank_event::Event as Said};

use super::types::{Action, Event, Exit, Moment, SlotKey};
use super::{Gang, Member, State};

impl Gang {
    pub(super) fn reported(&mut self, now: Moment, node: &str, ranks: Vec<RankReport>) {
        for (_, slot) in self.slots.iter_mut().filter(|(key, _)| key.node == node) {
            (slot.reachable, slot.leaving) = (true, false);
        }
        self.changed_at = now;
        if let Some(live) = &mut self.live {
            live.heard = now;
        }
        let present = self.members_iter().filter(|(key, ..)| key.node == node);
        let gone: Vec<String> = present
            .map(|(_, _, member)| member.id.clone())
            .filter(|id| !ranks.iter().any(|rank| rank.member_id == *id))
            .collect();
        for id in gone {
            self.apply(now, Event::Exited { member: id, exit: Exit::default() });
        }
        for rank in ranks {
            self.take_in(now, node, rank);
        }
    }

    fn take_in(&mut self, now: Moment, node: &str, rank: RankReport) {
        let id = &rank.member_id;
        if self.slot_of(id).is_none() && !self.adopt(now, &rank) {
            // Given up, or of another time.
            if rank.exited.is_none() {
                let action = Action::Kill { node: node.into(), member: id.clone() };
                self.decide(action, "it takes no part in the run any more");
            }
            return;
        }
        if let Some((_, slot)) = self.slot_of(id)
            && let Some(State::Active { threads: t @ 0, .. }) = slot.member.as_mut().map(|m| &mut m.state)
        {
            *t = rank.threads;
        }
        if let Some(said) = rank.last.clone().and_then(|last| last.event) {
            self.said(now, id, said);
        }
        self.missed_install(now, &rank);
        if let Some(exit) = rank.exited {
            let exit = Exit { code: exit.code, signal: exit.signal, out_of_memory: exit.out_of_memory };
            self.exited(now, id, exit);
        }
    }

    /// Takes over a process that an earlier coordinator started.
    fn adopt(&mut self, now: Moment, rank: &RankReport) -> bool {
        let Some((key, incarnation)) = SlotKey::of_member(&rank.member_id) else { return false };
        let (formed, generation) = (self.formed, self.live.as_ref().map(|live| live.generation));
        let Some(slot) = self.slots.get_mut(&key) else { return false };
        if slot.member.is_some() || incarnation <= slot.given_up || rank.exited.is_some() {
            return false;
        }
        let origin = if formed { Origin::Peers } else { self.origin };
        let mut member = Member::new(rank.member_id.clone(), origin, now);
        if generation == Some(rank.installed) && rank.installed > 0 {
            member.state = State::Active { running: false, addresses: Vec::new(), threads: 0 };
            member.has_weights = true;
        }
        slot.member = Some(member);
        self.incarnation = self.incarnation.max(incarnation);
        self.generation = self.generation.max(rank.installed);
        true
    }

    /// A member that never heard of the generation that it should form: told again, or, if nobody knows the secret of
    /// that generation any more, a newcomer.
    fn missed_install(&mut self, now: Moment, rank: &RankReport) {
        let Some(live) = &self.live else { return };
        let (generation, restored) = (live.generation, live.restored);
        if rank.installed >= generation {
            return;
        }
        let Some((_, slot)) = self.slot_of(&rank.member_id) else { return };
        let Some(member) = slot.member.as_mut().filter(|member| member.is_active()) else { return };
        if !restored {
            let action = Action::InstallAgain { generation, member: rank.member_id.clone() };
            return self.decide(action, "the session broke while the generation formed");
        }
        member.state = State::Starting;
        match rank.last.clone().and_then(|last| last.event) {
            Some(Said::Ready(ready)) => self.said(now, &rank.member_id, Said::Ready(ready)),
            Some(Said::Paused(p)) => waits(member, Some(p.step), p.addresses, rank.threads),
            Some(Said::Broken(b)) => waits(member, b.step, b.addresses, rank.threads),
            _ => {}
        }
        self.lost_from_live(now, &rank.member_id);
    }
}

fn waits(member: &mut Member, step: Option<u64>, addresses: Vec<String>, threads: u32) {
    member.state = State::Waiting { step, addresses, threads };
}
