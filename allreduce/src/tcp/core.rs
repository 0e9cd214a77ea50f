//! What is behind the driver's lock: the engine and all sockets.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use muster_proto::Rank;
use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::conn::{Conn, Progress, Shaking};
use super::dial::Dialler;
use super::handshake::{Handshake, Identity, Security};
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

/// Most connections that have not proven anything yet.
const MAX_STRANGERS: usize = 256;
/// Most streams of one peer: both ends may have dialled.
const MAX_STREAMS: usize = 32;

const WAKE: u64 = 0;
const LISTENER: u64 = 1;
const FIRST: u64 = 2;

pub(crate) struct Core {
    pub engine: Engine,
    pub now: Duration,
    identity: Identity,
    options: TcpOptions,
    listener: Option<TcpListener>,
    conns: Vec<Option<Conn>>,
    /// Open streams of each peer, as indices of `conns`.
    streams: Vec<Vec<usize>>,
    dialled: Vec<Dialler>,
    was_up: Vec<bool>,
    slots: HashMap<OpKey, Arc<Slot>>,
    closing: Option<Duration>,
    sockets: Registry,
}

/// The epoll set.
struct Registry(OwnedFd);

impl Registry {
    fn add(&self, socket: &TcpStream, index: usize, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.0, socket, epoll::EventData::new_u64(FIRST + index as u64), flags)?)
    }

    fn modify(&self, socket: &TcpStream, index: usize, flags: epoll::EventFlags) {
        // It is registered; closing it takes it out.
        let _ = epoll::modify(&self.0, socket, epoll::EventData::new_u64(FIRST + index as u64), flags);
    }
}

impl Core {
    pub fn new(
        engine: Engine,
        listener: Option<TcpListener>,
        options: TcpOptions,
        sockets: &OwnedFd,
    ) -> io::Result<Self> {
        if let Some(listener) = &listener {
            epoll::add(sockets, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        }
        let n = engine.membership().world_size();
        Ok(Self {
            identity: Identity::new(engine.membership(), engine.me(), &options.security),
            now: Duration::ZERO,
            options,
            listener,
            conns: Vec::new(),
            streams: vec![Vec::new(); n],
            dialled: vec![Dialler::default(); n],
            was_up: vec![false; n],
            slots: HashMap::new(),
            closing: None,
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
            Err(refused) => slot.put(Err(refused)),
        }
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
            self.now >= deadline || (self.engine.is_drained() && self.conns.iter().all(idle))
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

    /// One round: waits for events up to `timeout`, and does everything that follows. Returns whether anything did.
    pub fn poll(
        &mut self,
        sockets: &OwnedFd,
        wake: &OwnedFd,
        timeout: Duration,
        clock: impl Fn() -> Duration,
    ) -> bool {
        let mut room = [const { MaybeUninit::uninit() }; 64];
        let timeout = options::timespec(timeout);
        let zero = options::timespec(Duration::ZERO);
        let timeout = if timeout.tv_nsec <= 999 && timeout.tv_sec == 0 { zero } else { timeout };
        // An interrupted wait is a round without events.
        let events: &[epoll::Event] = match epoll::wait(sockets, &mut room[..], Some(&timeout)) {
            Ok((events, _)) => events,
            Err(_) => &[],
        };
        self.now = clock();
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
        any
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
                Action::Failed(error) => tracing::error!(
                    rank = self.engine.me().0,
                    hint = error.hint(),
                    "communication failed: {error}"
                ),
            }
        }
    }

    /// Hands frames to every stream that has room.
    pub fn flush(&mut self) {
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
            self.sockets.modify(&stream.socket, index, epoll::EventFlags::IN | room);
        }
        if let Err(error) = result {
            self.drop_conn(index, &error.to_string());
        }
    }

