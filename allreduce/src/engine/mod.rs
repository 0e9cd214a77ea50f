//! The protocol of one rank as a state machine: events in, frames and actions out. No socket, clock or thread.
//!
//! A driver tells of streams that open and break ([`Engine::handle`]), asks for frames when a stream has room
//! ([`Engine::next_frame`]), offers the headers that arrive ([`Engine::begin`]) and reads their payloads where the
//! engine says. Whichever stream of a peer has room takes the next frame, so streams share the load by themselves.
//!
//! Invariants
//! * An operation is done only when this rank has every result, and every message that it owes is either
//!   acknowledged or kept for repetition.
//! * Each message takes effect once, however often it arrives.
//! * The first failure ends every operation, is told to every connected peer, and answers every later post.
//! * Input buffers are not written, unless the operation is in place.

mod abort;
mod arithmetic;
mod check;
mod compute;
mod link;
pub(crate) mod memory;
mod op;
mod payload;
mod post;
mod receive;
mod repair;
mod resolve;
mod send;
mod watch;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_kernels::isa::{self, Isa};
use muster_proto::{Generation, Rank};

use crate::error::Error;
use crate::frame::{FrameKind, FrameScope, Header, checksum};
use crate::membership::Membership;
use crate::plan::{Plan, Spec};
use crate::timeouts::Timeouts;

pub use link::Outgoing;
pub(crate) use op::Buffer;
pub use op::{OpKey, Scope};
pub(crate) use post::Post;
pub use receive::Receipt;
pub use resolve::{Holding, OpReport, Policy, Report, Resolution, resolve};

use link::Link;
use memory::Pool;
use op::{Body, Env, Op};
use repair::Retired;

/// Most operations under way.
pub const MAX_OPERATIONS: usize = 4096;
/// Most plans that are kept for their next use.
const MAX_PLANS: usize = 512;

/// Something that happened to a driver.
#[derive(Debug)]
pub enum Event {
    /// A stream to a peer passed its handshake.
    StreamUp {
        /// The peer.
        peer: Rank,
        /// Its address.
        address: Option<SocketAddr>,
    },
    /// A stream broke.
    StreamDown {
        /// The peer.
        peer: Rank,
        /// Frames that were taken for it and not handed over completely.
        unsent: Vec<Outgoing>,
        /// Frames that arrived only in part.
        unread: Vec<Receipt>,
    },
    /// Nobody listens at the peer's address: its process is gone.
    Refused {
        /// The peer.
        peer: Rank,
        /// What the operating system said.
        cause: String,
    },
    /// Time has passed.
    Tick,
}

/// Something that a driver should do.
pub(crate) enum Action {
    /// Open streams to a peer, or accept its.
    Connect(Rank),
    /// An operation ended.
    Done(Box<Ended>),
    /// The engine failed; nothing will work any more.
    Failed(Error),
}

/// An operation that ended, with its caller's buffers.
pub(crate) struct Ended {
    pub key: OpKey,
    pub result: Result<(), Error>,
    pub input: Buffer,
    pub output: Option<Buffer>,
    /// Ranges of the output that hold final results, in elements.
    pub held: Vec<std::ops::Range<u64>>,
    pub total_weight: f32,
    pub times: Times,
}

/// When things happened in an operation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Times {
    pub name: String,
    pub posted: Duration,
    pub ended: Duration,
    /// The peer that posted the operation last, and when that was heard.
    pub last_start: Option<(Rank, Duration)>,
}

/// Counts of unusual things.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames of older generations, dropped.
    pub stale_frames: u64,
    /// Messages that arrived again, dropped.
    pub duplicates: u64,
    /// Payloads with a wrong checksum, asked for again.
    pub corrupt: u64,
    /// Messages sent again.
    pub repeated: u64,
    /// Streams that broke.
    pub broken_streams: u64,
}

/// The protocol of one rank.
pub struct Engine {
    me: Rank,
    membership: Arc<Membership>,
    timeouts: Timeouts,
    isa: Isa,
    pool: Pool,
    plans: HashMap<Spec, Arc<Plan>>,
    next: HashMap<Scope, u64>,
    ops: BTreeMap<OpKey, Op>,
    retired: BTreeMap<OpKey, Retired>,
    links: Vec<Link>,
    actions: VecDeque<Action>,
    failed: Option<Error>,
    /// What the operations waited for when that happened.
    stuck: Vec<String>,
    /// Every operation of the world below this one is finished here.
    finished_below: u64,
    counters: Counters,
    /// Operations of the world that ended since the last commit.
    ended: VecDeque<OpReport>,
    now: Duration,
}

impl Engine {
    /// The engine of one rank of a membership.
    ///
    /// # Errors
    /// A rank that is not a member.
    pub fn new(membership: Arc<Membership>, me: Rank, timeouts: Timeouts) -> Result<Self, Error> {
        let world_size = membership.world_size();
        if me.0 as usize >= world_size {
            return Err(Error::NoSuchRank { rank: me, world_size });
        }
        Ok(Self {
            me,
            timeouts,
            isa: isa::selected(),
            pool: Pool::default(),
            plans: HashMap::new(),
            next: HashMap::new(),
            ops: BTreeMap::new(),
            retired: BTreeMap::new(),
            links: std::iter::repeat_with(Link::default).take(world_size).collect(),
            membership,
            actions: VecDeque::new(),
            failed: None,
            stuck: Vec::new(),
            finished_below: 0,
            counters: Counters::default(),
            ended: VecDeque::new(),
            now: Duration::ZERO,
        })
    }

