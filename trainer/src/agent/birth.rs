//! A rank is on its CPUs from its first instruction on.
#![allow(unsafe_code, reason = "code between fork and exec is unsafe to run; this is one system call")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::topology::cpu_set;

/// Has the command's process begin on these CPUs, so that the pages of the program itself come from their NUMA node too.
///
/// What the system refuses is no error here: the rank binds itself again, and says what became of it.
pub(super) fn bind(command: &mut Command, cpus: &[u32]) {
    if cpus.is_empty() {
        return;
    }
    let set = cpu_set(cpus);
    let bind = move || {
        let _ = rustix::thread::sched_setaffinity(None, &set);
        Ok(())
    };
    // SAFETY:
    // * between fork and exec only async-signal-safe calls are allowed: this is one plain system call;
    // * the set is a plain array that was made before the fork; nothing is allocated or locked on the way.
    unsafe {
        command.pre_exec(bind);
    }
}
