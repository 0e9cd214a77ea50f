//! The coordinator's server: its service, health and reflection on one port.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use muster_proto::limits::{
    KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, MAX_CONCURRENT_REQUESTS, MAX_MESSAGE_BYTES, MAX_RUN_FILE_BYTES,
    REQUEST_TIMEOUT, RPC_TIMEOUT,
};
use muster_proto::v1::FILE_DESCRIPTOR_SET;
use muster_proto::v1::coordinator_server::CoordinatorServer;
use muster_tls::{Incoming, Security, Tokens};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::transport::Server as TonicServer;

use super::Connector;
use super::access::Access;
use super::discover::{self, Discover};
use super::service::Service;
use crate::discovery::dns::DnsError;
use crate::discovery::{Announced, Demand, Discovery, StaticList};
use crate::gang::Policy;
use crate::owner::{self, Input, OwnerError, OwnerOptions};
use crate::store::{Store, StoreError};

/// How long the owner may take for its last writes.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// How long requests may take that were under way when it was told to end.
const DRAIN: Duration = Duration::from_secs(1);

/// What keeps strangers away from a coordinator. The default is none of it.
#[derive(Debug, Default)]
pub struct Guard {
    /// Its certificates.
    pub security: Security,
    /// Tokens of people who may change something; none: everybody may.
    pub tokens: Option<Tokens>,
}

/// What a coordinator is given.
#[derive(Debug)]
pub struct Server {
    /// Where it listens; opened by the caller, who can say which port it is.
    pub listener: TcpListener,
    /// Its state.
    pub store: Store,
    /// Agents by `host:port`; others announce themselves.
    pub agents: Vec<String>,
    /// Agents that DNS or a cluster lists.
    pub discover: Vec<Discover>,
    /// Runs of one tenant that have nodes at once; none: as many as there is room for.
    pub tenant_limit: Option<u32>,
    /// The numbers by which gangs are run.
    pub policy: Policy,
    /// Version of Muster.
    pub version: String,
    /// What keeps strangers away.
    pub guard: Guard,
}

/// Why a coordinator ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its owner can't start.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// DNS can't be asked.
    #[error(transparent)]
    Dns(DnsError),
    /// The descriptors can't be served.
    #[error("the service descriptors can't be read")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The server broke.
    #[error("the server on {address} ended")]
    Server {
        /// Where it listened.
        address: SocketAddr,
        /// Why.
        #[source]
        source: tonic::transport::Error,
    },
    /// The listener can't say where it listens.
    #[error("the listener has no address")]
    Listener(#[source] std::io::Error),
}

impl From<StoreError> for ServeError {
    fn from(error: StoreError) -> Self {
        Self::Owner(OwnerError::Store(error))
    }
}

impl ServeError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Owner(error) => error.hint(),
            _ => None,
        }
    }
}

/// What a running coordinator can be asked for inside its process. It keeps nothing running.
#[derive(Debug, Clone)]
pub struct Metrics {
    owner: mpsc::WeakSender<Input>,
}

impl Metrics {
    /// What is known, in the text format of Prometheus; nothing once the coordinator ends, or while it is too busy.
    pub async fn text(&self) -> Option<String> {
        let (reply, answer) = oneshot::channel();
        let owner = self.owner.upgrade()?;
        owner.try_send(Input::Request(owner::Request::Metrics(reply))).ok()?;
        tokio::time::timeout(RPC_TIMEOUT, answer).await.ok()?.ok()
    }
}

/// Serves until `shutdown` is ready. Runs go on without the coordinator. `started` gets what tells the metrics.
///
/// # Errors
/// State that can't be read, or a server that breaks.
pub async fn serve(
    server: Server,
    shutdown: impl Future<Output = ()>,
    started: impl FnOnce(Metrics),
) -> Result<(), ServeError> {
    let address = server.listener.local_addr().map_err(ServeError::Listener)?;
    let coordinator = server.store.coordinator_id()?;
    let (announced, announcer) = Announced::new();
    let list = (!server.agents.is_empty()).then(|| StaticList::new(server.agents));
    let (demand, demanded) = watch::channel(Demand::default());
    let ways = discover::start(server.discover, &demanded).map_err(ServeError::Dns)?;
    let mut standings = ways.standings();
    standings.extend(list.as_ref().map(Discovery::standing));
    standings.push(announced.standing());
    let options = OwnerOptions {
        policy: server.policy,
        version: server.version,
        discovery: standings,
        demand,
        tenant_limit: server.tenant_limit,
    };
    let (owner, thread): (mpsc::Sender<Input>, _) = owner::start(server.store, options)?;
    started(Metrics { owner: owner.downgrade() });
    let Guard { security, tokens } = server.guard;
    let mut connector = Connector::new(coordinator, owner.clone(), security.clone());
    let carers = ways.join(&mut connector, &owner, &demanded);
    connector.add(announced);
    list.into_iter().for_each(|list| connector.add(list));
    let connector = tokio::spawn(connector.run());
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<CoordinatorServer<Service>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(ServeError::Reflection)?;
    let service = CoordinatorServer::new(Service { owner, announcer, access: Access { tokens } })
        .max_decoding_message_size(2 * MAX_RUN_FILE_BYTES as usize)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let (stopping, stopped) = oneshot::channel();
    let shutdown = async {
        shutdown.await;
        // Nobody listens only if the server has broken meanwhile.
        let _ = stopping.send(());
    };
    let served = TonicServer::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .max_concurrent_streams(MAX_CONCURRENT_REQUESTS)
        .timeout(REQUEST_TIMEOUT)
        .add_service(service)
        .add_service(health_service)
        .add_service(reflection)
        .serve_with_incoming_shutdown(Incoming::new(server.listener, security.tls), shutdown);
    let served = tokio::select! {
        served = served => served,
        // People who watch a run would keep the server for as long as the run lasts.
        () = drained(stopped) => Ok(()),
    };
    connector.abort();
    drop(carers);
    // The owner writes out what it has when nobody can send it anything; streams of those who watch may last longer.
    let deadline = Instant::now() + LAST_WRITES;
    while !thread.is_finished() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    served.map_err(|source| ServeError::Server { address, source })
}

/// Ready some time after the shutdown began.
async fn drained(stopped: oneshot::Receiver<()>) {
    match stopped.await {
        Ok(()) => tokio::time::sleep(DRAIN).await,
        Err(_) => std::future::pending().await,
    }
}
