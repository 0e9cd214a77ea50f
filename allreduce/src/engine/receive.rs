//! Frames that come in.

use std::time::Duration;

use muster_proto::Rank;

use super::link::Parked;
use super::memory::Slab;
use super::op::{Dest, OpKey};
use super::{Engine, abort};
use crate::error::Error;
use crate::frame::{FrameKind, Header, checksum};
use crate::plan::TaskId;

/// A frame whose payload is being read.
#[derive(Debug)]
pub struct Receipt {
    peer: Rank,
    header: Header,
    target: Target,
}

impl Receipt {
    /// Bytes of the payload.
    pub fn len(&self) -> usize {
        self.header.len as usize
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.header.len == 0
    }
}

#[derive(Debug)]
enum Target {
    /// A message of an operation that is under way.
    Message(OpKey, TaskId, Dest),
    /// A message of an operation that will be posted.
    Early(OpKey, Slab),
    /// Anything but elements.
    Control(Slab),
    /// Not wanted.
    Nowhere(Slab),
}

impl Engine {
    /// Decides where the payload of a frame goes.
    ///
    /// # Errors
    /// The peer broke the protocol: the stream is of no use.
    pub fn begin(&mut self, peer: Rank, header: Header, now: Duration) -> Result<Receipt, Error> {
        self.now = now;
        let len = header.len as usize;
        let generation = self.generation();
        let Some(link) = self.link(peer) else { return Err(self.nonsense(peer, "it is no member")) };
        link.last_byte = Some(now);
        if header.generation != generation {
            self.counters.stale_frames += 1;
            let slab = self.pool.take(len);
            return Ok(Receipt { peer, header, target: Target::Nowhere(slab) });
        }
        self.acknowledged(peer, header.finished_below);
        let target = match header.kind {
            FrameKind::Data => self.place(peer, &header)?,
            _ => Target::Control(self.pool.take(len)),
        };
        Ok(Receipt { peer, header, target })
    }

    fn place(&mut self, peer: Rank, header: &Header) -> Result<Target, Error> {
        let key = Self::key_of(peer, header);
        let len = header.len as usize;
        let Some(op) = self.ops.get_mut(&key) else {
            let posted = self.next.get(&key.scope).copied().unwrap_or(0);
            let slab = self.pool.take(len);
            return Ok(if self.failed.is_none() && key.sequence >= posted {
                Target::Early(key, slab)
            } else {
                self.counters.duplicates += 1;
                Target::Nowhere(slab)
            });
        };
        let at = op.peer(peer);
        if header.fingerprint != op.fingerprint {
            // Its first frame has the description that the error needs; this one has nothing.
            return Ok(Target::Nowhere(self.pool.take(len)));
        }
        let task = at.and_then(|at| op.plan.peers[at].recvs.get(header.index as usize).copied());
        let (Some(at), Some(task)) = (at, task) else {
            return Err(self.nonsense(peer, &format!("message {} is not in the plan", header.index)));
        };
        if op.done[task as usize] || op.peers[at].reading.contains(&header.index) {
            self.counters.duplicates += 1;
            return Ok(Target::Nowhere(self.pool.take(len)));
        }
        let transfer = op.transfer(task).copied();
        let Some(t) = transfer else { return Err(self.nonsense(peer, "a message has no transfer")) };
        let size = if header.is_result { op.types.wire.bytes() } else { op.types.sent(t.repr) };
        let whole = t.len as usize * size;
        let absent = header.weight == 0.0 && matches!(t.place, crate::plan::Place::Temp(_)) && op.reduces;
        let expected = if absent && !header.is_result { 0 } else { whole };
        if len != expected {
            let problem = format!("message {} has {len} bytes, expected {expected}", header.index);
            return Err(self.nonsense(peer, &problem));
        }
        op.peers[at].reading.push(header.index);
        let dest = op.dest(&t, len, header.is_result, &mut self.pool);
        Ok(Target::Message(key, task, dest))
    }

    fn nonsense(&self, peer: Rank, problem: &str) -> Error {
        let address = self.links.get(peer.0 as usize).and_then(|l| l.address);
        Error::Protocol { me: self.me, peer, address, problem: problem.to_owned() }
    }

