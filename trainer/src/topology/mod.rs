//! What this process may use of its machine: CPUs, quota, memory, NUMA nodes, caches, huge pages.
//!
//! [`HostFacts`] is what the kernel says, read once; every decision from it is a pure function, so tests read fake
//! `/proc` and `/sys` trees. The number of CPUs of the host is never used: what counts is
//! affinity ∩ cpuset, floor(quota), physical cores first.
//!
//! [`pinning()`] says where threads should run; [`bind_process`] and [`bind_memory`] bind a rank before it allocates, and
//! a [`Binder`] watches what it may use from then on.

pub use alloc::keep_freed_memory;
pub use bind::{bind_other_threads, bind_process, cpu_set};
pub use binder::{Binder, Dealt, Rebound};
pub use budget::{CpuBudget, cpu_budget};
pub use cpulist::format as cpu_list;
pub use facts::{Core, HostFacts, HugePages};
pub use limits::{MemoryFacts, Quota, Throttling, memory_kills, volume_room};
pub use membind::{MembindError, MemoryPolicy, bind_memory, may_bind_memory};
pub use numa::{NodesFrom, NumaNode, hwloc_nodes};
pub use pages::{OwnMemory, own_memory};
pub use pinning::{Pinning, pinning};
pub use place::Place;
pub use probe::local_share_of_touched;
pub use ranks::{RankCpus, Split, SplitError, split_cpus};
pub use watch::Allowed;

mod alloc;
mod bind;
mod binder;
mod budget;
mod cgroup;
mod cpulist;
mod facts;
mod limits;
mod membind;
mod numa;
mod pages;
mod pinning;
mod place;
mod probe;
mod ranks;
#[cfg(test)]
mod tests;
mod watch;
