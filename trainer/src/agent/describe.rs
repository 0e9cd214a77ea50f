//! What an agent says about its node.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use muster_proto::v1::{self, NodeReport};

use super::AgentOptions;
use crate::topology::{HostFacts, NumaNode};

/// Identity of this boot of the machine; empty if the kernel doesn't tell.
pub fn boot_id() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// A name for this start of the agent.
pub fn new_incarnation() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", since.as_micros(), std::process::id())
}

/// The report of a node, without its ranks.
pub(super) fn node_report(options: &AgentOptions) -> NodeReport {
    let facts = &options.facts;
    NodeReport {
        node: options.node.clone(),
        incarnation: options.incarnation.clone(),
        boot_id: options.boot_id.clone(),
        version: options.version.clone(),
        protocol: v1::PROTOCOL,
        numa_nodes: facts.nodes.iter().map(|node| numa_node(facts, node)).collect(),
        memory_bytes: facts.memory.usable(),
        quota_cpus: facts.quota.as_ref().map(|quota| quota.cpus),
        isa: options.isa.clone(),
        listen: options.listen.clone(),
        ranks: Vec::new(),
        pod: options.pod.clone(),
    }
}

fn numa_node(facts: &HostFacts, node: &NumaNode) -> v1::NumaNode {
    let cores = facts.cores.iter().filter(|core| core.cpus.iter().any(|cpu| node.cpus.contains(cpu)));
    let package = cores.clone().next().map_or(0, |core| core.package);
    let most = cores.clone().map(|core| core.cpus.len()).max().unwrap_or(0);
    let nth = |nth: usize| cores.clone().filter_map(move |core| core.cpus.get(nth).copied());
    v1::NumaNode {
        index: node.node,
        cpus: (0..most).flat_map(nth).collect(),
        physical_cores: cores.clone().count() as u32,
        memory_bytes: node.memory_bytes,
        package,
    }
}
