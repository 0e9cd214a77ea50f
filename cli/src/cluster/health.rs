//! Health for probes that know no TLS: `grpc.health.v1.Health` on a plaintext port of its own.
//!
//! Three services: the nameless one says that the process answers and nothing else, so a long step never ends it;
//! `startup` that it has begun; `ready` that it takes work. A thread of its own serves them: compute threads and the
//! rest of the process may be as busy as they like.

use std::net::SocketAddr;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Services beside the nameless one.
const SERVICES: [&str; 2] = ["startup", "ready"];

/// The state that probes see; nobody sees it if no port was wanted.
#[derive(Clone, Default)]
pub struct Health {
    reporter: Option<HealthReporter>,
}

impl Health {
    /// Serves from now on until the process ends: alive, not yet started.
    ///
    /// # Errors
    /// An address that can't be listened on, or a system that refuses a thread.
    pub fn start(address: Option<SocketAddr>) -> anyhow::Result<Self> {
        let Some(address) = address else { return Ok(Self::default()) };
        let failed = || format!("can't serve health on {address}");
        let listener = std::net::TcpListener::bind(address).with_context(failed)?;
        listener.set_nonblocking(true).with_context(failed)?;
        tracing::info!("health for probes is at {}", listener.local_addr().with_context(failed)?);
        // A service that nothing was said about is unknown, which probes take for a failure.
        let (reporter, service) = tonic_health::server::health_reporter();
        let serve = async move {
            let listener = TcpListener::from_std(listener)?;
            let server = Server::builder().max_concurrent_streams(16).add_service(service);
            server.serve_with_incoming(TcpListenerStream::new(listener)).await?;
            anyhow::Ok(())
        };
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let served = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(serve));
            if let Err(error) = served {
                tracing::error!("health for probes ended: {error:#}");
            }
        };
        std::thread::Builder::new().name("muster-health".into()).spawn(run).with_context(failed)?;
        Ok(Self { reporter: Some(reporter) })
    }

    /// It has started and takes work.
    pub async fn ready(&self) {
        if let Some(reporter) = &self.reporter {
            set(reporter, &SERVICES, ServingStatus::Serving).await;
        }
    }

    /// It takes no more work; it is still alive.
    pub async fn leaving(&self) {
        if let Some(reporter) = &self.reporter {
            set(reporter, &["ready"], ServingStatus::NotServing).await;
        }
    }
}

async fn set(reporter: &HealthReporter, services: &[&str], status: ServingStatus) {
    for service in services {
        reporter.set_service_status(service, status).await;
    }
}
