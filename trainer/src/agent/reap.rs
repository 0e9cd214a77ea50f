//! As process 1 of a container, an agent inherits every orphan; those that ended must be collected.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use rustix::process::{Pid, WaitOptions, waitpid};

/// Most entries of /proc that are looked at in one turn.
const MAX_PROCESSES: usize = 100_000;

/// Collects ended children that are none of `ours`; those have somebody who waits for them.
pub(super) fn reap_orphans(ours: &HashSet<u32>) -> usize {
    let ended = zombies(Path::new("/proc"), std::process::id());
    let orphans = ended.into_iter().filter(|pid| !ours.contains(pid));
    orphans.filter(|&pid| collect(pid)).count()
}

fn collect(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(Some(_))))
}

/// Ended processes below `proc` whose parent is `parent`.
fn zombies(proc: &Path, parent: u32) -> Vec<u32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten().take(MAX_PROCESSES);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(proc.join(pid.to_string()).join("stat")).unwrap_or_default();
        // "12 (name with ) and blanks) Z 1 ...": what counts stands after the last parenthesis.
        let rest = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        let mut words = rest.split_whitespace();
        words.next() == Some("Z") && words.next().and_then(|ppid| ppid.parse().ok()) == Some(parent)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[allow(clippy::zombie_processes, reason = "collecting it is what is tested")]
    #[test]
    fn ended_children_of_nobody_are_collected_and_ours_are_left() {
        let orphan = Command::new("true").spawn().unwrap();
        let mut ours = Command::new("true").spawn().unwrap();
        let both = |pids: &[u32]| pids.contains(&orphan.id()) && pids.contains(&ours.id());
        let deadline = Instant::now() + Duration::from_secs(10);
        while !both(&zombies(Path::new("/proc"), std::process::id())) {
            assert!(Instant::now() < deadline, "the children ended long ago");
            std::thread::yield_now();
        }
        // Other tests of this process may have children too.
        let keep = zombies(Path::new("/proc"), std::process::id());
        let keep: HashSet<u32> = keep.into_iter().filter(|&pid| pid != orphan.id()).collect();
        assert_eq!(reap_orphans(&keep), 1);
        assert!(ours.wait().unwrap().success(), "its exit is still there for its owner");
    }
}
