//! A small trial of what a rank would do: touch memory from its CPUs, and see where the pages lie.
#![allow(unsafe_code, reason = "a memory file is mapped")]

use std::fs::File;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use super::bind::{affinity, cpu_set};
use super::pages::file_memory;

/// Bytes that are touched: enough that a few pages from elsewhere don't matter.
const BYTES: usize = 16 << 20;
const PAGE: usize = 4096;

/// Touches memory from a thread that is bound to `cpus`; returns the share of its pages on `nodes`.
///
/// # Errors
/// Why it can't be tried: the CPUs are refused, or the system doesn't show where pages lie.
pub fn local_share_of_touched(cpus: &[u32], nodes: &[u32]) -> Result<f64, String> {
    let (cpus, nodes) = (cpus.to_vec(), nodes.to_vec());
    // In a thread of its own, because it stays bound.
    let tried = std::thread::spawn(move || touch(&cpus, &nodes));
    tried.join().unwrap_or_else(|_| Err("the trial panicked".into()))
}

fn touch(cpus: &[u32], nodes: &[u32]) -> Result<f64, String> {
    let refused = |what: &str, error: Errno| format!("{what}: {error}");
    rustix::thread::sched_setaffinity(None, &cpu_set(cpus)).map_err(|e| refused("CPUs are refused", e))?;
    if affinity(None).is_none_or(|got| got.iter().any(|cpu| !cpus.contains(cpu))) {
        return Err("the system gave other CPUs".into());
    }
    let name = format!("muster-probe-{}", rustix::thread::gettid());
    let file = memfd_create(&*name, MemfdFlags::CLOEXEC).map_err(|e| refused("no memory file", e))?;
    let file = File::from(file);
    file.set_len(BYTES as u64).map_err(|error| format!("no memory: {error}"))?;
    // SAFETY: nobody else has this file, so its bytes change only through this mapping, and its size not at all.
    let mut memory =
        unsafe { memmap2::MmapMut::map_mut(&file) }.map_err(|error| format!("no memory: {error}"))?;
    memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    let maps = std::fs::read_to_string("/proc/self/numa_maps");
    let maps = maps.map_err(|error| format!("/proc/self/numa_maps can't be read: {error}"))?;
    file_memory(&maps, &name, nodes).local_share().ok_or_else(|| "the system shows no pages of it".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::HostFacts;

    #[test]
    fn pages_touched_here_lie_here() {
        let facts = HostFacts::detect();
        let node = &facts.nodes[0];
        match local_share_of_touched(&node.cpus, &[node.node]) {
            Ok(share) => assert!(share > 0.95, "{share}"),
            Err(why) => println!("skipped: {why}"),
        }
        assert!(local_share_of_touched(&[8000], &[0]).unwrap_err().contains("CPUs are refused"));
    }
}
