//! Links that break and come back: who has what, and what must be sent again.

use std::collections::HashMap;
use std::net::SocketAddr;

use muster_proto::Rank;

use super::link::Outgoing;
use super::memory::Slab;
use super::op::{Body, Op, OpKey};
use super::{Action, Engine, Scope};
use crate::error::Error;
use crate::frame::{FrameKind, FrameScope, Header, MAX_PAYLOAD_BYTES, checksum};
use crate::plan::{Task, TaskId};

/// What is left of an operation that ended here while peers may still lack messages.
pub(super) struct Retired {
    description: String,
    fingerprint: u64,
    to: Vec<(Rank, Vec<Message>)>,
}

struct Message {
    task: TaskId,
    index: u32,
    weight: f32,
    slab: Option<Slab>,
}

impl Retired {
    /// Keeps the messages of an operation whose receivers have not confirmed them; none if there are none.
    pub fn new(op: &mut Op) -> Option<Self> {
        let plan = std::sync::Arc::clone(&op.plan);
        let mut to = Vec::new();
        for (at, peer) in plan.peers.iter().enumerate() {
            if !op.peers[at].finished {
                to.push((peer.rank, peer.sends.iter().map(|&task| Message::of(op, task)).collect()));
            }
        }
        let (description, fingerprint) = (op.description.clone(), op.fingerprint);
        (!to.is_empty()).then_some(Self { description, fingerprint, to })
    }

    /// The peer has everything; true if no other one is left.
    pub fn forget(&mut self, peer: Rank) -> bool {
        self.to.retain(|(rank, _)| *rank != peer);
        self.to.is_empty()
    }

    /// The payload of a message.
    pub fn payload(&self, task: TaskId) -> Option<&[u8]> {
        let message = self.to.iter().flat_map(|(_, messages)| messages).find(|m| m.task == task)?;
        message.slab.as_ref().map(Slab::bytes)
    }

    fn has(&self, peer: Rank, task: TaskId) -> bool {
        self.to.iter().any(|(rank, messages)| *rank == peer && messages.iter().any(|m| m.task == task))
    }
}

impl Message {
    fn of(op: &mut Op, task: TaskId) -> Self {
        let (index, weight) = match &op.plan.tasks[task as usize] {
            Task::Send(t) => (t.index, op.weight_of(t.place)),
            _ => (0, 0.0),
        };
        Self { task, index, weight, slab: op.kept.remove(&task) }
    }
}

/// What a peer has of an operation.
struct Has {
    started: bool,
    bits: Vec<u8>,
}

impl Has {
    fn contains(&self, index: u32) -> bool {
        self.bits.get(index as usize / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1)
    }
}

impl Engine {
    pub(super) fn stream_up(&mut self, peer: Rank, address: Option<SocketAddr>) {
        let (now, failed) = (self.now, self.failed.clone());
        let Some(link) = self.link(peer) else { return };
        let returns = link.was_up && link.streams == 0;
        link.streams += 1;
        link.was_up = true;
        link.down_since = None;
        link.wanted_since.get_or_insert(now);
        link.last_byte = Some(now);
        link.address = address.or(link.address);
        if let Some(error) = failed {
            return self.tell_failure(peer, &error);
        }
        if returns {
            self.ask_for_repair(peer, true);
        }
    }

    pub(super) fn stream_down(&mut self, peer: Rank) {
        self.counters.broken_streams += 1;
        let (now, works) = (self.now, self.failed.is_none());
        let owes = self.ops.values().any(|op| op.peers.iter().any(|p| p.rank == peer && p.missing > 0));
        let Some(link) = self.link(peer) else { return };
        link.streams = link.streams.saturating_sub(1);
        if link.streams > 0 {
            return self.ask_for_repair(peer, true);
        }
        link.down_since.get_or_insert(now);
        match link.has_left {
            true if owes => self.lose(peer, "it left while it was needed".to_owned()),
            true => self.forget(peer),
            false if works => self.actions.push_back(Action::Connect(peer)),
            false => {}
        }
    }

