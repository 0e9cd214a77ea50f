//! A connection from its first packet to its last.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use muster_proto::Rank;

use super::handshake::{Handshake, Identity, Step};
use super::stream::Stream;
use super::wire::Wire;

/// Longest handshake message and what may follow it in one packet.
const BUFFER_BYTES: usize = 512;

pub(super) enum Conn {
    /// Dialled, not yet connected.
    Opening {
        socket: TcpStream,
        peer: Rank,
        address: SocketAddr,
        deadline: Duration,
    },
    Shaking(Box<Shaking>),
    Open(Box<Stream>),
}

pub(super) struct Shaking {
    pub wire: Wire,
    /// TLS is done, if there is any.
    is_secure: bool,
    pub handshake: Handshake,
    /// The rank that was dialled.
    pub dialled: Option<Rank>,
    pub address: SocketAddr,
    pub deadline: Duration,
    buffer: [u8; BUFFER_BYTES],
    len: usize,
}

/// What became of a handshake after a look at its socket.
pub(super) enum Progress {
    Waits,
    Done(Rank),
    Over(String),
}

impl Shaking {
    pub fn new(
        wire: Wire,
        handshake: Handshake,
        dialled: Option<Rank>,
        address: SocketAddr,
        deadline: Duration,
    ) -> Self {
        Self {
            wire,
            is_secure: false,
            handshake,
            dialled,
            address,
            deadline,
            buffer: [0; BUFFER_BYTES],
            len: 0,
        }
    }

    /// Sends and reads what is possible.
    pub fn advance(&mut self, identity: &Identity) -> Progress {
        if !self.is_secure {
            match self.wire.shake() {
                Ok(Some(binding)) => self.handshake.binding = binding,
                Ok(None) => return Progress::Waits,
                Err(error) => return Progress::Over(error.to_string()),
            }
            self.is_secure = true;
        }
        loop {
            if let Err(error) = self.send() {
                return Progress::Over(error.to_string());
            }
            let (used, step) = self.handshake.advance(identity, &self.buffer[..self.len]);
            self.buffer.copy_within(used..self.len, 0);
            self.len -= used;
            match step {
                Step::Done(peer) => {
                    return match self.send() {
                        Ok(()) => Progress::Done(peer),
                        Err(error) => Progress::Over(error.to_string()),
                    };
                }
                Step::Refuse(reason) => return Progress::Over(reason.to_owned()),
                Step::Wait if used > 0 => continue,
                Step::Wait => {}
            }
            match self.wire.read([&mut self.buffer[self.len..], &mut []], true) {
                Ok(got) if got.bytes == 0 => return Progress::Over("it closed the connection".to_owned()),
                Ok(got) => self.len += got.bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Progress::Waits,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Progress::Over(error.to_string()),
            }
        }
    }

    /// A fresh socket has room for these few bytes.
    fn send(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.handshake.out);
        if bytes.is_empty() { Ok(()) } else { self.wire.write_few(&bytes) }
    }

    /// The stream, with what came behind the handshake.
    pub fn into_stream(mut self, peer: Rank) -> Stream {
        self.wire.open();
        Stream::new(self.wire, peer, &self.buffer[..self.len])
    }
}
