//! A coordinator whose state lies on a file system that fills up. Needs the right to mount; without it the test says so.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_tests::cluster::Cluster;

/// A small file system in memory, as long as the value lives.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=3m", "muster-test"]).arg(&at);
        command.status().is_ok_and(|status| status.success()).then_some(Self(at))
    }

    /// Leaves no room, whoever else writes meanwhile.
    fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut filler = std::fs::File::create(&path).unwrap();
        for chunk in [64 << 10, 4 << 10, 1] {
            let zeros = vec![0u8; chunk];
            while filler.write_all(&zeros).is_ok() {}
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_refuses_new_runs_and_stops_no_training() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path().join("state")) else {
        eprintln!("skipped: this process may not mount a file system");
        return;
    };
    let (cluster, _coordinator) = Cluster::start(dir.path(), Path::new(env!("CARGO_BIN_EXE_fake_rank")));
    let _agent = cluster.agent("a");
    cluster.until_nodes(1);
    let run = cluster.submit(&cluster.run_file("steady", 250, ""));
    cluster.until_step(&run, 10);
    let filler = disk.fill();
    let big = cluster.run_file("big", 5, "");
    let text = std::fs::read_to_string(&big).unwrap();
    std::fs::write(&big, format!("{text}\n# {}\n", "x".repeat(500_000))).unwrap();
    let refused = cluster.command(&["submit", &big.to_string_lossy()]).output().unwrap();
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains("is full") && message.contains("hint"), "{message}");
    // It goes on although its course can't be stored.
    let at = cluster.status(&run).unwrap()["step"].as_u64().unwrap();
    cluster.until_step(&run, at + 20);
    cluster.until_state(&run, "succeeded");
    std::fs::remove_file(filler).unwrap();
    let again = cluster.submit(&big);
    cluster.until_state(&again, "succeeded");
}
