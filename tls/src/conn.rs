//! An accepted connection, plain or encrypted, and who is at its other end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use muster_proto::limits::HANDSHAKE_TIMEOUT;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::Connected;

use crate::identity::Identity;

/// Bytes that begin every HTTP/2 connection.
const PREFACE_BYTES: usize = 24;

/// Who is at the other end of a connection; among the extensions of its requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Where it is.
    pub address: SocketAddr,
    /// Who it is; none on a connection without TLS, where everybody counts as everything.
    pub identity: Option<Identity>,
}

/// A connection without or with TLS.
pub(crate) type Io = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// A connection for a server of tonic. It fails if its beginning doesn't arrive in time; later, HTTP/2 looks after itself.
pub struct Conn {
    io: Io,
    peer: Peer,
    /// Until the preface is there: bytes so far, and the deadline.
    beginning: Option<(usize, Pin<Box<Sleep>>)>,
    _slot: OwnedSemaphorePermit,
}

impl Conn {
    pub(crate) fn new(io: Io, peer: Peer, slot: OwnedSemaphorePermit) -> Self {
        let deadline = Box::pin(tokio::time::sleep(HANDSHAKE_TIMEOUT));
        Self { io, peer, beginning: Some((0, deadline)), _slot: slot }
    }
}

impl Connected for Conn {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, buf);
        if let Some((seen, deadline)) = &mut this.beginning {
            *seen += buf.filled().len() - before;
            if *seen >= PREFACE_BYTES {
                this.beginning = None;
            } else if read.is_pending() && deadline.as_mut().poll(cx).is_ready() {
                let address = this.peer.address;
                tracing::debug!("closed a connection from {address}: it said nothing");
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Conn {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
