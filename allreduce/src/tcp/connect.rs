//! Connections that begin and end.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use muster_proto::Rank;
use rustix::event::epoll;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::conn::{Conn, Progress, Shaking};
use super::core::Core;
use super::handshake::Handshake;
use super::options;
use super::wire::Wire;
use crate::engine::Event;

/// Most connections that have not proven anything yet.
const MAX_STRANGERS: usize = 256;
/// Most streams of one peer: both ends may have dialled.
const MAX_STREAMS: usize = 32;

impl Core {
    fn place(&mut self, conn: Conn) -> usize {
        let free = self.conns.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.conns.push(None);
            self.conns.len() - 1
        });
        self.conns[index] = Some(conn);
        index
    }

    pub(super) fn accept(&mut self) {
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
            match Wire::accept(socket, self.options.security.tls()) {
                Ok(wire) => {
                    let shaking = Shaking::new(wire, Handshake::accept(), None, address, deadline);
                    self.start_shaking(shaking);
                }
                Err(error) => tracing::warn!(%address, "can't begin TLS: {error}"),
            }
        }
    }

    fn start_shaking(&mut self, shaking: Shaking) {
        let index = self.place(Conn::Shaking(Box::new(shaking)));
        let Some(Some(Conn::Shaking(s))) = self.conns.get(index) else { return };
        if let Err(error) = self.sockets.add(s.wire.socket(), index, epoll::EventFlags::IN) {
            return self.drop_conn(index, &error.to_string());
        }
        self.shake(index);
    }

    pub(super) fn dial(&mut self, peer: usize) {
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
        dialler.failed(self.now, self.now.subsec_micros() + peer.0);
        let addresses = self.engine.membership().member(peer).map_or(0, |m| m.addresses.len());
        if error.kind() == io::ErrorKind::ConnectionRefused && dialler.tried(addresses) {
            let cause = format!("{address} refuses connections: {error}");
            self.engine.handle(Event::Refused { peer, cause }, self.now);
        }
    }

    /// A dialled connection is open, or refused.
    pub(super) fn opened(&mut self, index: usize) {
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
                let wire = match Wire::dial(socket, address, self.options.security.tls()) {
                    Ok(wire) => wire,
                    Err(error) => return self.dial_failed(peer, address, &error),
                };
                let shaking = Shaking::new(wire, handshake, Some(peer), address, deadline);
                self.conns[index] = Some(Conn::Shaking(Box::new(shaking)));
                self.shake(index);
            }
            (Err(error), _) => self.dial_failed(peer, address, &error),
            (_, None) => {
                self.dial_failed(peer, address, &io::Error::other("the system has no random numbers"))
            }
        }
    }

    pub(super) fn shake(&mut self, index: usize) {
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
    pub(super) fn drop_conn(&mut self, index: usize, reason: &str) {
        let Some(conn) = self.conns.get_mut(index).and_then(Option::take) else { return };
        match conn {
            Conn::Opening { peer, address, .. } => {
                self.dial_failed(peer, address, &io::Error::other(reason.to_owned()))
            }
            Conn::Shaking(s) => match s.dialled {
                Some(peer) => {
                    let address = s.address;
                    tracing::warn!(rank = self.engine.me().0, peer = peer.0, %address, "handshake failed: {reason}");
                    self.dial_failed(peer, address, &io::Error::other(reason.to_owned()));
                }
                None => {
                    tracing::warn!(rank = self.engine.me().0, address = %s.address, "refused a connection: {reason}");
                }
            },
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
}
