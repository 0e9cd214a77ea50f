//! The last step of `sandbox.sh`: enters a root directory, gives up root and every system call that container runtimes
//! keep from unprivileged containers, and becomes a command. Usage: `enter ROOT COMMAND...`

use std::collections::BTreeMap;
use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

/// The chart's podSecurity.
const USER: u32 = 10_001;

/// What the default profile of containerd and CRI-O refuses with EPERM to a process without capabilities, as far as a
/// program for training could come upon it.
const REFUSED: [libc::c_long; 24] = [
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy_home_node,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_perf_event_open,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_kcmp,
    libc::SYS_open_by_handle_at,
    libc::SYS_personality,
    libc::SYS_syslog,
    libc::SYS_acct,
];

fn main() -> ExitCode {
    match enter() {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("enter: {error}");
            ExitCode::from(99)
        }
    }
}

fn enter() -> Result<std::convert::Infallible, Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let (root, program) = (args.next().ok_or("no root")?, args.next().ok_or("no command")?);
    std::os::unix::fs::chroot(root)?;
    std::env::set_current_dir("/tmp")?;
    // Threads are made by clone then, as in containers whose runtime can't see into clone3.
    refuse(&[libc::SYS_clone3], libc::ENOSYS)?;
    refuse(&REFUSED, libc::EPERM)?;
    // SAFETY: asks for the default policy without a node mask; nothing is read or written.
    let answer = unsafe { libc::syscall(libc::SYS_set_mempolicy, 0, std::ptr::null::<u64>(), 0) };
    let error = std::io::Error::last_os_error();
    if answer != -1 || error.raw_os_error() != Some(libc::EPERM) {
        return Err(format!("set_mempolicy is not refused: {answer}, {error}").into());
    }
    // Leaves the groups of root too.
    Err(Command::new(program).args(args).uid(USER).gid(USER).exec().into())
}

/// Adds a filter; also sets no_new_privs.
fn refuse(calls: &[libc::c_long], errno: i32) -> Result<(), Box<dyn Error>> {
    let rules: BTreeMap<_, _> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let refusal = SeccompAction::Errno(errno.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refusal, TargetArch::x86_64)?;
    apply_filter(&BpfProgram::try_from(filter)?)?;
    Ok(())
}