    /// This rank.
    pub fn me(&self) -> Rank {
        self.me
    }

    /// The members.
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// Counts of unusual things.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The failure that ended everything, if there was one.
    pub fn failure(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// How many operations are under way.
    pub fn operations(&self) -> usize {
        self.ops.len()
    }

    /// Whether no peer will ask for messages of operations that ended here or, after a failure, whether every
    /// connected peer knows of it but the one that is to blame.
    pub fn is_drained(&self) -> bool {
        let blamed = self.failed.as_ref().and_then(Error::culprit);
        let mut links = self.links.iter().enumerate();
        let knows = |rank: usize, link: &Link| {
            let is_told = link.streams == 0 || link.has_failed || link.has_left;
            self.failed.is_none() || is_told || blamed == Some(Rank(rank as u32))
        };
        let drained = |(rank, link): (usize, &Link)| link.control.is_empty() && knows(rank, link);
        self.ops.is_empty() && self.retired.is_empty() && links.all(drained)
    }

    /// Takes in an event.
    pub fn handle(&mut self, event: Event, now: Duration) {
        self.now = now;
        match event {
            Event::StreamUp { peer, address } => self.stream_up(peer, address),
            Event::StreamDown { peer, unsent, unread } => {
                self.put_back(unsent);
                unread.into_iter().for_each(|receipt| self.cancel(receipt));
                self.stream_down(peer);
            }
            Event::Refused { peer, cause } => {
                // Before the first stream the peer may only be late; one that left in order is no loss.
                if self.link(peer).is_some_and(|l| l.was_up && l.streams == 0 && !l.has_left) {
                    self.lose(peer, cause);
                }
            }
            Event::Tick => self.tick(),
        }
    }

    /// What the driver should do next.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn link(&mut self, peer: Rank) -> Option<&mut Link> {
        self.links.get_mut(peer.0 as usize)
    }

    /// The generation of all frames.
    fn generation(&self) -> Generation {
        self.membership.generation()
    }

    /// The scope of an operation as its peer reads it.
    fn frame_scope(key: OpKey) -> FrameScope {
        match key.scope {
            Scope::World => FrameScope::World,
            Scope::To(_) => FrameScope::FromSender,
            Scope::From(_) => FrameScope::ToSender,
            Scope::Rail => FrameScope::Rail,
        }
    }

    /// The operation that a frame of a peer means.
    fn key_of(peer: Rank, header: &Header) -> OpKey {
        let scope = match header.scope {
            FrameScope::World => Scope::World,
            FrameScope::FromSender => Scope::From(peer),
            FrameScope::ToSender => Scope::To(peer),
            FrameScope::Rail => Scope::Rail,
        };
        OpKey { scope, sequence: header.sequence }
    }

    /// A header with nothing in it but who sends it.
    fn header(&self, kind: FrameKind, key: Option<OpKey>, payload: &[u8]) -> Header {
        let op = key.and_then(|key| self.ops.get(&key));
        Header {
            kind,
            scope: key.map_or(FrameScope::World, Self::frame_scope),
            is_result: false,
            wants_reply: false,
            generation: self.generation(),
            from: self.me,
            sequence: key.map_or(0, |key| key.sequence),
            finished_below: self.finished_below,
            fingerprint: op.map_or(0, |op| op.fingerprint),
            index: 0,
            weight: 0.0,
            len: payload.len() as u32,
            payload_crc: checksum(payload),
        }
    }

    /// Queues a frame that goes before all data.
    fn control(
        &mut self,
        peer: Rank,
        kind: FrameKind,
        key: Option<OpKey>,
        wants_reply: bool,
        payload: Vec<u8>,
    ) {
        let header = Header { wants_reply, ..self.header(kind, key, &payload) };
        let mut slab = self.pool.take(payload.len());
        slab.bytes_mut().copy_from_slice(&payload);
        let (len, body) = (payload.len(), Body::Owned(slab));
        let frame = Outgoing { header: header.encode(), len, body, send: None };
        if let Some(link) = self.link(peer) {
            link.control.push_back(frame);
        }
    }

    /// Takes sends that became possible into the queues of their peers, and ends the operation if it is over.
    fn settle(&mut self, key: OpKey) {
        let Some(op) = self.ops.get_mut(&key) else { return };
        for task in std::mem::take(&mut op.ready_sends) {
            if let Some(&t) = op.transfer(task) {
                let peer = op.peers[t.peer as usize].rank;
                self.links[peer.0 as usize].push_send(t.order, task, key);
            }
        }
        self.retire(key);
    }

    /// The operation and what it needs to compute.
    fn with_op<T>(&mut self, key: OpKey, f: impl FnOnce(&mut Op, &mut Env<'_>) -> T) -> Option<T> {
        let op = self.ops.get_mut(&key)?;
        Some(f(op, &mut Env { isa: self.isa, pool: &mut self.pool }))
    }
}
