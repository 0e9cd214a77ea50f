//! `muster coordinator`.

use std::time::Duration;

use anyhow::Context;
use muster_coordinator::gang::Policy;
use muster_coordinator::net::{Guard, Metrics, Server, serve};
use muster_coordinator::store::Store;
use muster_tls::{Role, Tokens};

use super::args::CoordinatorArgs;
use super::health::Health;
use crate::exit::Exit;

/// Serves until a signal. Runs go on without it.
///
/// # Errors
/// State or an address that can't be used.
pub fn run(args: &CoordinatorArgs) -> anyhow::Result<Exit> {
    let security = args.tls.load(Role::Coordinator)?;
    security.may_listen(args.listen)?;
    let tokens = args.tokens.as_deref().map(Tokens::load).transpose()?;
    let store = Store::open(&args.state)?;
    let runtime = super::server_runtime()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(args.listen).await;
        let listener = listener.with_context(|| format!("can't listen on {}", args.listen))?;
        tracing::info!("the coordinator listens on {}", listener.local_addr()?);
        match &security.tls {
            Some(tls) => tracing::info!("it is {}, and so must others prove who they are", tls.identity()),
            None if !args.listen.ip().is_loopback() => {
                tracing::warn!(
                    "whoever reaches {} can start programs on the nodes: keep it inside",
                    args.listen
                );
            }
            None => {}
        }
        let guard = Guard { security, tokens };
        let policy = Policy { wait_for_ranks: Duration::from_secs(args.wait_for_ranks), ..Policy::default() };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let server = Server {
            listener,
            store,
            agents: args.agents.clone(),
            discover: args.discover.ways().await?,
            tenant_limit: args.tenant_limit,
            policy,
            version,
            guard,
        };
        let health = Health::start(args.health_listen)?;
        let http = super::metrics::listen(args.metrics).await?;
        let started = |metrics: Metrics| {
            if let Some(http) = http {
                let text = move || {
                    let metrics = metrics.clone();
                    async move { metrics.text().await }
                };
                tokio::spawn(super::metrics::serve(http, text));
            }
            tokio::spawn(async move { health.ready().await });
        };
        serve(server, stop_signal()?, started).await?;
        anyhow::Ok(())
    })?;
    // Streams of those who watch must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(Exit::Success)
}

/// Ready at the first SIGTERM or Ctrl-C.
pub fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut term = signal(SignalKind::terminate()).context("can't handle signals")?;
    let mut int = signal(SignalKind::interrupt()).context("can't handle signals")?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    })
}
