//! Frames that go out: pulled by whichever stream has room.

use std::cmp::Reverse;
use std::time::Duration;

use muster_proto::Rank;

use super::Engine;
use super::link::{EAGER_BYTES, Outgoing, QUEUES};
use super::op::{Body, Env, OpKey};
use crate::frame::{FrameKind, Header, checksum};
use crate::plan::TaskId;

impl Engine {
    /// Whether a stream to the peer would get a frame.
    pub fn has_frames(&self, peer: Rank) -> bool {
        self.links.get(peer.0 as usize).is_some_and(|l| {
            l.streams > 0 && (!l.control.is_empty() || l.ready.iter().any(|queue| !queue.is_empty()))
        })
    }

    /// The next frame for a peer. Give it back with [`Engine::sent`], or in [`super::Event::StreamDown`].
    pub fn next_frame(&mut self, peer: Rank, now: Duration) -> Option<Outgoing> {
        self.now = now;
        let link = self.link(peer)?;
        if link.streams == 0 {
            return None;
        }
        link.acknowledge_at = None;
        if let Some(frame) = link.control.pop_front() {
            return Some(frame);
        }
        loop {
            let (key, task) = (0..QUEUES).find_map(|queue| self.next_send(peer, queue))?;
            if let Some(frame) = self.frame(peer, key, task) {
                return Some(frame);
            }
        }
    }

    /// Takes the first send of a queue, unless the peer must post its operation first.
    fn next_send(&mut self, peer: Rank, queue: usize) -> Option<(OpKey, TaskId)> {
        let link = self.links.get_mut(peer.0 as usize)?;
        let queue = &mut link.ready[queue];
        while let Some(&Reverse((_, _, task, key))) = queue.peek() {
            let Some(op) = self.ops.get_mut(&key) else {
                queue.pop();
                if self.retired.contains_key(&key) {
                    return Some((key, task));
                }
                continue;
            };
            let len = op.transfer(task).map_or(0, |t| t.len * op.types.sent(t.repr) as u64);
            let at = op.peer(peer)?;
            let state = &mut op.peers[at];
            if state.started.is_none() {
                if link.eager_bytes + len > EAGER_BYTES {
                    return None;
                }
                link.eager_bytes += len;
                state.eager_bytes += len;
            }
            queue.pop();
            return Some((key, task));
        }
        None
    }

    fn frame(&mut self, peer: Rank, key: OpKey, task: TaskId) -> Option<Outgoing> {
        if !self.ops.contains_key(&key) {
            return self.retired_frame(peer, key, task);
        }
        let base = self.header(FrameKind::Data, Some(key), &[]);
        let op = self.ops.get_mut(&key)?;
        let at = op.peer(peer)?;
        if op.peers[at].finished && op.done[task as usize] {
            // A repetition that has become needless.
            return None;
        }
        let index = op.transfer(task)?.index;
        let (body, weight, is_result) = op.body(task, &mut Env { isa: self.isa, pool: &mut self.pool });
        let payload = op.payload(&body, task)?;
        let header = Header {
            is_result,
            index,
            weight,
            len: payload.len() as u32,
            payload_crc: checksum(payload),
            ..base
        };
        Some(Outgoing { header: header.encode(), len: payload.len(), body, send: Some((key, task)) })
    }

    /// The payload of a frame; none if its operation has ended meanwhile, and then nobody needs the bytes.
    pub fn payload<'a>(&'a self, frame: &'a Outgoing) -> Option<&'a [u8]> {
        let payload = match (&frame.body, frame.send) {
            (Body::Owned(slab), _) => Some(slab.bytes()),
            (Body::Empty, _) => Some(&[][..]),
            (body, Some((key, task))) => match self.ops.get(&key) {
                Some(op) => op.payload(body, task),
                None => self.retired.get(&key)?.payload(task),
            },
            _ => None,
        };
        payload.filter(|p| p.len() == frame.len)
    }

    /// A frame was handed over completely.
    pub fn sent(&mut self, frame: Outgoing, now: Duration) {
        self.now = now;
        if let Body::Owned(slab) = frame.body {
            self.pool.give(slab);
        }
        let Some((key, task)) = frame.send else { return };
        self.with_op(key, |op, env| {
            op.moved(now);
            op.sent(task, env);
        });
        self.settle(key);
    }

    /// Frames that a broken stream had taken go back to their queues.
    pub(super) fn put_back(&mut self, unsent: Vec<Outgoing>) {
        for frame in unsent {
            if let Body::Owned(slab) = frame.body {
                self.pool.give(slab);
            }
            // Frames without a send are made anew when the link is repaired.
            if let Some((key, task)) = frame.send {
                self.again(key, task);
            }
        }
    }

    /// Queues a send, for the first time or again.
    pub(super) fn again(&mut self, key: OpKey, task: TaskId) {
        // Frames of operations that ended are asked for when the link is back.
        let Some(op) = self.ops.get(&key) else { return };
        if let Some(&t) = op.transfer(task) {
            let peer = op.peers[t.peer as usize].rank;
            self.links[peer.0 as usize].push_send(t.order, task, key);
        }
    }
}
