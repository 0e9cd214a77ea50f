//! Ways of discovery that a coordinator is given, and the care for the pods of a cluster.

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::Connector;
use crate::discovery::dns::{DnsError, NameServers, Srv};
use crate::discovery::kubernetes::{Access, Care, CareOptions, Kubernetes, Service};
use crate::discovery::{Demand, Discovery, Standing};
use crate::owner::Input;

/// One way to find agents.
#[derive(Debug)]
pub enum Discover {
    /// Agents by SRV records.
    Dns {
        /// The name.
        name: String,
        /// Who is asked.
        servers: NameServers,
    },
    /// Agents that are pods.
    Kubernetes(Box<Cluster>),
}

/// Agents that are pods of a headless Service.
#[derive(Debug)]
pub struct Cluster {
    /// The Service.
    pub service: Service,
    /// The API server, or why it can't be asked.
    pub access: Result<Access, String>,
    /// Who is asked where the API server may not be; none: nobody.
    pub servers: Option<NameServers>,
    /// What else is done for the pods.
    pub care: CareOptions,
}

/// Ways that have begun.
pub(super) struct Ways {
    dns: Vec<Srv>,
    pods: Vec<(Kubernetes, Option<Care>)>,
}

/// Tasks that end with this.
pub(super) struct Tasks(Vec<JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Begins to look for agents.
pub(super) fn start(ways: Vec<Discover>, demand: &watch::Receiver<Demand>) -> Result<Ways, DnsError> {
    let mut started = Ways { dns: Vec::new(), pods: Vec::new() };
    for way in ways {
        match way {
            Discover::Dns { name, servers } => started.dns.push(Srv::new(&name, servers, demand.clone())?),
            Discover::Kubernetes(cluster) => {
                let Cluster { service, access, servers, care } = *cluster;
                let srv = |servers| Srv::new(&service.srv_name(), servers, demand.clone());
                let dns = servers.map(srv).transpose()?;
                let client = access.as_ref().map(|access| access.client.clone()).map_err(Clone::clone);
                let care = match &access {
                    Ok(access) if care.is_wanted() => Some(Care::new(access.client.clone(), &service, care)),
                    _ => None,
                };
                started.pods.push((Kubernetes::start(&service, client, dns), care));
            }
        }
    }
    Ok(started)
}

impl Ways {
    /// How things stand with each of them.
    pub(super) fn standings(&self) -> Vec<Standing> {
        let pods = self.pods.iter().map(|(pods, _)| pods.standing());
        pods.chain(self.dns.iter().map(Discovery::standing)).collect()
    }

    /// Hands what they find to a connector, and what else is known of pods to the owner.
    pub(super) fn join(
        self,
        connector: &mut Connector,
        owner: &mpsc::Sender<Input>,
        demand: &watch::Receiver<Demand>,
    ) -> Tasks {
        let mut tasks = Vec::new();
        for (pods, care) in self.pods {
            connector.add(pods);
            // It ends with the owner.
            tasks.extend(care.map(|care| tokio::spawn(care.run(owner.downgrade(), demand.clone()))));
        }
        self.dns.into_iter().for_each(|dns| connector.add(dns));
        Tasks(tasks)
    }
}