    /// A peer that left in order needs nothing any more.
    fn forget(&mut self, peer: Rank) {
        self.retired.retain(|_, retired| !retired.forget(peer));
        let keys: Vec<OpKey> = self.ops.keys().copied().collect();
        for key in keys {
            if let Some(op) = self.ops.get_mut(&key) {
                op.peers.iter_mut().filter(|p| p.rank == peer).for_each(|p| p.finished = true);
            }
            self.retire(key);
        }
    }

    /// Tells a peer what arrived, so that it repeats the rest; `wants_reply`: it should do the same.
    pub(super) fn ask_for_repair(&mut self, peer: Rank, wants_reply: bool) {
        let mut payload = Vec::new();
        for (key, op) in &self.ops {
            let Some(at) = op.peer(peer) else { continue };
            let recvs = &op.plan.peers[at].recvs;
            let has = |i: u32| op.done[recvs[i as usize] as usize] || op.peers[at].reading.contains(&i);
            // What is being read on another stream counts: if that breaks too, this is asked again.
            push_entry(&mut payload, *key, op.peers[at].started.is_some(), recvs.len() as u32, has);
        }
        if let Some(link) = self.link(peer) {
            for (key, frames) in &link.parked {
                let started = frames.iter().any(|f| f.header.kind == FrameKind::Start);
                let of_data = |f: &&super::link::Parked| f.header.kind == FrameKind::Data;
                let indices: Vec<u32> = frames.iter().filter(of_data).map(|f| f.header.index).collect();
                let count = indices.iter().max().map_or(0, |i| i + 1);
                push_entry(&mut payload, *key, started, count, |i| indices.contains(&i));
            }
        }
        self.control(peer, FrameKind::Repair, None, wants_reply, payload);
    }

    /// Repeats what a peer lacks.
    pub(super) fn repair(&mut self, peer: Rank, header: &Header, payload: &[u8]) -> Result<(), Error> {
        let Some(has) = parse(peer, payload) else {
            let address = self.links.get(peer.0 as usize).and_then(|l| l.address);
            let problem = "a repair list that can't be read".to_owned();
            return Err(Error::Protocol { me: self.me, peer, address, problem });
        };
        if header.wants_reply {
            self.ask_for_repair(peer, false);
        }
        let mut again = Vec::new();
        let mut start = Vec::new();
        let mut finished = Vec::new();
        for (key, op) in &self.ops {
            let Some(at) = op.peer(peer) else { continue };
            let entry = has.get(key);
            if !entry.is_some_and(|e| e.started) {
                start.push(*key);
            }
            if op.is_settled() {
                finished.push(*key);
            }
            if !op.peers[at].finished {
                let lacks = |index: u32| !entry.is_some_and(|e| e.contains(index));
                let sends = op.plan.peers[at].sends.iter().enumerate();
                let lost = sends.filter(|(i, task)| op.done[**task as usize] && lacks(*i as u32));
                again.extend(lost.map(|(_, task)| (*key, *task)));
            }
        }
        // What ended here without leaving anything behind had everything, and the word of that was lost.
        let ended = |key: &&OpKey| {
            let posted = self.next.get(&key.scope).copied().unwrap_or(0);
            key.sequence < posted && !self.ops.contains_key(key) && !self.retired.contains_key(key)
        };
        finished.extend(has.keys().filter(ended));
        self.counters.repeated += again.len() as u64;
        for key in start {
            let description = self.ops.get(&key).map(|op| op.description.clone()).unwrap_or_default();
            self.control(peer, FrameKind::Start, Some(key), false, description.into_bytes());
        }
        for key in finished {
            self.control(peer, FrameKind::Finished, Some(key), false, Vec::new());
        }
        again.into_iter().for_each(|(key, task)| self.again(key, task));
        self.repeat_retired(peer, &has);
        Ok(())
    }

    /// A message that was to be repeated when its operation ended.
    pub(super) fn retired_frame(&mut self, peer: Rank, key: OpKey, task: TaskId) -> Option<Outgoing> {
        let retired = self.retired.get(&key).filter(|r| r.has(peer, task))?;
        let message = retired.to.iter().flat_map(|(_, m)| m).find(|m| m.task == task)?;
        let payload = message.slab.as_ref().map(Slab::bytes).unwrap_or_default();
        let header = Header {
            fingerprint: retired.fingerprint,
            index: message.index,
            weight: message.weight,
            len: payload.len() as u32,
            payload_crc: checksum(payload),
            ..self.header(FrameKind::Data, Some(key), &[])
        };
        Some(Outgoing {
            header: header.encode(),
            len: payload.len(),
            body: Body::Kept,
            send: Some((key, task)),
        })
    }

