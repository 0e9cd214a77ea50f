//! What is behind the driver's lock: the engine and all sockets.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use muster_proto::Rank;
use rustix::event::epoll;

use super::clock::Clock;
use super::conn::Conn;
use super::dial::Dialler;
use super::handshake::{Identity, Security};
use super::{Slot, options};
use crate::engine::{Action, Engine, Event, OpKey, Post};
use crate::error::Error;
use crate::timeouts::Timeouts;

/// Options of the TCP transport; equal on every rank.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// How connections are authenticated.
    pub security: Security,
    /// Streams to each peer, 1 to 8.
    pub streams: usize,
    /// How long to look for events before sleeping. Ignored if the node has more ranks than cores.
    pub spin: Duration,
    /// Deadlines.
    pub timeouts: Timeouts,
}

/// Operations under way that are logged when everything fails.
const LOGGED_OPERATIONS: usize = 16;

const WAKE: u64 = 0;
const LISTENER: u64 = 1;
const FIRST: u64 = 2;

/// Whoever wants to hear of a failure.
type Hearer = Box<dyn FnOnce(&Error) + Send>;

pub(crate) struct Core {
    pub engine: Engine,
    pub now: Duration,
    clock: Arc<Clock>,
    pub(super) identity: Identity,
    pub(super) options: TcpOptions,
    pub(super) listener: Option<TcpListener>,
    pub(super) conns: Vec<Option<Conn>>,
    /// Open streams of each peer, as indices of `conns`.
    pub(super) streams: Vec<Vec<usize>>,
    pub(super) dialled: Vec<Dialler>,
    pub(super) was_up: Vec<bool>,
    slots: HashMap<OpKey, Arc<Slot>>,
    closing: Option<Duration>,
    /// Hears of the failure, once.
    on_failure: Option<Hearer>,
    /// A stream has room and frames, but gave others a turn.
    pub has_more: bool,
    pub(super) sockets: Registry,
}

/// The epoll set.
pub(super) struct Registry(OwnedFd);

impl Registry {
    pub(super) fn add(&self, socket: &TcpStream, index: usize, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.0, socket, epoll::EventData::new_u64(FIRST + index as u64), flags)?)
    }

    pub(super) fn modify(&self, socket: &TcpStream, index: usize, flags: epoll::EventFlags) {
        // It is registered; closing it takes it out.
        let _ = epoll::modify(&self.0, socket, epoll::EventData::new_u64(FIRST + index as u64), flags);
    }
}

