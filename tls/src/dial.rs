//! Connects to a part of a cluster: both ends have proven who they are when the channel is there.

use std::io;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use muster_proto::limits::{CONNECT_TIMEOUT, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT};
use rustls::pki_types::ServerName;
use tokio::io::AsyncBufReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tonic::transport::{Channel, Endpoint, Error, Uri};

use crate::tls::Tls;

/// What is dialled, and so what must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A coordinator, at a name that stands in its certificate.
    Coordinator,
    /// An agent, wherever discovery found it.
    Agent,
}

/// Connects to `host:port`, with TLS if there are certificates.
///
/// # Errors
/// Nobody there, or somebody else; [`crate::explain`] says what TLS has to do with it.
pub async fn dial(address: &str, target: Target, tls: Option<&Tls>) -> Result<Channel, Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let tls = tls.cloned();
    let connector = tower::service_fn(move |uri: Uri| connect(uri, target, tls.clone()));
    endpoint.connect_with_connector(connector).await
}

/// A connection without or with TLS.
type Wire = Either<TcpStream, Box<TlsStream<TcpStream>>>;

async fn connect(uri: Uri, target: Target, tls: Option<Tls>) -> io::Result<TokioIo<Wire>> {
    let authority = uri.authority().ok_or_else(|| io::Error::other("an address has a host and a port"))?;
    let stream = TcpStream::connect(authority.as_str()).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(TokioIo::new(Wire::Left(stream))) };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let name =
        ServerName::try_from(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let configs = tls.current();
    let config = match target {
        Target::Coordinator => &configs.to_coordinator,
        Target::Agent => &configs.to_agent,
    };
    let mut stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
    // Whether the other end takes our certificate is known when it says something. HTTP/2 servers speak at once.
    if stream.fill_buf().await?.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
    }
    Ok(TokioIo::new(Wire::Right(Box::new(stream))))
}
