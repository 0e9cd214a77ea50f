//! Accepts connections for a gRPC server: plain ones, or TLS with the files as they are when a connection begins.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use muster_proto::limits::{HANDSHAKE_TIMEOUT, MAX_CONNECTIONS, MAX_HANDSHAKES};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;

use crate::conn::{Conn, Io, Peer};
use crate::explain::explain;
use crate::identity::Identity;
use crate::tls::Tls;

/// Strangers are told of this often; the others are counted.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// The connections of a listener. Whoever fails to prove who it is costs a log line and is not among them.
pub struct Incoming {
    connections: mpsc::Receiver<io::Result<Conn>>,
}

impl Incoming {
    /// Begins to accept, with TLS if there are certificates. Must be called inside a runtime; ends when it is dropped.
    pub fn new(listener: TcpListener, tls: Option<Tls>) -> Self {
        let (ready, connections) = mpsc::channel(MAX_HANDSHAKES);
        let door = Door {
            tls,
            ready,
            handshakes: Arc::new(Semaphore::new(MAX_HANDSHAKES)),
            slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            log: Arc::default(),
        };
        tokio::spawn(door.watch(listener));
        Self { connections }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Conn>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.connections.poll_recv(cx)
    }
}

/// When the last refusal was logged, and how many were not.
#[derive(Debug, Default)]
struct Log {
    last: Option<Instant>,
    silent: u64,
}

struct Door {
    tls: Option<Tls>,
    ready: mpsc::Sender<io::Result<Conn>>,
    handshakes: Arc<Semaphore>,
    slots: Arc<Semaphore>,
    log: Arc<Mutex<Log>>,
}

impl Door {
    async fn watch(self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.ready.closed() => return,
            };
            let Ok((stream, address)) = accepted else {
                // Out of file descriptors, most likely: they come back.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
                refuse(&self.log, address, &format!("{MAX_CONNECTIONS} connections are open"));
                continue;
            };
            // Nobody needs to wait for a small message to fill a packet.
            let _ = stream.set_nodelay(true);
            match &self.tls {
                None => {
                    let peer = Peer { address, identity: None };
                    let _ = self.ready.send(Ok(Conn::new(Io::Left(stream), peer, slot))).await;
                }
                Some(tls) => self.shake(tls.clone(), stream, address, slot),
            }
        }
    }

    /// A task of its own: nobody waits for a stranger.
    fn shake(&self, tls: Tls, stream: TcpStream, address: SocketAddr, slot: OwnedSemaphorePermit) {
        let Ok(permit) = Arc::clone(&self.handshakes).try_acquire_owned() else {
            return refuse(
                &self.log,
                address,
                &format!("{MAX_HANDSHAKES} others have not finished their handshake"),
            );
        };
        let (ready, log) = (self.ready.clone(), Arc::clone(&self.log));
        tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::clone(&tls.current().server));
            let shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
            drop(permit);
            let stream = match shaken {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    let reason = explain(&error).map_or_else(|| error.to_string(), |trouble| trouble.text);
                    return refuse(&log, address, &reason);
                }
                Err(_) => return refuse(&log, address, "its handshake took too long"),
            };
            let certificates = stream.get_ref().1.peer_certificates();
            let identity = certificates.and_then(|chain| Identity::of(chain.first()?));
            let Some(identity) = identity else {
                return refuse(&log, address, "its certificate has no role");
            };
            let peer = Peer { address, identity: Some(identity) };
            let _ = ready.send(Ok(Conn::new(Io::Right(Box::new(stream)), peer, slot))).await;
        });
    }
}

fn refuse(log: &Mutex<Log>, address: SocketAddr, reason: &str) {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if log.last.is_some_and(|last| now.duration_since(last) < LOG_EVERY) {
        log.silent += 1;
        return;
    }
    log.last = Some(now);
    match std::mem::take(&mut log.silent) {
        0 => tracing::warn!("refused a connection from {address}: {reason}"),
        more => tracing::warn!("refused a connection from {address}: {reason}; {more} others before"),
    }
}