    /// Where to read the payload of a frame; as long as [`Receipt::len`].
    pub fn room<'a>(&'a mut self, receipt: &'a mut Receipt) -> &'a mut [u8] {
        let len = receipt.len();
        if let Target::Message(key, _, Dest::Output(_)) = &receipt.target
            && !self.ops.contains_key(key)
        {
            // The operation failed meanwhile and its output is the caller's again.
            receipt.target = Target::Nowhere(self.pool.take(len));
        }
        match &mut receipt.target {
            Target::Early(_, slab) | Target::Control(slab) | Target::Nowhere(slab) => slab.bytes_mut(),
            Target::Message(_, _, Dest::Slab(slab)) => slab.bytes_mut(),
            Target::Message(key, _, Dest::Output(range)) => match self.ops.get_mut(key) {
                Some(op) => &mut op.output_mut()[range.clone()],
                None => &mut [],
            },
            Target::Message(_, _, Dest::Empty) => &mut [],
        }
    }

    /// The payload of a frame is complete.
    ///
    /// # Errors
    /// The peer broke the protocol: the stream is of no use.
    pub fn finish(&mut self, mut receipt: Receipt, now: Duration) -> Result<(), Error> {
        self.now = now;
        let (peer, header) = (receipt.peer, receipt.header);
        if let Some(link) = self.link(peer) {
            link.last_byte = Some(now);
        }
        let got = checksum(self.room(&mut receipt));
        // What nobody wants may be anything: the peer's operation ended while it was under way.
        if got != header.payload_crc && !matches!(receipt.target, Target::Nowhere(_)) {
            self.counters.corrupt += 1;
            self.cancel(receipt);
            self.ask_for_repair(peer, true);
            return Ok(());
        }
        match receipt.target {
            Target::Message(key, task, dest) => {
                self.message(peer, &header, (key, task), dest);
                Ok(())
            }
            Target::Early(key, slab) => {
                if self.ops.contains_key(&key) {
                    // Posted while the payload was under way.
                    self.deliver(peer, Parked { header, slab });
                    self.settle(key);
                    return Ok(());
                }
                match self.link(peer).is_some_and(|l| l.park(key, header, slab)) {
                    true => Ok(()),
                    false => Err(self.nonsense(peer, "more early bytes than it may send")),
                }
            }
            Target::Control(slab) => self.control_frame(peer, &header, slab),
            Target::Nowhere(slab) => {
                self.pool.give(slab);
                Ok(())
            }
        }
    }

    fn message(&mut self, peer: Rank, header: &Header, (key, task): (OpKey, TaskId), dest: Dest) {
        let now = self.now;
        let arrival = (header.weight, header.is_result);
        self.with_op(key, |op, env| {
            op.moved(now);
            if let Some(at) = op.peer(peer) {
                op.peers[at].reading.retain(|i| *i != header.index);
                op.peers[at].missing = op.peers[at].missing.saturating_sub(1);
            }
            op.arrived(task, dest, arrival, env);
        });
        self.settle(key);
    }

    /// Gives a frame to the operation that it came too early for.
    pub(super) fn deliver(&mut self, peer: Rank, parked: Parked) {
        let Parked { header, slab } = parked;
        if header.kind != FrameKind::Data {
            // Its stream is gone or fine; an error in it shows again when the peer repeats it.
            let _ = self.control_frame(peer, &header, slab);
            return;
        }
        match self.place(peer, &header) {
            Ok(Target::Message(key, task, dest)) => {
                let mut receipt = Receipt { peer, header, target: Target::Message(key, task, dest) };
                self.room(&mut receipt).copy_from_slice(slab.bytes());
                self.pool.give(slab);
                if let Target::Message(key, task, dest) = receipt.target {
                    self.message(peer, &header, (key, task), dest);
                }
            }
            Ok(_) => self.pool.give(slab),
            Err(error) => self.fail(error),
        }
    }

