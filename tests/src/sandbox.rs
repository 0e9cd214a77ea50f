//! The image's file system as a container with the chart's restrictions: read-only root, a user that isn't root, no new
//! privileges, refused system calls, 64 MiB of /dev/shm, a CPU quota below the core count and a memory limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::cluster::{Process, signal};
use crate::muster_bin;

/// The CPU quota: less than the two cores that tests have at least.
pub const CPUS: f64 = 1.5;
/// The memory limit.
pub const MEMORY_BYTES: u64 = 2 << 30;
/// Size of the volume in memory at `/cache`.
pub const CACHE_BYTES: u64 = 256 << 20;

/// A file system and control groups for containers.
pub struct Sandbox {
    dir: PathBuf,
    enter: PathBuf,
    groups: Vec<PathBuf>,
}

impl Sandbox {
    /// Makes the file system below `dir`; `enter` is the program of that name. `Err` says why this machine can't.
    ///
    /// # Errors
    /// Tests that aren't root, or a kernel that allows no namespaces.
    ///
    /// # Panics
    /// If the image's script fails.
    pub fn new(dir: &Path, enter: &Path) -> Result<Self, String> {
        let unshared = unshare().args(["true"]).stderr(Stdio::null()).status();
        if !unshared.is_ok_and(|status| status.success()) {
            return Err("new mount and pid namespaces are not allowed here (not root?)".into());
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/image/rootfs.sh");
        if !Path::new("/usr/bin/dpkg").exists() {
            return Err("the image is made on Debian".into());
        }
        let status = Command::new("bash").arg(script).arg(muster_bin()).arg(dir.join("root")).status();
        assert!(status.expect("bash runs").success(), "rootfs.sh failed");
        fs::create_dir(dir.join("shared")).expect("a new directory");
        std::os::unix::fs::chown(dir.join("shared"), Some(10_001), Some(10_001)).expect("root may");
        // Directories of tests are closed to others.
        open_to_all(dir);
        Ok(Self { dir: dir.into(), enter: enter.into(), groups: groups() })
    }

    /// Whether the CPU quota and the memory limit are in force.
    pub fn is_limited(&self) -> bool {
        !self.groups.is_empty()
    }

    /// The directory that is `/shared` inside.
    pub fn shared(&self) -> PathBuf {
        self.dir.join("shared")
    }

    fn command(&self, args: &[&str]) -> Command {
        let groups: Vec<_> = self.groups.iter().map(|group| group.to_string_lossy()).collect();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sandbox.sh");
        let mut command = unshare();
        command.arg("sh").arg(script).arg(self.dir.join("root")).arg(self.shared());
        command.arg(&self.enter).arg(groups.join(":")).arg("/usr/bin/muster").args(args);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
        // As the chart sets them.
        command.envs([("HOME", "/tmp"), ("XDG_CACHE_HOME", "/cache"), ("HF_HOME", "/cache/huggingface")]);
        command.envs([("MUSTER_MEMORY_VOLUMES", "/cache"), ("MUSTER_POD_IP", "127.0.0.1")]);
        command.envs([("MUSTER_POD_NAME", "trainer-0"), ("MUSTER_POD_UID", "0123")]);
        command.envs([("MUSTER_POD_NAMESPACE", "muster"), ("MUSTER_NODE_NAME", "machine")]);
        command
    }

    /// Runs a command of muster to its end.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("unshare runs")
    }

    /// Starts a command of muster that serves.
    pub fn start(&self, args: &[&str], log: &str) -> Contained {
        Contained(Process::start(self.command(args), self.dir.join(log)))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Empty by now; a leftover says nothing about the test.
        self.groups.iter().for_each(|group| drop(fs::remove_dir(group)));
    }
}

/// A process in a container, where it is process 1.
pub struct Contained(Process);

impl Contained {
    /// The process that started it, with its log.
    pub fn outer(&mut self) -> &mut Process {
        &mut self.0
    }

    /// Its number outside.
    pub fn id(&self) -> Option<u32> {
        self.0.children().first().copied()
    }

    /// Sends it a signal by its name.
    pub fn signal(&self, name: &str) {
        self.id().into_iter().for_each(|id| signal(id, name));
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        // All of a pid namespace ends with its process 1.
        self.signal("KILL");
    }
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--propagation", "private"]);
    command
}

/// Control groups of version 1 or 2 with the limits; none where they can't be made.
fn groups() -> Vec<PathBuf> {
    let base = Path::new("/sys/fs/cgroup");
    let name = format!("muster-test-{}", std::process::id());
    let quota = (CPUS * 1e5) as u64;
    let limits = if base.join("cgroup.controllers").exists() {
        [("", "cpu.max", format!("{quota} 100000")), ("", "memory.max", MEMORY_BYTES.to_string())]
    } else {
        // The period is 100 ms unless told otherwise.
        [
            ("cpu", "cpu.cfs_quota_us", quota.to_string()),
            ("memory", "memory.limit_in_bytes", MEMORY_BYTES.to_string()),
        ]
    };
    let mut made: Vec<PathBuf> = Vec::new();
    for (controller, file, value) in limits {
        let group = base.join(controller).join(&name);
        if !made.contains(&group) && fs::create_dir(&group).is_ok() {
            made.push(group.clone());
        }
        if fs::write(group.join(file), value).is_err() {
            made.iter().for_each(|group| drop(fs::remove_dir(group)));
            return Vec::new();
        }
    }
    made
}

fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;

    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("its owner may");
}
