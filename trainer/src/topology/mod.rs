//! What this process may use of its machine: CPUs, quota, memory, NUMA nodes, caches, huge pages.
//!
//! [`HostFacts`] is what the kernel says, read once; every decision from it is a pure function, so tests read fake
//! `/proc` and `/sys` trees. The number of CPUs of the host is never used: what counts is
//! affinity ∩ cpuset, floor(quota), physical cores first.
//!
//! [`pinning()`] says where threads should run; [`bind_process`] binds a rank to its CPUs before it allocates.

pub use alloc::keep_freed_memory;
pub use bind::bind_process;
pub use budget::{CpuBudget, cpu_budget};
pub use facts::{Core, HostFacts, HugePages};
pub use limits::{MemoryFacts, Quota, Throttling, memory_kills, volume_room};
pub use numa::{NodesFrom, NumaNode, hwloc_nodes};
pub use pinning::{Pinning, pinning};
pub use ranks::{RankCpus, Split, SplitError, split_cpus};

mod alloc;
mod bind;
mod budget;
mod cgroup;
mod cpulist;
mod facts;
mod limits;
mod numa;
mod pinning;
mod ranks;
#[cfg(test)]
mod tests;
