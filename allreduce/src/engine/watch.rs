//! What time does: deadlines, and whom an operation without progress waits for.

use std::time::Duration;

use muster_proto::Rank;

use super::Engine;
use super::op::{Look, Op, OpKey, Scope};
use crate::error::{Error, Loss, Phase};
use crate::frame::FrameKind;

impl Engine {
    /// When [`super::Event::Tick`] is due, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.failed.is_some() {
            return None;
        }
        let links = self.links.iter().flat_map(|l| {
            let repair = l.down_since.filter(|_| !l.has_left).map(|t| t + self.timeouts.repair());
            let waits = l.wanted_since.filter(|_| !l.was_up);
            [repair, waits.map(|t| t + self.timeouts.first_connect()), l.acknowledge_at]
        });
        let ops = self.ops.values().map(|op| Some(self.next_look(op)));
        links.chain(ops).flatten().min()
    }

    /// What each operation under way waits for, one line each; after a failure, what it waited for.
    pub fn waiting(&self) -> Vec<String> {
        let line = |op: &Op| {
            let owes = op.peers.iter().filter(|p| p.missing > 0 || !p.finished).map(|p| {
                let posted = if p.started.is_some() { "" } else { ", has not posted it" };
                let confirmed = if p.finished { "" } else { ", has not confirmed mine" };
                format!("{} ({} messages missing{posted}{confirmed})", p.rank, p.missing)
            });
            let owes: Vec<String> = owes.collect();
            let age = self.now.saturating_sub(op.posted);
            format!(
                "operation {}, {}: since {age:?}, waits for {}",
                op.key.sequence,
                op.description,
                owes.join(", ")
            )
        };
        if self.failed.is_some() { self.stuck.clone() } else { self.ops.values().map(line).collect() }
    }

    pub(super) fn tick(&mut self) {
        for peer in (0..self.links.len() as u32).map(Rank) {
            let (now, timeouts) = (self.now, self.timeouts);
            let Some(link) = self.link(peer) else { continue };
            if link.down_since.is_some_and(|t| now >= t + timeouts.repair()) && !link.has_left {
                self.lose(peer, "no new connection in time".to_owned());
            } else if link.wanted_since.is_some_and(|t| now >= t + timeouts.first_connect()) && !link.was_up {
                self.lose(peer, "no first connection in time".to_owned());
            } else if link.acknowledge_at.is_some_and(|t| now >= t) {
                link.acknowledge_at = None;
                self.control(peer, FrameKind::Progress, None, false, Vec::new());
            }
        }
        let late: Vec<OpKey> =
            self.ops.values().filter(|op| self.now >= self.next_look(op)).map(|op| op.key).collect();
        late.into_iter().for_each(|key| self.look_at(key));
    }

    /// When to look whether an operation still moves.
    fn next_look(&self, op: &Op) -> Duration {
        let budget = self.timeouts.operation_budget();
        let waited = match op.look {
            Look::Ask => budget / 2,
            Look::Blame => budget,
            Look::GiveUp => budget + budget / 4,
        };
        op.progress + waited
    }

    /// An operation has not moved for a while: asks those that owe something for a sign of life, then blames one
    /// that hasn't posted the operation or gave no sign, and later, whoever owes something. A peer that waits
    /// itself for another one leaves that one time to be blamed by those who see it.
    fn look_at(&mut self, key: OpKey) {
        let Some(op) = self.ops.get_mut(&key) else { return };
        let look = op.look;
        op.look = Look::GiveUp;
        let asked = op.progress + self.timeouts.operation_budget() / 2;
        let silence = |peer: Rank| self.links[peer.0 as usize].last_byte.unwrap_or_default();
        let owes: Vec<(bool, Duration, Rank)> = op
            .peers
            .iter()
            .filter(|p| p.missing > 0 || !p.finished)
            .map(|p| (p.started.is_some(), silence(p.rank), p.rank))
            .collect();
        match look {
            Look::Ask => {
                op.look = Look::Blame;
                for (_, _, peer) in owes {
                    self.control(peer, FrameKind::Progress, None, true, Vec::new());
                }
            }
            Look::Blame => {
                // On a rail a peer may wait for its own node before it posts; who sees that node blames the right one.
                let rail = key.scope == Scope::Rail;
                let guilty =
                    owes.into_iter().filter(|(started, last, _)| (!started && !rail) || *last < asked);
                if let Some((_, _, peer)) = guilty.min() {
                    self.stalled(key, peer);
                }
            }
            Look::GiveUp => {
                let peer = owes.into_iter().min().map_or(self.me, |(_, _, peer)| peer);
                self.stalled(key, peer);
            }
        }
    }

    fn stalled(&mut self, key: OpKey, peer: Rank) {
        let Some(op) = self.ops.get(&key) else { return };
        let link = &self.links[peer.0 as usize];
        let error = Error::Stalled {
            me: self.me,
            peer,
            address: link.address,
            operation: key.sequence,
            name: op.name.clone(),
            waited: self.now - op.progress,
            silent: link.last_byte.map(|t| self.now - t),
        };
        self.fail(error);
    }

    pub(super) fn lose(&mut self, peer: Rank, cause: String) {
        let now = self.now;
        let owed = self.ops.values().any(|op| op.peer(peer).is_some());
        let Some(link) = self.link(peer) else { return };
        let phase = match (link.was_up, owed) {
            (false, _) => Phase::Connect,
            (true, true) => Phase::Transfer,
            (true, false) => Phase::Idle,
        };
        let silent = link.last_byte.map(|t| now - t);
        let loss = Loss { peer, address: link.address, phase, silent, cause };
        self.fail(Error::PeerLost { me: self.me, loss });
    }
}
