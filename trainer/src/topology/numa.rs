//! NUMA nodes with CPUs that this process may use, from hwloc or, where it fails, from `/sys`.

use std::fs;
use std::path::Path;

use hwlocality::Topology;
use hwlocality::object::types::ObjectType;

use super::cpulist;

/// A NUMA node, restricted to the allowed CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumaNode {
    /// Number of the node in the operating system.
    pub node: u32,
    /// Its allowed CPUs, ascending, at least one.
    pub cpus: Vec<u32>,
    /// Its memory in bytes; 0 if unknown.
    pub memory_bytes: u64,
}

/// Which source the nodes were read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodesFrom {
    /// The hwloc library.
    Hwloc,
    /// The kernel's `/sys` tree.
    Sys,
}

/// Reads the nodes of this machine through hwloc.
pub(super) fn detect(allowed: &[u32]) -> Result<Vec<NumaNode>, String> {
    let topology = Topology::new().map_err(|error| error.to_string())?;
    Ok(hwloc_nodes(&topology, allowed))
}

/// The nodes of an hwloc topology that have an allowed CPU.
pub fn hwloc_nodes(topology: &Topology, allowed: &[u32]) -> Vec<NumaNode> {
    let mut nodes: Vec<NumaNode> = topology
        .objects_with_type(ObjectType::NUMANode)
        .filter_map(|object| {
            let set = object.cpuset()?;
            let cpus = allowed.iter().copied().filter(|&cpu| set.is_set(cpu as usize)).collect();
            let node = u32::try_from(object.os_index()?).ok()?;
            Some(NumaNode { node, cpus, memory_bytes: object.total_memory() })
        })
        .filter(|node| !node.cpus.is_empty())
        .collect();
    nodes.sort_by_key(|node| node.node);
    nodes
}

/// The nodes in `/sys` below `root`; one node of all allowed CPUs if the kernel shows none.
pub(super) fn from_sys(root: &Path, allowed: &[u32]) -> Vec<NumaNode> {
    let dir = root.join("sys/devices/system/node");
    let names = fs::read_dir(&dir).into_iter().flatten().flatten();
    let mut nodes: Vec<NumaNode> = names
        .filter_map(|entry| {
            let node = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
            let cpus = cpulist::intersect(allowed, &cpulist::parse(&list)?);
            Some(NumaNode { node, cpus, memory_bytes: node_memory(&entry.path()) })
        })
        .filter(|node| !node.cpus.is_empty())
        .collect();
    nodes.sort_by_key(|node| node.node);
    if nodes.is_empty() {
        nodes.push(NumaNode { node: 0, cpus: allowed.to_vec(), memory_bytes: 0 });
    }
    nodes
}

/// `Node 0 MemTotal: 24731800 kB`
fn node_memory(dir: &Path) -> u64 {
    let text = fs::read_to_string(dir.join("meminfo")).unwrap_or_default();
    let line = text.lines().find(|line| line.contains("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().rev().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
