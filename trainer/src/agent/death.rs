//! A rank must not outlive its agent.
#![allow(unsafe_code, reason = "code between fork and exec is unsafe to run; this is two system calls")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Has the kernel kill the command's process when the calling thread ends.
pub(super) fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    let arm = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the signal was armed.
        match getppid() {
            Some(now) if now == parent => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::BrokenPipe)),
        }
    };
    // SAFETY:
    // * between fork and exec only async-signal-safe calls are allowed: these are two plain system calls;
    // * nothing is allocated or locked on the way: the error is made from a kind, without a message.
    unsafe {
        command.pre_exec(arm);
    }
}
