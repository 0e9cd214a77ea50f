//! `muster trainer`: the node agent as a process.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use muster_kernels::isa;
use muster_proto::limits::{
    ANNOUNCE_INTERVAL, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, MAX_AGENT_REQUESTS, MAX_MESSAGE_BYTES,
    REQUEST_TIMEOUT,
};
use muster_proto::v1::AnnounceRequest;
use muster_proto::v1::agent_server::AgentServer;
use muster_tls::{Incoming, Role, Security, require};
use muster_trainer::agent::{self, AgentOptions, AgentService, Asker, Handle};
use tokio::net::TcpListener;
use tonic::Request;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;

use super::args::TrainerArgs;
use super::client::{Client, Line};
use super::coordinator::stop_signal;
use super::health::Health;
use crate::exit::Exit;
use crate::host;

/// What a grace period holds beside the leaving of ranks: ending them, and the last events.
const LAST_SECONDS: u64 = 15;

/// How often it is looked whether all ranks have left.
const LEFT_POLL: Duration = Duration::from_millis(50);

/// Time for the last events to reach the coordinator.
const LAST_EVENTS: Duration = Duration::from_millis(300);

/// Serves until a signal; then its ranks leave at a step boundary, and it ends.
///
/// # Errors
/// An address that can't be listened on, or a system that refuses threads.
pub fn run(args: &TrainerArgs) -> anyhow::Result<Exit> {
    let security = args.tls.load(Role::Trainer)?;
    security.may_listen(args.listen)?;
    // Checked before anything listens.
    let line = args.coordinator.as_deref().map(|at| Line::new(at, security.clone())).transpose()?;
    let agent = Handle::start(options(args)?).context("can't start the agent")?;
    let runtime = super::server_runtime()?;
    runtime.block_on(serve(args, &agent, security, line))?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(Exit::Success)
}

fn options(args: &TrainerArgs) -> anyhow::Result<AgentOptions> {
    let own = || std::env::current_exe().context("can't find this program");
    let (program, rank_args) = match &args.rank_program {
        Some(program) => (program.clone(), Vec::new()),
        None => (own()?, rank_args(args)?),
    };
    let ip = args.rank_listen.or(args.advertise.map(|address| address.ip())).or(args.pod.pod_ip);
    let ip = ip.unwrap_or(args.listen.ip());
    anyhow::ensure!(
        !ip.is_unspecified(),
        "ranks need an address that their peers reach, not {ip}: give --rank-listen"
    );
    Ok(AgentOptions {
        node: args.name.clone().or(args.pod.pod_name.clone()).map_or_else(host_name, Ok)?,
        incarnation: agent::new_incarnation(),
        boot_id: agent::boot_id(),
        version: env!("CARGO_PKG_VERSION").into(),
        isa: isa::detect().chosen.name().into(),
        listen: ip.to_string(),
        program,
        args: rank_args,
        facts: host::detect(),
        pod: args.pod.pod(),
        leave_timeout: Duration::from_secs(
            args.grace_seconds.map_or(args.leave_timeout, |grace| grace.saturating_sub(LAST_SECONDS)),
        ),
        frozen_after: muster_proto::limits::RANK_FROZEN_AFTER,
    })
}

/// Ranks have the certificates of their agent.
fn rank_args(args: &TrainerArgs) -> anyhow::Result<Vec<OsString>> {
    let mut rank: Vec<OsString> = vec!["rank".into()];
    if let Some(files) = args.tls.files()? {
        for (option, path) in [("--tls-ca", files.ca), ("--tls-cert", files.cert), ("--tls-key", files.key)] {
            let path = std::path::absolute(&path).with_context(|| format!("can't use {}", path.display()))?;
            rank.extend([option.into(), path.into()]);
        }
    }
    Ok(rank)
}

fn host_name() -> anyhow::Result<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    anyhow::ensure!(!name.is_empty(), "this machine has no host name: give --name");
    Ok(name.to_owned())
}

async fn serve(
    args: &TrainerArgs,
    agent: &Handle,
    security: Security,
    line: Option<Line>,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| format!("can't listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    let health = Health::start(args.health_listen)?;
    tracing::info!("the agent of this node listens on {address}");
    let asker = agent.asker();
    let announcing = line.map(|line| tokio::spawn(announce(line, args.advertise, address, asker.clone())));
    if let Some(http) = super::metrics::listen(args.metrics).await? {
        let asker = asker.clone();
        let text = move || {
            let asker = asker.clone();
            async move { asker.metrics().await.ok() }
        };
        tokio::spawn(super::metrics::serve(http, text));
    }
    let stop = stop_signal()?;
    let left = async {
        stop.await;
        health.leaving().await;
        asker.leave("the agent got a signal to end").await;
        while !agent.is_finished() {
            tokio::time::sleep(LEFT_POLL).await;
        }
        tracing::info!("all ranks have left");
        // The last events are on their way; the coordinator keeps its connection as long as it can.
        tokio::time::sleep(LAST_EVENTS).await;
    };
    let (reporter, health_service) = tonic_health::server::health_reporter();
    reporter.set_serving::<AgentServer<AgentService>>().await;
    let service = AgentServer::new(AgentService::new(asker.clone()))
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let only_coordinators = |request: Request<()>| require(&request, Role::Coordinator).map(|()| request);
    let service = InterceptedService::new(service, only_coordinators);
    health.ready().await;
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
        .max_concurrent_streams(MAX_AGENT_REQUESTS)
        .timeout(REQUEST_TIMEOUT)
        .add_service(service)
        .add_service(health_service)
        .serve_with_incoming(Incoming::new(listener, security.tls));
    let served = tokio::select! {
        served = server => served.with_context(|| format!("the server on {address} ended")),
        () = left => Ok(()),
    };
    announcing.inspect(|task| task.abort());
    served
}

/// Tells the coordinator again and again where this agent is; it forgets agents that are silent.
async fn announce(line: Line, advertise: Option<SocketAddr>, listen: SocketAddr, agent: Asker) {
    let coordinator = line.address().to_owned();
    let mut was_heard = true;
    while let Ok(report) = agent.describe().await {
        let told = async {
            let address = match advertise {
                Some(address) => address,
                None => seen_address(&coordinator, listen).await?,
            };
            let mut client = Client::connect(&line).await?;
            let request = AnnounceRequest { address: address.to_string(), report: Some(report) };
            let call = client.rpc.announce(request);
            tokio::time::timeout(ANNOUNCE_INTERVAL, call).await??;
            anyhow::Ok(())
        };
        let told = told.await;
        match &told {
            Ok(()) if !was_heard => tracing::info!("announced to the coordinator at {coordinator} again"),
            Err(error) if was_heard => tracing::warn!("can't announce to the coordinator: {error:#}"),
            _ => {}
        }
        was_heard = told.is_ok();
        tokio::time::sleep(ANNOUNCE_INTERVAL).await;
    }
}

/// The address of this machine on the way to the coordinator.
async fn seen_address(coordinator: &str, listen: SocketAddr) -> anyhow::Result<SocketAddr> {
    if !listen.ip().is_unspecified() {
        return Ok(listen);
    }
    let any: IpAddr = if listen.is_ipv6() { [0u16; 8].into() } else { [0u8; 4].into() };
    // Connecting a UDP socket sends nothing; it only chooses the way.
    let socket = tokio::net::UdpSocket::bind((any, 0)).await?;
    socket.connect(coordinator).await.with_context(|| format!("no way to {coordinator}"))?;
    Ok(SocketAddr::new(socket.local_addr()?.ip(), listen.port()))
}