impl Core {
    pub(super) fn new(
        engine: Engine,
        listener: Option<TcpListener>,
        options: TcpOptions,
        (sockets, clock): (&OwnedFd, Arc<Clock>),
    ) -> io::Result<Self> {
        if let Some(listener) = &listener {
            epoll::add(sockets, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        }
        let n = engine.membership().world_size();
        Ok(Self {
            identity: Identity::new(engine.membership(), engine.me(), &options.security),
            now: Duration::ZERO,
            clock,
            options,
            listener,
            conns: Vec::new(),
            streams: vec![Vec::new(); n],
            dialled: vec![Dialler::default(); n],
            was_up: vec![false; n],
            slots: HashMap::new(),
            closing: None,
            on_failure: None,
            has_more: false,
            sockets: Registry(sockets.try_clone()?),
            engine,
        })
    }

    pub fn post(&mut self, post: Post, slot: Arc<Slot>) {
        match self.engine.post(post, self.now) {
            Ok(key) => {
                self.slots.insert(key, slot);
                self.act();
            }
            Err(refused) => {
                slot.put(Err(refused));
                // Peers may have to hear of the failure.
                self.act();
            }
        }
    }

    /// Connects to peers that operations will need.
    pub fn want(&mut self, peers: &[Rank]) {
        peers.iter().for_each(|&peer| self.engine.want(peer, self.now));
        self.act();
    }

    /// Starts to leave: what was promised to peers is kept for a while.
    pub fn close(&mut self) {
        self.engine.close(self.now);
        self.closing = Some(self.now + self.options.timeouts.linger());
    }

    /// Whether nothing is left to do after [`Core::close`].
    pub fn is_over(&self) -> bool {
        self.closing.is_some_and(|deadline| {
            let idle = |c: &Option<Conn>| !matches!(c, Some(Conn::Open(s)) if !s.is_idle());
            let all_know = !self.engine.has_untold_peers();
            self.now >= deadline || (all_know && self.engine.is_drained() && self.conns.iter().all(idle))
        })
    }

    /// Closes every socket.
    pub fn shut_down(&mut self) {
        self.conns.clear();
        self.streams.iter_mut().for_each(Vec::clear);
        self.listener = None;
    }

    /// When something must happen without an event.
    pub fn deadline(&self) -> Option<Duration> {
        let conns = self.conns.iter().flatten().filter_map(|c| match c {
            Conn::Opening { deadline, .. } => Some(*deadline),
            Conn::Shaking(s) => Some(s.deadline),
            Conn::Open(_) => None,
        });
        let dials = self.dialled.iter().zip(&self.streams).filter_map(|(d, open)| d.next(open.len()));
        conns.chain(dials).chain(self.engine.poll_timeout()).chain(self.closing).min()
    }

    /// Looks at the clock.
    pub fn advance(&mut self) {
        self.now = self.clock.next(self.now, self.deadline());
    }

    /// One round: waits for events up to `timeout`, and does everything that follows. Returns whether anything did.
    pub fn poll(&mut self, sockets: &OwnedFd, wake: &OwnedFd, timeout: Duration) -> bool {
        let mut room = [const { MaybeUninit::uninit() }; 64];
        let timeout = options::timespec(if self.has_more { Duration::ZERO } else { timeout });
        // An interrupted wait is a round without events.
        let events: &[epoll::Event] = match epoll::wait(sockets, &mut room[..], Some(&timeout)) {
            Ok((events, _)) => events,
            Err(_) => &[],
        };
        self.advance();
        let any = !events.is_empty();
        for event in events {
            match event.data.u64() {
                WAKE => {
                    // Only resets the counter.
                    let _ = rustix::io::read(wake, &mut [0_u8; 8]);
                }
                LISTENER => self.accept(),
                token => self.ready((token - FIRST) as usize, event.flags),
            }
        }
        self.timers();
        self.act();
        self.flush();
        any || self.has_more
    }

    fn timers(&mut self) {
        if self.engine.poll_timeout().is_some_and(|at| self.now >= at) {
            self.engine.handle(Event::Tick, self.now);
        }
        for index in 0..self.conns.len() {
            let late = match &self.conns[index] {
                Some(Conn::Opening { deadline, .. }) => self.now >= *deadline,
                Some(Conn::Shaking(s)) => self.now >= s.deadline,
                _ => false,
            };
            if late {
                self.drop_conn(index, "it took too long");
            }
        }
        for peer in 0..self.dialled.len() {
            for _ in 0..self.dialled[peer].due(self.streams[peer].len(), self.now) {
                self.dial(peer);
            }
        }
    }

    /// Does what the engine wants.
    fn act(&mut self) {
        while let Some(action) = self.engine.poll_action() {
            match action {
                Action::Connect(peer) => {
                    let at = peer.0 as usize;
                    // The lower rank dials; after a loss both do, since one of them may be unreachable.
                    if self.engine.me() < peer || self.was_up[at] {
                        self.dialled[at].streams = self.options.streams;
                        self.dialled[at].not_before = self.now;
                    }
                }
                Action::Done(ended) => {
                    if let Some(slot) = self.slots.remove(&ended.key) {
                        slot.put(Ok(*ended));
                    }
                }
                Action::Failed(error) => {
                    let rank = self.engine.me().0;
                    tracing::error!(rank, hint = error.hint(), "communication failed: {error}");
                    if let Some(hear) = self.on_failure.take() {
                        hear(&error);
                    }
                    for line in self.engine.waiting().iter().take(LOGGED_OPERATIONS) {
                        tracing::error!(rank, "{line}");
                    }
                }
            }
        }
    }

    /// Hands frames to every stream that has room.
    pub fn flush(&mut self) {
        self.has_more = false;
        for peer in 0..self.streams.len() {
            for at in 0..self.streams[peer].len() {
                let Some(&index) = self.streams[peer].get(at) else { break };
                self.write(index, Rank(peer as u32));
            }
        }
        self.act();
    }

    fn write(&mut self, index: usize, peer: Rank) {
        let Some(Some(Conn::Open(stream))) = self.conns.get_mut(index) else { return };
        if stream.is_full || (stream.is_idle() && !self.engine.has_frames(peer)) {
            return;
        }
        let result = stream.write(&mut self.engine, self.now);
        if stream.is_full != stream.waits_for_room {
            stream.waits_for_room = stream.is_full;
            let room = if stream.is_full { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            self.sockets.modify(stream.socket(), index, epoll::EventFlags::IN | room);
        }
        match result {
            Ok(more) => self.has_more |= more,
            Err(error) => self.drop_conn(index, &error.to_string()),
        }
    }

    fn ready(&mut self, index: usize, flags: epoll::EventFlags) {
        match self.conns.get_mut(index) {
            Some(Some(Conn::Open(stream))) => {
                if flags.contains(epoll::EventFlags::OUT) {
                    (stream.is_full, stream.waits_for_room) = (false, false);
                    self.sockets.modify(stream.socket(), index, epoll::EventFlags::IN);
                }
                let has_more =
                    flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
                if has_more && let Err(error) = stream.read(&mut self.engine, self.now) {
                    self.drop_conn(index, &error.to_string());
                }
            }
            Some(Some(Conn::Opening { .. })) => self.opened(index),
            Some(Some(Conn::Shaking(_))) => self.shake(index),
            _ => {}
        }
    }

    /// Tells of the failure when it happens, or now if it has.
    pub fn on_failure(&mut self, hear: Hearer) {
        match self.engine.failure() {
            Some(error) => hear(error),
            None => self.on_failure = Some(hear),
        }
    }

    /// The engine's failure, for callers that post later.
    pub fn failure(&self) -> Option<Error> {
        self.engine.failure().cloned()
    }
}
