//! Arguments of the commands of a cluster.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

use super::discover::DiscoverArgs;
use super::pod::PodArgs;
use super::security::{TlsArgs, TokenArgs};
use crate::args::RunArgs;

/// Arguments of `muster coordinator`.
#[derive(Debug, Clone, Args)]
pub struct CoordinatorArgs {
    /// Where to listen; beyond loopback with certificates, or with --insecure
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7070")]
    pub listen: SocketAddr,
    /// Directory of its state, which survives restarts
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// Agents as host:port; others announce themselves (trainer --coordinator)
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub agents: Vec<String>,
    #[command(flatten)]
    pub discover: DiscoverArgs,
    /// How long a run below its minimum of ranks waits before it saves and goes back to the queue
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub wait_for_ranks: u64,
    /// Runs of one tenant (submit --tenant) that train at once; default: as many as there is room for
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub tenant_limit: Option<u32>,
    /// Where to serve metrics for Prometheus, at /metrics
    #[arg(long, value_name = "IP:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Where to serve health for probes, without TLS
    #[arg(long, value_name = "IP:PORT")]
    pub health_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub tls: TlsArgs,
    /// File of the tokens of those who may submit and cancel runs, from `muster certs token`; default: everybody may
    #[arg(long, value_name = "FILE", env = "MUSTER_TOKENS")]
    pub tokens: Option<PathBuf>,
}

/// Arguments of `muster trainer`.
#[derive(Debug, Clone, Args)]
pub struct TrainerArgs {
    /// Where to listen for the coordinator
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7071")]
    pub listen: SocketAddr,
    /// Coordinator to announce this agent to, as host:port
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator: Option<String>,
    /// Address that is announced; default: the one that the coordinator sees
    #[arg(long, value_name = "IP:PORT", requires = "coordinator")]
    pub advertise: Option<SocketAddr>,
    /// Name of this node, unique in the cluster; default: the host name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// IP address on which ranks of this node listen for their peers; default: that of --advertise or --listen
    #[arg(long, value_name = "IP")]
    pub rank_listen: Option<IpAddr>,
    /// Time that ranks have to leave at a step boundary after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub leave_timeout: u64,
    /// Grace period of the pod: ranks have all of it but 15 s to leave, instead of --leave-timeout
    #[arg(long, value_name = "SECONDS", conflicts_with = "leave_timeout", value_parser = clap::value_parser!(u64).range(20..=86_400))]
    pub grace_seconds: Option<u64>,
    /// Where to serve metrics for Prometheus, at /metrics
    #[arg(long, value_name = "IP:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Where to serve health for probes, without TLS
    #[arg(long, value_name = "IP:PORT")]
    pub health_listen: Option<SocketAddr>,
    #[command(flatten)]
    pub pod: PodArgs,
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Program of a rank instead of this one, for tests
    #[arg(long, value_name = "PATH", hide = true)]
    pub rank_program: Option<PathBuf>,
}

/// Where the coordinator is.
#[derive(Debug, Clone, Args)]
pub struct ClientArgs {
    /// The coordinator, as host:port
    #[arg(long, value_name = "HOST:PORT", env = "MUSTER_COORDINATOR", default_value = "127.0.0.1:7070")]
    pub coordinator: String,
    #[command(flatten)]
    pub tls: TlsArgs,
    #[command(flatten)]
    pub token: TokenArgs,
}

/// Arguments of `muster submit`.
#[derive(Debug, Clone, Args)]
pub struct SubmitArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Higher goes first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    pub priority: i32,
    /// Continue from the newest checkpoint of the output directory
    #[arg(long)]
    pub resume: bool,
    /// Stay until the run is over, and end with its exit code; of a sweep: until all are, with the first failure
    #[arg(long)]
    pub wait: bool,
    /// Whose run it is, for the coordinator's --tenant-limit
    #[arg(long, value_name = "NAME", env = "MUSTER_TENANT")]
    pub tenant: Option<String>,
    /// Queue a run for each of these values, and for each combination with other sweeps
    #[arg(long, value_name = "KEY=VALUE,VALUE...")]
    pub sweep: Vec<String>,
    /// Queue a run for each line of this file: KEY=VALUE pairs, separated by spaces or tabs
    #[arg(long, value_name = "FILE", conflicts_with = "sweep")]
    pub sweep_file: Option<PathBuf>,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// Arguments of `muster runs`.
#[derive(Debug, Clone, Args)]
pub struct RunsArgs {
    /// Runs that are over, too
    #[arg(long)]
    pub all: bool,
    /// Most runs to show
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    pub limit: u32,
    /// Results of a sweep, the best one first
    #[arg(long, value_name = "SWEEP", conflicts_with_all = ["all", "limit"])]
    pub sweep: Option<String>,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// Arguments of `muster status` and `muster cancel`.
#[derive(Debug, Clone, Args)]
pub struct OneRunArgs {
    /// Id of the run, the beginning of it, or its name
    #[arg(value_name = "RUN")]
    pub run: String,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// Arguments of `muster logs`.
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// Id of the run, the beginning of it, or its name
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Stay and show new lines until the run is over
    #[arg(short, long)]
    pub follow: bool,
    /// Only the last lines; 0: all that are kept
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub tail: u32,
    #[command(flatten)]
    pub client: ClientArgs,
}

/// Arguments of `muster nodes`.
#[derive(Debug, Clone, Args)]
pub struct NodesArgs {
    #[command(flatten)]
    pub client: ClientArgs,
}
