//! Who this pod is: arguments that the downward API fills in.

use std::net::IpAddr;

use clap::Args;
use muster_proto::v1::Pod;

/// Identity of a pod; outside Kubernetes all of it is absent.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Identity of a pod, from the downward API")]
pub struct PodArgs {
    /// Name of the pod, and of the node unless --name gives another one
    #[arg(long, value_name = "NAME", env = "MUSTER_POD_NAME")]
    pub pod_name: Option<String>,
    /// Identity of the pod; one that is made again has another
    #[arg(long, value_name = "UID", env = "MUSTER_POD_UID")]
    pub pod_uid: Option<String>,
    /// Its namespace
    #[arg(long, value_name = "NAME", env = "MUSTER_POD_NAMESPACE")]
    pub pod_namespace: Option<String>,
    /// Its address: ranks listen there unless --rank-listen says otherwise
    #[arg(long, value_name = "IP", env = "MUSTER_POD_IP")]
    pub pod_ip: Option<IpAddr>,
    /// The Kubernetes node that it runs on
    #[arg(long, value_name = "NAME", env = "MUSTER_NODE_NAME")]
    pub node_name: Option<String>,
}

impl PodArgs {
    /// The pod as it is reported.
    pub fn pod(&self) -> Option<Pod> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        self.pod_uid.as_ref().or(self.pod_name.as_ref())?;
        Some(Pod {
            name: text(&self.pod_name),
            uid: text(&self.pod_uid),
            namespace: text(&self.pod_namespace),
            ip: self.pod_ip.map(|ip| ip.to_string()).unwrap_or_default(),
            machine: text(&self.node_name),
        })
    }
}