    fn repeat_retired(&mut self, peer: Rank, has: &HashMap<OpKey, Has>) {
        let mut frames = Vec::new();
        let mut again = Vec::new();
        for (key, retired) in &self.retired {
            let Some((_, messages)) = retired.to.iter().find(|(rank, _)| *rank == peer) else { continue };
            let entry = has.get(key);
            let base =
                Header { fingerprint: retired.fingerprint, ..self.header(FrameKind::Start, Some(*key), &[]) };
            if !entry.is_some_and(|e| e.started) {
                frames.push((base, retired.description.clone().into_bytes()));
            }
            for m in messages.iter().filter(|m| !entry.is_some_and(|e| e.contains(m.index))) {
                again.push((*key, m.task));
            }
        }
        self.counters.repeated += again.len() as u64;
        for (mut header, payload) in frames {
            (header.len, header.payload_crc) = (payload.len() as u32, checksum(&payload));
            let mut slab = self.pool.take(payload.len());
            slab.bytes_mut().copy_from_slice(&payload);
            let (len, body) = (payload.len(), Body::Owned(slab));
            let frame = Outgoing { header: header.encode(), len, body, send: None };
            self.links[peer.0 as usize].control.push_back(frame);
        }
        for (key, task) in again {
            self.links[peer.0 as usize].push_send(task, task, key);
        }
    }
}

/// One entry of a repair list: scope, started, sequence, number of messages, a bit for each.
fn push_entry(payload: &mut Vec<u8>, key: OpKey, started: bool, count: u32, has: impl Fn(u32) -> bool) {
    let bytes = count.div_ceil(8) as usize;
    // What doesn't fit is sent again although it may be here already.
    if payload.len() + 14 + bytes > MAX_PAYLOAD_BYTES as usize {
        return;
    }
    payload.push(Engine::frame_scope(key) as u8);
    payload.push(u8::from(started));
    payload.extend(key.sequence.to_le_bytes());
    payload.extend(count.to_le_bytes());
    let mut bits = vec![0_u8; bytes];
    (0..count).filter(|&i| has(i)).for_each(|i| bits[i as usize / 8] |= 1 << (i % 8));
    payload.extend(bits);
}

/// Reads a repair list of a peer; none if it is none.
fn parse(peer: Rank, mut payload: &[u8]) -> Option<HashMap<OpKey, Has>> {
    let mut entries = HashMap::new();
    while !payload.is_empty() {
        let head = payload.get(..14)?;
        let scope = match head[0] {
            s if s == FrameScope::World as u8 => Scope::World,
            s if s == FrameScope::FromSender as u8 => Scope::From(peer),
            s if s == FrameScope::ToSender as u8 => Scope::To(peer),
            s if s == FrameScope::Rail as u8 => Scope::Rail,
            _ => return None,
        };
        let sequence = u64::from_le_bytes(head[2..10].try_into().ok()?);
        let count = u32::from_le_bytes(head[10..14].try_into().ok()?);
        let end = 14 + count.div_ceil(8) as usize;
        let bits = payload.get(14..end)?.to_vec();
        entries.insert(OpKey { scope, sequence }, Has { started: head[1] != 0, bits });
        payload = &payload[end..];
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn repair_lists_of_any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(Rank(1), &bytes);
        }
    }

    #[test]
    fn a_repair_list_says_what_is_there() {
        let mut payload = Vec::new();
        let key = OpKey { scope: Scope::To(Rank(4)), sequence: 9 };
        push_entry(&mut payload, key, true, 11, |i| i % 3 == 0);
        let entries = parse(Rank(4), &payload).unwrap();
        // What goes to the one comes from the other.
        let has = &entries[&OpKey { scope: Scope::From(Rank(4)), sequence: 9 }];
        assert!(has.started && has.contains(9) && !has.contains(10) && !has.contains(12));
        assert!(parse(Rank(4), &payload[..payload.len() - 1]).is_none());
    }
}
