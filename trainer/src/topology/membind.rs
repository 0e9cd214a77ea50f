//! The memory policy of this process: pages from the NUMA nodes of its CPUs.
//!
//! Pages come from where they are touched first, and whoever touches them is bound by then, so this is a second
//! fastening: for threads that run on another node's CPU for a while. It is inherited by threads that start later.
#![allow(unsafe_code, reason = "a system call that no crate wraps")]

use std::path::Path;

use muster_proto::run_spec::Membind;

use super::HostFacts;

/// `MPOL_PREFERRED`, `MPOL_BIND`, `MPOL_PREFERRED_MANY` of `linux/mempolicy.h`.
const PREFERRED: i32 = 1;
const BIND: i32 = 2;
const PREFERRED_MANY: i32 = 5;
/// Nodes that the mask can name, as the kernel's own limit.
const MAX_NODES: usize = 1024;
const WORD: usize = u64::BITS as usize;

/// A policy that was demanded and that the system refused.
#[derive(Debug, thiserror::Error)]
#[error("ranks.membind is \"require\", but memory can't be bound to NUMA nodes {nodes:?}: {error}")]
pub struct MembindError {
    nodes: Vec<u32>,
    error: std::io::Error,
}

impl MembindError {
    /// The fix for the user.
    pub fn hint(&self) -> Option<String> {
        Some(
            "containers need the capability SYS_NICE or a seccomp profile that allows set_mempolicy; \
             with ranks.membind = \"auto\" memory comes from where bound threads touch it first"
                .into(),
        )
    }
}

/// What became of a wish for a memory policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// None is needed: memory is on one node, or all of it is this process's; or none was wished.
    Default,
    /// Pages come from these nodes as long as they have some.
    Preferred(Vec<u32>),
    /// Pages come from these nodes only.
    Bound(Vec<u32>),
    /// The system refused; first touch has to do.
    Refused(String),
}

/// Asks for memory from the NUMA nodes of this process's CPUs.
///
/// # Errors
/// Only for [`Membind::Require`]: the system refuses.
pub fn bind_memory(facts: &HostFacts, wanted: Membind) -> Result<MemoryPolicy, MembindError> {
    let nodes: Vec<u32> = facts.nodes.iter().map(|node| node.node).collect();
    if wanted == Membind::Off || memory_nodes(Path::new("/")) <= nodes.len() {
        return Ok(MemoryPolicy::Default);
    }
    if wanted == Membind::Require {
        return match set_policy(BIND, &nodes) {
            Ok(()) => Ok(MemoryPolicy::Bound(nodes)),
            Err(error) => Err(MembindError { nodes, error }),
        };
    }
    let mode = if nodes.len() == 1 { PREFERRED } else { PREFERRED_MANY };
    Ok(match set_policy(mode, &nodes) {
        Ok(()) => MemoryPolicy::Preferred(nodes),
        Err(error) => MemoryPolicy::Refused(error.to_string()),
    })
}

/// Tells whether the system lets this process choose, without a lasting change.
pub fn may_bind_memory(facts: &HostFacts) -> Result<(), String> {
    let nodes: Vec<u32> = facts.nodes.iter().map(|node| node.node).collect();
    let tried = std::thread::spawn(move || set_policy(BIND, &nodes));
    match tried.join() {
        Ok(tried) => tried.map_err(|error| error.to_string()),
        Err(_) => Err("the attempt panicked".into()),
    }
}

/// NUMA nodes of the machine, whether this process may use them or not; 1 if the kernel shows none.
fn memory_nodes(root: &Path) -> usize {
    let text = std::fs::read_to_string(root.join("sys/devices/system/node/has_memory")).unwrap_or_default();
    super::cpulist::parse(&text).map_or(1, |nodes| nodes.len().max(1))
}

fn set_policy(mode: i32, nodes: &[u32]) -> std::io::Result<()> {
    let mut mask = [0u64; MAX_NODES / WORD];
    for &node in nodes.iter().filter(|&&node| (node as usize) < MAX_NODES) {
        mask[node as usize / WORD] |= 1 << (node as usize % WORD);
    }
    // SAFETY:
    // * the mask lives through the call and has MAX_NODES bits; the kernel reads one bit less than it is told;
    // * the policy of the calling thread decides where its future pages lie, and nothing else.
    let result = unsafe {
        libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), MAX_NODES as libc::c_ulong + 1)
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_of_one_node_needs_no_policy_and_a_node_that_is_not_there_is_refused() {
        let mut facts = HostFacts::detect();
        if memory_nodes(Path::new("/")) == 1 {
            for wanted in [Membind::Auto, Membind::Require, Membind::Off] {
                assert_eq!(bind_memory(&facts, wanted).unwrap(), MemoryPolicy::Default);
            }
        }
        facts.nodes[0].node = MAX_NODES as u32 - 1;
        assert!(may_bind_memory(&facts).is_err());
        facts.nodes.clear();
        assert!(matches!(bind_memory(&facts, Membind::Auto).unwrap(), MemoryPolicy::Refused(_)));
        let error = bind_memory(&facts, Membind::Require).unwrap_err();
        assert!(error.to_string().contains("\"require\"") && error.hint().unwrap().contains("SYS_NICE"));
    }
}
