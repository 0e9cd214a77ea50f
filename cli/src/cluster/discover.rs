//! How a coordinator finds agents that nobody lists: arguments and what they mean.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use muster_coordinator::discovery::dns::NameServers;
use muster_coordinator::discovery::kubernetes::{Access, CareOptions, DEFAULT_PORT, Scale, Service};
use muster_coordinator::net::{Cluster, Discover};

/// Who is asked for names, as every program on this machine knows it.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Arguments for agents that a cluster lists.
#[derive(Debug, Clone, Args)]
pub struct DiscoverArgs {
    /// Find agents: kubernetes:SERVICE[.NAMESPACE][:PORT] by a headless Service, or dns:NAME by SRV records
    #[arg(long, value_name = "WAY")]
    pub discover: Vec<String>,
    /// Tell why pods of --discover kubernetes are not there; may read pods
    #[arg(long)]
    pub explain_pods: bool,
    /// Keep autoscalers from machines of pods that train; may read and patch pods
    #[arg(long)]
    pub protect_pods: bool,
    /// Put events on pods that a run takes or gives back; may read pods and create events
    #[arg(long)]
    pub pod_events: bool,
    /// PodDisruptionBudget that allows no eviction while a run trains; may patch it
    #[arg(long, value_name = "NAME")]
    pub disruption_budget: Option<String>,
    /// StatefulSet that is scaled for the queue; may read and patch its scale
    #[arg(long, value_name = "NAME", requires = "scale_max")]
    pub scale_statefulset: Option<String>,
    /// Fewest pods that it is scaled to
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=4096))]
    pub scale_min: u32,
    /// Most pods that it is scaled to
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub scale_max: Option<u32>,
    /// Pods that no run needs for this long are dropped
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub scale_idle: u64,
    /// Namespace of this pod
    #[arg(long, hide = true, value_name = "NAME", env = "MUSTER_POD_NAMESPACE")]
    pub pod_namespace: Option<String>,
}

impl DiscoverArgs {
    /// The ways that are asked for.
    ///
    /// # Errors
    /// A way that can't be read, or options for pods without a Service that lists them.
    pub async fn ways(&self) -> anyhow::Result<Vec<Discover>> {
        let mut ways = Vec::new();
        let mut care = Some(self.care()?);
        for way in &self.discover {
            match way.split_once(':') {
                Some(("kubernetes", service)) => {
                    // The first one has the options.
                    let care = care.take().unwrap_or_default();
                    ways.push(Discover::Kubernetes(Box::new(self.cluster(service, care).await?)));
                }
                Some(("dns", name)) => {
                    let name = match name.starts_with('_') {
                        true => name.to_owned(),
                        false => format!("_{DEFAULT_PORT}._tcp.{name}"),
                    };
                    ways.push(Discover::Dns { name, servers: name_servers()? });
                }
                _ => bail!(
                    "--discover {way:?} is no way to find agents: give kubernetes:SERVICE[.NAMESPACE] or dns:NAME"
                ),
            }
        }
        if care.is_some_and(|care| care.is_wanted()) {
            bail!("options for pods need --discover kubernetes:SERVICE, which says whose pods");
        }
        Ok(ways)
    }

    async fn cluster(&self, service: &str, care: CareOptions) -> anyhow::Result<Cluster> {
        let access = Access::infer().await.map_err(|error| error.to_string());
        let own = access.as_ref().ok().map(|access| access.namespace.as_str());
        let service = Service::parse(service, self.pod_namespace.as_deref().or(own))
            .context("--discover kubernetes:SERVICE[.NAMESPACE][:PORT]")?;
        // Without name servers the API server is still worth asking.
        let servers = match (name_servers(), &access) {
            (Ok(servers), _) => Some(servers),
            (Err(error), Ok(_)) => {
                tracing::debug!("no name servers: {error:#}");
                None
            }
            (Err(error), Err(reason)) => {
                return Err(
                    error.context(format!("no way to find agents: no API server ({reason}), and no DNS"))
                );
            }
        };
        Ok(Cluster { service, access, servers, care })
    }

    fn care(&self) -> anyhow::Result<CareOptions> {
        let scale = self.scale_statefulset.clone().map(|statefulset| Scale {
            statefulset,
            min: self.scale_min,
            max: self.scale_max.unwrap_or(self.scale_min),
            idle: Duration::from_secs(self.scale_idle),
        });
        if let Some(scale) = scale.as_ref().filter(|scale| scale.min > scale.max) {
            bail!("--scale-min {} is more than --scale-max {}", scale.min, scale.max);
        }
        Ok(CareOptions {
            explain: self.explain_pods,
            scale,
            protect: self.protect_pods,
            budget: self.disruption_budget.clone(),
            events: self.pod_events,
        })
    }
}

fn name_servers() -> anyhow::Result<NameServers> {
    let text = std::fs::read_to_string(RESOLV_CONF).with_context(|| format!("can't read {RESOLV_CONF}"))?;
    Ok(NameServers::from_resolv_conf(&text)?)
}
