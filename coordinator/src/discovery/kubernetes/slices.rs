//! EndpointSlices of one Service, merged into agents: a pure function of what the server has told.
//!
//! A pod may be in two slices while it moves between them, and has one slice for each address family; its identity is
//! the pod's UID. `ready` is true for every endpoint of a Service that publishes pods that are not ready, so only
//! `serving` and `terminating` count.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::ResourceExt;
use muster_proto::limits::MAX_NODES;

use super::follow::Change;
use crate::discovery::{Found, ListedPod};

/// The slices that are known.
#[derive(Debug, Default)]
pub struct Slices {
    known: BTreeMap<String, EndpointSlice>,
}

/// One pod out of all slices.
#[derive(Debug)]
struct Merged {
    pod: ListedPod,
    v4: Option<SocketAddr>,
    v6: Option<SocketAddr>,
}

impl Slices {
    /// Takes in a change; says whether there was one.
    pub fn take(&mut self, change: Change<EndpointSlice>) -> bool {
        match change {
            Change::All(slices) => {
                let slices = slices.into_iter().take(MAX_NODES);
                self.known = slices.map(|slice| (slice.name_any(), slice)).collect();
            }
            Change::Put(slice) => {
                if self.known.len() < MAX_NODES || self.known.contains_key(&slice.name_any()) {
                    self.known.insert(slice.name_any(), slice);
                }
            }
            Change::Gone(slice) => drop(self.known.remove(&slice.name_any())),
            Change::Alive => return false,
        }
        true
    }

    /// The agents, at the port of this name, or the only port.
    pub fn found(&self, port_name: &str) -> Found {
        let mut pods: BTreeMap<String, Merged> = BTreeMap::new();
        for slice in self.known.values() {
            // Names (FQDN) have no place here: agents are dialled by address.
            let is_v4 = match slice.address_type.as_str() {
                "IPv4" => true,
                "IPv6" => false,
                _ => continue,
            };
            let Some(port) = port(slice, port_name) else { continue };
            for endpoint in &slice.endpoints {
                let address = endpoint.addresses.first().and_then(|text| text.parse::<IpAddr>().ok());
                let Some(address) = address.map(|ip| SocketAddr::new(ip, port)) else { continue };
                let pod = pod(endpoint);
                let key = if pod.uid.is_empty() { address.to_string() } else { pod.uid.clone() };
                let merged = Merged { pod, v4: is_v4.then_some(address), v6: (!is_v4).then_some(address) };
                match pods.get_mut(&key) {
                    Some(known) => known.add(merged),
                    None => drop(pods.insert(key, merged)),
                }
            }
        }
        // One pod has one session; both families lead to the same agent.
        let address = |merged: &Merged| merged.v4.or(merged.v6);
        let mut found = Found::new();
        for merged in pods.into_values() {
            let Some(address) = address(&merged) else { continue };
            let place = found.entry(address.to_string()).or_insert(None);
            // An address is given to another pod as soon as its last owner is gone.
            if place.as_ref().is_none_or(|other: &ListedPod| other.terminating) {
                *place = Some(merged.pod);
            }
        }
        found
    }
}

impl Merged {
    fn add(&mut self, other: Self) {
        self.v4 = self.v4.or(other.v4);
        self.v6 = self.v6.or(other.v6);
        // A pod never comes back from its deletion: the slice that says so is the newer one.
        self.pod.terminating |= other.pod.terminating;
        self.pod.ready = self.pod.ready && other.pod.ready;
    }
}

fn port(slice: &EndpointSlice, name: &str) -> Option<u16> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let named = ports.iter().find(|port| port.name.as_deref() == Some(name));
    let only = (ports.len() == 1).then(|| &ports[0]);
    u16::try_from(named.or(only)?.port?).ok().filter(|port| *port != 0)
}

fn pod(endpoint: &Endpoint) -> ListedPod {
    let target = endpoint.target_ref.clone().unwrap_or_default();
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    ListedPod {
        name: endpoint.hostname.clone().or(target.name).unwrap_or_default(),
        uid: target.uid.unwrap_or_default(),
        machine: endpoint.node_name.clone().unwrap_or_default(),
        zone: endpoint.zone.clone().unwrap_or_default(),
        ready: conditions.serving.or(conditions.ready).unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
    }
}
