//! CPUs that are taken from a run from outside, and given back, while it trains.
//!
//! kubernetes/kubernetes#90303 and #107906: cpusets change under containers that run; here `sched_setaffinity` does the same.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use muster_tests::cluster::wait;
use muster_tests::headlines::{log, run_file};
use muster_tests::muster;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use serde_json::Value;

/// Enough for two changes of CPUs, which take a few looks of 0.1 s each.
const STEPS: usize = 300;

/// The first two CPUs that this process may use; none if it has one.
fn two_cpus() -> Option<[u32; 2]> {
    let set = sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32);
    let two = cpus.next().zip(cpus.next()).map(|(a, b)| [a, b]);
    if two.is_none() {
        println!("skipped: this process may use one CPU only");
    }
    two
}

/// Binds a process's first thread, as `taskset -p` does.
fn taskset(pid: u32, cpus: &[u32]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu as usize));
    sched_setaffinity(Some(Pid::from_raw(pid as i32).unwrap()), &set).unwrap();
}

/// The CPUs of each thread of a process, in the kernel's notation.
fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let cpus = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some(line.trim().to_owned())
    };
    tasks.filter_map(|task| cpus(fs::read_to_string(task.path().join("status")).ok()?)).collect()
}

/// A run as a process; killed with its owner.
struct Run {
    child: Child,
    errors: PathBuf,
    out: PathBuf,
}

impl Drop for Run {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.errors());
        }
    }
}

impl Run {
    /// Starts a run on these two CPUs.
    fn start(dir: &Path, name: &str, ranks: u32, cpus: [u32; 2]) -> Self {
        let file = run_file(dir, name, &format!("max_steps = {STEPS}"));
        let (errors, out) = (dir.join(format!("{name}.err")), dir.join(format!("{name}.out")));
        let mut command = muster(&["train", "--json", "--set", "train.threads=auto", "--ranks"]);
        command.arg(ranks.to_string()).arg(file).env("MUSTER_PLACE_INTERVAL_S", "0.1");
        command
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&errors).unwrap());
        let run = Self { child: command.spawn().unwrap(), errors, out };
        taskset(run.child.id(), &cpus);
        run
    }

    fn errors(&self) -> String {
        fs::read_to_string(&self.errors).unwrap()
    }

    fn until_it_says(&self, text: &str) {
        wait(&format!("{text:?} in {}", self.errors()), || self.errors().contains(text).then_some(()));
    }

    fn until_it_trains(&self, dir: &Path, name: &str) {
        let log = dir.join(name).join("metrics.jsonl");
        wait("the first steps", || {
            fs::read_to_string(&log).is_ok_and(|text| text.lines().count() > 3).then_some(())
        });
    }

    /// Results of a run that ended well.
    fn results(mut self) -> Value {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.errors());
        serde_json::from_slice(&fs::read(&self.out).unwrap()).unwrap()
    }
}

#[test]
fn a_run_follows_its_cpus_between_steps_and_no_bit_changes() {
    let Some([first, second]) = two_cpus() else { return };
    let dir = tempfile::tempdir().unwrap();
    let calm = Run::start(dir.path(), "calm", 1, [first, second]).results();
    let run = Run::start(dir.path(), "moved", 1, [first, second]);
    let pid = run.child.id();
    run.until_it_trains(dir.path(), "moved");
    taskset(pid, &[second]);
    run.until_it_says(&format!("it may use CPUs {second} instead of"));
    run.until_it_says("computes with 1 threads (before: 2)");
    wait("every thread on the CPU that is left", || {
        threads(pid).iter().all(|cpus| *cpus == second.to_string()).then_some(())
    });
    taskset(pid, &[first, second]);
    run.until_it_says("computes with 2 threads (before: 1)");
    let moved = run.results();
    assert_eq!(moved["weights_digest"], calm["weights_digest"]);
    let place = |results: &Value, key: &str| results["ranks"][0][key].as_u64().unwrap();
    assert_eq!((place(&calm, "rebinds"), place(&moved, "rebinds")), (0, 2));
    assert_eq!((place(&moved, "cores"), place(&moved, "threads")), (2, 2));
    let log = log(dir.path(), "moved");
    assert_eq!(log.iter().filter(|line| line["kind"] == "train").count(), STEPS);
}

#[test]
fn a_rank_whose_cpu_is_taken_away_goes_on_where_it_may() {
    let Some([first, second]) = two_cpus() else { return };
    let dir = tempfile::tempdir().unwrap();
    let run = Run::start(dir.path(), "ranks", 2, [first, second]);
    run.until_it_trains(dir.path(), "ranks");
    let pids = children(run.child.id());
    assert_eq!(pids.len(), 2, "{pids:?}");
    let of_first = pids.iter().find(|&&pid| threads(pid).contains(&first.to_string())).copied().unwrap();
    assert!(threads(of_first).iter().all(|cpus| *cpus == first.to_string()), "all threads are bound");
    taskset(of_first, &[second]);
    run.until_it_says(&format!("it may use CPUs {second} instead of {first}"));
    wait("every thread on the CPU that is left", || {
        threads(of_first).iter().all(|cpus| *cpus == second.to_string()).then_some(())
    });
    let results = run.results();
    let ranks = results["ranks"].as_array().unwrap();
    let mut rebinds: Vec<_> = ranks.iter().map(|rank| rank["rebinds"].as_u64().unwrap()).collect();
    rebinds.sort_unstable();
    assert_eq!(rebinds, [0, 1], "{results:#}");
    for rank in ranks {
        let local = rank["numa_local"].as_f64();
        assert!(
            local.is_none_or(|share| share > 0.95),
            "on a machine of one node everything is local: {rank}"
        );
    }
}

/// Processes that a thread of this one has started.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// A control group of one test; removed with its owner, when its processes are gone.
struct Group {
    dir: PathBuf,
    /// File and text of a quota of one and a half CPUs.
    quota: (&'static str, &'static str),
}

impl Group {
    /// None where this user can't make one that limits CPU time.
    fn new() -> Option<Self> {
        let name = format!("muster-test-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/cpu").join(&name);
        let v2 = Path::new("/sys/fs/cgroup").join(&name);
        let choices = [(v1, ("cpu.cfs_quota_us", "150000")), (v2, ("cpu.max", "150000 100000"))];
        let made = choices.into_iter().find_map(|(dir, quota)| {
            fs::create_dir(&dir).ok()?;
            let group = Self { dir, quota };
            group.dir.join(quota.0).exists().then_some(group)
        });
        if made.is_none() {
            println!("skipped: this user can't make control groups with CPU quotas");
        }
        made
    }

    fn limit(&self) {
        fs::write(self.dir.join(self.quota.0), self.quota.1).unwrap();
    }

    fn take(&self, pid: u32) {
        fs::write(self.dir.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A directory that never came into being is an error that doesn't matter.
        let _ = fs::remove_dir(&self.dir);
    }
}

#[test]
fn a_quota_that_comes_while_training_is_followed_and_counted() {
    let Some(cpus) = two_cpus() else { return };
    let Some(group) = Group::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let run = Run::start(dir.path(), "short", 1, cpus);
    group.take(run.child.id());
    run.until_it_trains(dir.path(), "short");
    group.limit();
    run.until_it_says("it has a quota of 1.5 CPUs instead of no quota");
    run.until_it_says("computes with 1 threads (before: 2)");
    let results = run.results();
    let place = &results["ranks"][0];
    assert!(place["periods"].as_u64() > Some(0) && place["throttled"].is_number(), "{place}");
    assert_eq!((place["threads"].as_u64(), place["rebinds"].as_u64()), (Some(1), Some(1)));
}
