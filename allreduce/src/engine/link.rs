//! What a rank knows of a peer: its streams, what is to be sent to it, and what arrived too early.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::memory::Slab;
use super::op::{Body, OpKey, Scope};
use crate::frame::{HEADER_BYTES, Header};
use crate::plan::TaskId;

/// Bytes that a rank may send to a peer for operations that the peer hasn't posted yet.
pub(super) const EAGER_BYTES: u64 = 1 << 20;
/// Bytes of early frames that are kept per peer: what the peer may send, and its descriptions.
pub(super) const PARKED_BYTES: u64 = 4 << 20;

/// Queues of sends to a peer, in the order in which they are served.
pub(super) const QUEUES: usize = 3;

fn queue_of(scope: Scope) -> usize {
    match scope {
        Scope::World => 0,
        Scope::Rail => 1,
        // Large state that nobody waits for.
        Scope::To(_) | Scope::From(_) => 2,
    }
}

/// A frame on its way to the operating system.
#[derive(Debug)]
pub struct Outgoing {
    /// The header's bytes.
    pub header: [u8; HEADER_BYTES],
    /// Bytes of the payload.
    pub len: usize,
    pub(super) body: Body,
    /// The send that it is, if it is one.
    pub(super) send: Option<(OpKey, TaskId)>,
}

/// A frame that came before its operation was posted here.
pub(super) struct Parked {
    pub header: Header,
    pub slab: Slab,
}

/// A send that may go: its place in the order, and which it is.
type ReadySend = Reverse<(u64, u32, TaskId, OpKey)>;

#[derive(Default)]
pub(super) struct Link {
    pub streams: usize,
    pub was_up: bool,
    /// A connection was asked for at this time.
    pub wanted_since: Option<Duration>,
    /// Without any stream since then.
    pub down_since: Option<Duration>,
    pub last_byte: Option<Duration>,
    pub address: Option<SocketAddr>,
    /// Frames without a place in the order; they go first.
    pub control: VecDeque<Outgoing>,
    /// One queue for each numbering, by [`queue_of`]: one that must wait for the peer holds up no other.
    pub ready: [BinaryHeap<ReadySend>; QUEUES],
    /// Bytes sent for operations that the peer hasn't posted.
    pub eager_bytes: u64,
    pub parked: BTreeMap<OpKey, Vec<Parked>>,
    pub parked_bytes: u64,
    /// When the peer must hear what has been finished here, if nothing else is sent before.
    pub acknowledge_at: Option<Duration>,
    /// The peer left in order.
    pub has_left: bool,
    /// The peer has told that it failed, as everybody does that hears of a failure. Before that, closing the connection
    /// could cost it what was sent last: the reason.
    pub has_failed: bool,
}

impl Link {
    pub fn push_send(&mut self, order: u32, task: TaskId, key: OpKey) {
        let item = Reverse((key.sequence, order, task, key));
        self.ready[queue_of(key.scope)].push(item);
    }

    /// Keeps an early frame; false if the peer sent more than it may.
    pub fn park(&mut self, key: OpKey, header: Header, slab: Slab) -> bool {
        let bytes = slab.bytes().len() as u64 + HEADER_BYTES as u64;
        if self.parked_bytes + bytes > PARKED_BYTES {
            return false;
        }
        self.parked_bytes += bytes;
        self.parked.entry(key).or_default().push(Parked { header, slab });
        true
    }

    pub fn unpark(&mut self, key: OpKey) -> Vec<Parked> {
        let parked = self.parked.remove(&key).unwrap_or_default();
        for frame in &parked {
            self.parked_bytes -= frame.slab.bytes().len() as u64 + HEADER_BYTES as u64;
        }
        parked
    }

    /// Drops everything that was to be sent.
    pub fn clear(&mut self) {
        self.control.clear();
        self.ready.iter_mut().for_each(BinaryHeap::clear);
        self.acknowledge_at = None;
    }
}
