//! `muster nodes`.

use muster_proto::v1::{ListNodesRequest, ListNodesResponse, Node};
use serde::Serialize;

use super::args::NodesArgs;
use super::client::{Client, Line};
use super::words;
use crate::args::Global;
use crate::commands::{print, table};
use crate::exit::Exit;

/// A node for programs.
#[derive(Debug, Serialize)]
struct NodeJson {
    name: String,
    address: String,
    state: String,
    reason: String,
    version: String,
    numa_nodes: usize,
    physical_cores: u32,
    memory_bytes: u64,
    isa: String,
    pod_uid: Option<String>,
    machine: Option<String>,
    zone: Option<String>,
}

/// Lists nodes: those that are connected, and those that are not, with the reason.
///
/// # Errors
/// A coordinator that can't be reached.
pub fn run(args: &NodesArgs, global: &Global) -> anyhow::Result<Exit> {
    let line = Line::of_client(&args.client)?;
    let answer = super::client_runtime()?.block_on(async {
        let client = Client::connect(&line).await?;
        let mut rpc = client.rpc.clone();
        client.answer(rpc.list_nodes(ListNodesRequest {})).await
    })?;
    let json: Vec<_> = answer.nodes.iter().map(node_json).collect();
    print(global, &json, || render(&answer))?;
    Ok(Exit::Success)
}

fn node_json(node: &Node) -> NodeJson {
    let report = node.report.clone().unwrap_or_default();
    let (own, listed) = (report.pod.clone().unwrap_or_default(), node.pod.clone().unwrap_or_default());
    // What the agent says of itself, or else what the cluster lists.
    let said = |own: String, listed: String| {
        Some(if own.is_empty() { listed } else { own }).filter(|t| !t.is_empty())
    };
    NodeJson {
        name: node.name.clone(),
        address: node.address.clone(),
        state: words::node_state(node),
        reason: node.reason.clone(),
        version: report.version,
        numa_nodes: report.numa_nodes.len(),
        physical_cores: report.numa_nodes.iter().map(|numa| numa.physical_cores).sum(),
        memory_bytes: report.memory_bytes,
        isa: report.isa,
        pod_uid: said(own.uid, listed.uid),
        machine: said(own.machine, listed.machine),
        zone: said(String::new(), listed.zone),
    }
}

fn render(answer: &ListNodesResponse) -> String {
    let row = |node: &Node| {
        let json = node_json(node);
        vec![
            json.name,
            json.address,
            json.state,
            json.numa_nodes.to_string(),
            json.physical_cores.to_string(),
            format!("{:.1}", json.memory_bytes as f64 / 1e9),
            json.isa,
            json.version,
            json.reason,
        ]
    };
    let rows: Vec<_> = answer.nodes.iter().map(row).collect();
    let header = ["node", "address", "state", "NUMA", "cores", "GB", "kernels", "version", "why"];
    format!("{}\nfound by {}\n", table(&header, &rows), answer.discovery)
}
