//! Binding threads to CPUs.

use rustix::io::{Errno, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

/// A thread that could not be bound to its CPU; it runs wherever the process may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("compute thread {thread} could not be bound to CPU {cpu}: {errno}")]
pub struct PinRefusal {
    /// Index of the thread in its pool.
    pub thread: usize,
    /// The CPU asked for.
    pub cpu: u32,
    /// What the system said.
    pub errno: Errno,
}

/// Binds the calling thread, and the threads it starts from now on, to one CPU.
pub(super) fn bind_to(cpu: u32) -> Result<()> {
    let cpu = cpu as usize;
    // `set` panics beyond the size of the set.
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}