    fn control_frame(&mut self, peer: Rank, header: &Header, slab: Slab) -> Result<(), Error> {
        let key = Self::key_of(peer, header);
        match header.kind {
            FrameKind::Start => return self.peer_started(peer, key, header, slab),
            FrameKind::Finished => self.peer_finished(peer, key),
            FrameKind::Repair => self.repair(peer, header, slab.bytes())?,
            FrameKind::Abort => match abort::decode(slab.bytes()) {
                Some(error) => {
                    if let Some(link) = self.link(peer) {
                        link.has_failed = true;
                    }
                    self.fail(error);
                }
                None => return Err(self.nonsense(peer, "an abort without a reason")),
            },
            FrameKind::Goodbye => {
                if let Some(link) = self.link(peer) {
                    link.has_left = true;
                }
            }
            FrameKind::Progress if header.wants_reply => {
                self.control(peer, FrameKind::Progress, None, false, Vec::new());
            }
            FrameKind::Progress | FrameKind::Data => {}
        }
        self.pool.give(slab);
        Ok(())
    }

    fn peer_started(&mut self, peer: Rank, key: OpKey, header: &Header, slab: Slab) -> Result<(), Error> {
        let posted = self.next.get(&key.scope).copied().unwrap_or(0);
        let now = self.now;
        let Some(op) = self.ops.get_mut(&key) else {
            if self.failed.is_none() && key.sequence >= posted {
                let fits = self.link(peer).is_some_and(|l| l.park(key, *header, slab));
                return if fits { Ok(()) } else { Err(self.nonsense(peer, "too many early operations")) };
            }
            self.pool.give(slab);
            return Ok(());
        };
        if header.fingerprint == op.fingerprint && op.peer(peer).is_some() {
            let at = op.peer(peer).unwrap_or(0);
            let state = &mut op.peers[at];
            if state.started.is_none() {
                state.started = Some(now);
                let eager = std::mem::take(&mut state.eager_bytes);
                op.moved(now);
                self.links[peer.0 as usize].eager_bytes -= eager;
            }
            self.pool.give(slab);
            return Ok(());
        }
        let theirs = String::from_utf8_lossy(slab.bytes()).into_owned();
        let mut mine = op.description.clone();
        if mine == theirs {
            mine.push_str(" under another plan or membership");
        }
        let error = Error::Mismatch { me: self.me, peer, operation: key.sequence, mine, theirs };
        self.pool.give(slab);
        self.fail(error);
        Ok(())
    }

    fn peer_finished(&mut self, peer: Rank, key: OpKey) {
        if let Some(op) = self.ops.get_mut(&key)
            && let Some(at) = op.peer(peer)
        {
            op.peers[at].finished = true;
        }
        if self.retired.get_mut(&key).is_some_and(|r| r.forget(peer)) {
            self.retired.remove(&key);
        }
        self.retire(key);
    }

    /// A peer has finished every operation of the world below this one.
    fn acknowledged(&mut self, peer: Rank, below: u64) {
        let world = |sequence| OpKey { scope: super::Scope::World, sequence };
        let done: Vec<OpKey> = self.retired.range(world(0)..world(below)).map(|(key, _)| *key).collect();
        for key in done {
            if self.retired.get_mut(&key).is_some_and(|r| r.forget(peer)) {
                self.retired.remove(&key);
            }
        }
        let ops: Vec<OpKey> = self.ops.range(world(0)..world(below)).map(|(key, _)| *key).collect();
        for key in ops {
            self.peer_finished(peer, key);
        }
    }

    /// A frame of which only a part arrived; it will come again.
    pub(super) fn cancel(&mut self, receipt: Receipt) {
        match receipt.target {
            Target::Message(key, _, dest) => {
                if let Some(op) = self.ops.get_mut(&key)
                    && let Some(at) = op.peer(receipt.peer)
                {
                    op.peers[at].reading.retain(|i| *i != receipt.header.index);
                }
                if let Dest::Slab(slab) = dest {
                    self.pool.give(slab);
                }
            }
            Target::Early(_, slab) | Target::Control(slab) | Target::Nowhere(slab) => self.pool.give(slab),
        }
    }
}