    fn ready(&mut self, index: usize, flags: epoll::EventFlags) {
        match self.conns.get_mut(index) {
            Some(Some(Conn::Open(stream))) => {
                if flags.contains(epoll::EventFlags::OUT) {
                    (stream.is_full, stream.waits_for_room) = (false, false);
                    self.sockets.modify(&stream.socket, index, epoll::EventFlags::IN);
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

    fn place(&mut self, conn: Conn) -> usize {
        let free = self.conns.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.conns.push(None);
            self.conns.len() - 1
        });
        self.conns[index] = Some(conn);
        index
    }

    fn accept(&mut self) {
        loop {
            let Some(listener) = &self.listener else { return };
            let (socket, address) = match listener.accept() {
                Ok(accepted) => accepted,
                // Interrupted, or out of descriptors: the next round tries again.
                Err(_) => return,
            };
            let strangers =
                self.conns.iter().flatten().filter(|c| matches!(c, Conn::Shaking(s) if s.dialled.is_none()));
            if strangers.count() >= MAX_STRANGERS {
                tracing::warn!(%address, "too many connections without a handshake; refused one");
                continue;
            }
            if socket.set_nonblocking(true).is_err() {
                continue;
            }
            options::set(&socket, Some(address), &self.options.timeouts);
            let deadline = self.now + self.options.timeouts.handshake();
            let shaking = Shaking::new(socket, Handshake::accept(), None, address, deadline);
            self.start_shaking(shaking);
        }
    }

    fn start_shaking(&mut self, shaking: Shaking) {
        let index = self.place(Conn::Shaking(shaking));
        let Some(Some(Conn::Shaking(s))) = self.conns.get(index) else { return };
        if let Err(error) = self.sockets.add(&s.socket, index, epoll::EventFlags::IN) {
            return self.drop_conn(index, &error.to_string());
        }
        self.shake(index);
    }

    fn dial(&mut self, peer: usize) {
        let rank = Rank(peer as u32);
        let membership = Arc::clone(self.engine.membership());
        let Some(member) = membership.member(rank) else { return };
        let Some(&address) = member.addresses.get(self.dialled[peer].address(member.addresses.len())) else {
            return;
        };
        self.dialled[peer].opening += 1;
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let deadline = self.now + self.options.timeouts.handshake();
        let attempt = socket_with(family, SocketType::STREAM, flags, None).and_then(|fd| {
            let socket = TcpStream::from(fd);
            options::set(&socket, Some(address), &self.options.timeouts);
            match connect(&socket, &address) {
                Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
                Err(errno) => Err(errno),
            }
        });
        match attempt {
            Ok(socket) => {
                let index = self.place(Conn::Opening { socket, peer: rank, address, deadline });
                let Some(Some(Conn::Opening { socket, .. })) = self.conns.get(index) else { return };
                if let Err(error) = self.sockets.add(socket, index, epoll::EventFlags::OUT) {
                    self.drop_conn(index, &error.to_string());
                }
            }
            Err(errno) => self.dial_failed(rank, address, &io::Error::from(errno)),
        }
    }

    fn dial_failed(&mut self, peer: Rank, address: SocketAddr, error: &io::Error) {
        let dialler = &mut self.dialled[peer.0 as usize];
        dialler.opening = dialler.opening.saturating_sub(1);
        dialler.failed(self.now, self.now.subsec_nanos() / 1000 + peer.0);
        let addresses = self.engine.membership().member(peer).map_or(0, |m| m.addresses.len());
        if error.kind() == io::ErrorKind::ConnectionRefused && dialler.tried(addresses) {
            let cause = format!("{address} refuses connections: {error}");
            self.engine.handle(Event::Refused { peer, cause }, self.now);
        }
    }

    /// A dialled connection is open, or refused.
    fn opened(&mut self, index: usize) {
        let Some(Some(Conn::Opening { socket, peer, address, deadline })) =
            self.conns.get_mut(index).map(Option::take)
        else {
            return;
        };
        let result = match sockopt::socket_error(&socket) {
            Ok(result) => result.map_err(io::Error::from),
            Err(errno) => Err(errno.into()),
        };
        let handshake = Handshake::dial(&self.identity, peer, 0);
        match (result, handshake) {
            (Ok(()), Some(handshake)) => {
                self.sockets.modify(&socket, index, epoll::EventFlags::IN);
                let shaking = Shaking::new(socket, handshake, Some(peer), address, deadline);
                self.conns[index] = Some(Conn::Shaking(shaking));
                self.shake(index);
            }
            (Err(error), _) => self.dial_failed(peer, address, &error),
            (_, None) => {
                self.dial_failed(peer, address, &io::Error::other("the system has no random numbers"))
            }
        }
    }

    fn shake(&mut self, index: usize) {
        let Some(Some(Conn::Shaking(s))) = self.conns.get_mut(index) else { return };
        match s.advance(&self.identity) {
            Progress::Waits => {}
            Progress::Over(reason) => self.drop_conn(index, &reason),
            Progress::Done(peer) => {
                let Some(Some(Conn::Shaking(s))) = self.conns.get_mut(index).map(Option::take) else {
                    return;
                };
                let at = peer.0 as usize;
                if s.dialled.is_some() {
                    self.dialled[at].opening = self.dialled[at].opening.saturating_sub(1);
                    self.dialled[at].succeeded();
                }
                if self.streams[at].len() >= MAX_STREAMS {
                    return;
                }
                let address =
                    self.engine.membership().member(peer).and_then(|m| m.addresses.first().copied());
                let mut stream = s.into_stream(peer);
                self.streams[at].push(index);
                self.was_up[at] = true;
                self.engine.handle(Event::StreamUp { peer, address }, self.now);
                // Frames may have come with the last message of the handshake.
                let read = stream.read(&mut self.engine, self.now);
                self.conns[index] = Some(Conn::Open(Box::new(stream)));
                if let Err(error) = read {
                    self.drop_conn(index, &error.to_string());
                }
            }
        }
    }

    /// Closes a connection and tells who needs to know.
    fn drop_conn(&mut self, index: usize, reason: &str) {
        let Some(conn) = self.conns.get_mut(index).and_then(Option::take) else { return };
        match conn {
            Conn::Opening { peer, address, .. } => {
                self.dial_failed(peer, address, &io::Error::other(reason.to_owned()))
            }
            Conn::Shaking(Shaking { dialled: Some(peer), address, .. }) => {
                tracing::warn!(rank = self.engine.me().0, peer = peer.0, %address, "handshake failed: {reason}");
                self.dial_failed(peer, address, &io::Error::other(reason.to_owned()));
            }
            Conn::Shaking(Shaking { address, .. }) => {
                tracing::warn!(rank = self.engine.me().0, %address, "refused a connection: {reason}");
            }
            Conn::Open(stream) => {
                let peer = stream.peer;
                let at = peer.0 as usize;
                tracing::debug!(rank = self.engine.me().0, peer = peer.0, "a stream ended: {reason}");
                self.streams[at].retain(|i| *i != index);
                let (unsent, unread) = stream.take_apart();
                self.engine.handle(Event::StreamDown { peer, unsent, unread }, self.now);
                // One of several streams: the lower rank replaces it.
                let more = !self.streams[at].is_empty() && self.engine.me() < peer;
                self.dialled[at].streams = if more { self.options.streams } else { 0 };
            }
        }
    }

    /// The engine's failure, for callers that post later.
    pub fn failure(&self) -> Option<Error> {
        self.engine.failure().cloned()
    }
}
