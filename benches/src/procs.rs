//! The processes of one measurement: started on given CPUs, watched, and ended whatever happens.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CpuSet;

/// Time that ranks have to notice that their agent is gone.
const LEAVE: Duration = Duration::from_secs(10);
/// Lines of a log that an error shows.
const TAIL: usize = 6;

struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// What was seen of a process.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Start in clock ticks after boot, to know it again.
    start: u64,
    is_rank: bool,
    /// Peak of resident memory.
    peak_bytes: u64,
    /// CPU time in clock ticks.
    ticks: u64,
}

/// Processes that end with this value.
#[derive(Default)]
pub struct Procs {
    processes: Vec<Process>,
    /// Those and what they started, by process number.
    seen: BTreeMap<i32, Seen>,
}

impl Procs {
    /// Starts a program with its output in `dir`, on these CPUs or on all.
    ///
    /// # Errors
    /// A program that can't be started.
    pub fn spawn(&mut self, dir: &Path, name: &str, command: &mut Command, cpus: &[u32]) -> Result<()> {
        let log = dir.join(format!("{name}.log"));
        let out = File::create(&log).with_context(|| format!("can't write {}", log.display()))?;
        let error = out.try_clone().context("can't use a log twice")?;
        command.stdin(Stdio::null()).stdout(out).stderr(error);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = on_cpus(cpus, || command.spawn()).with_context(|| format!("can't start {program}"))?;
        self.processes.push(Process { name: name.into(), child, log });
        Ok(())
    }

    /// Fails if one of them has ended, with the end of its log.
    ///
    /// # Errors
    /// That.
    pub fn check(&mut self) -> Result<()> {
        for process in &mut self.processes {
            let status = process.child.try_wait().context("can't ask for a process")?;
            let Some(status) = status else { continue };
            let how = match (status.code(), status.signal()) {
                (Some(code), _) => format!("ended with exit code {code}"),
                (None, Some(signal)) => format!("was ended by signal {signal}"),
                (None, None) => "ended".into(),
            };
            bail!("{} {how} before it had done its steps:\n{}", process.name, tail(&process.log));
        }
        Ok(())
    }

    /// Waits until the named process has ended well, as long as `go_on` says so.
    ///
    /// # Errors
    /// It ended badly.
    pub fn has_ended(&mut self, name: &str) -> Result<bool> {
        for process in self.processes.iter_mut().filter(|process| process.name == name) {
            match process.child.try_wait().context("can't ask for a process")? {
                None => return Ok(false),
                Some(status) if status.success() => {}
                Some(status) => bail!("{name} ended with {status}:\n{}", tail(&process.log)),
            }
        }
        Ok(true)
    }

    /// Looks at the processes and at what they started.
    pub fn sample(&mut self) {
        let mut parents = BTreeMap::new();
        for pid in numbers() {
            if let Some(stat) = Stat::read(pid) {
                parents.insert(pid, stat);
            }
        }
        let roots: Vec<i32> = self.processes.iter().map(|process| process.child.id() as i32).collect();
        for (&pid, stat) in &parents {
            let mut ancestor = pid;
            while !roots.contains(&ancestor) {
                match parents.get(&ancestor) {
                    Some(stat) if stat.parent > 1 => ancestor = stat.parent,
                    _ => break,
                }
            }
            if roots.contains(&ancestor) {
                let seen = self.seen.entry(pid).or_default();
                if seen.start != stat.start {
                    *seen = Seen { start: stat.start, is_rank: is_rank(pid), ..Seen::default() };
                }
                seen.peak_bytes = seen.peak_bytes.max(peak_bytes(pid));
                seen.ticks = seen.ticks.max(stat.ticks);
            }
        }
    }

    /// CPU seconds of all of them until the last look.
    pub fn cpu_s(&self) -> f64 {
        self.seen.values().map(|seen| seen.ticks as f64).sum::<f64>() / ticks_per_s()
    }

    /// Peak memory of the largest rank; of the largest process where none is a rank.
    pub fn peak_bytes(&self) -> u64 {
        let ranks = self.seen.values().any(|seen| seen.is_rank);
        let of_interest = self.seen.values().filter(|seen| seen.is_rank || !ranks);
        of_interest.map(|seen| seen.peak_bytes).max().unwrap_or(0)
    }

    /// Ends all of them at once, and waits for what they started.
    pub fn kill(&mut self) {
        self.sample();
        for process in &mut self.processes {
            // It may have ended by itself.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        self.processes.clear();
        let begun = Instant::now();
        while self.seen.iter().any(|(&pid, seen)| lives(pid, *seen)) {
            if begun.elapsed() > LEAVE {
                self.seen.iter().filter(|&(&pid, seen)| lives(pid, *seen)).for_each(|(&pid, _)| end(pid));
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Procs {
    fn drop(&mut self) {
        if !self.processes.is_empty() {
            self.kill();
        }
    }
}

fn end(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It is gone if it can't be ended.
        let _ = kill_process(pid, Signal::KILL);
    }
}

fn lives(pid: i32, seen: Seen) -> bool {
    Stat::read(pid).is_some_and(|stat| stat.start == seen.start && !stat.is_zombie)
}

/// Runs `spawn` where new processes inherit these CPUs.
fn on_cpus<T>(cpus: &[u32], spawn: impl FnOnce() -> T) -> T {
    let before = rustix::thread::sched_getaffinity(None).ok().filter(|_| !cpus.is_empty());
    if before.is_some() {
        let mut own = CpuSet::new();
        cpus.iter().for_each(|&cpu| own.set(cpu as usize));
        // Where it is refused the point is marked as unpinned by what its ranks say.
        let _ = rustix::thread::sched_setaffinity(None, &own);
    }
    let result = spawn();
    if let Some(before) = before {
        let _ = rustix::thread::sched_setaffinity(None, &before);
    }
    result
}

struct Stat {
    parent: i32,
    is_zombie: bool,
    start: u64,
    ticks: u64,
}

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold anything; fields are counted behind it, from the third.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let (user, system) = (number(14)?, number(15)?);
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            is_zombie: *fields.first()? == "Z",
            start: number(22)?,
            ticks: user + system,
        })
    }
}

fn numbers() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn is_rank(pid: i32) -> bool {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    text.split(|&byte| byte == 0).nth(1) == Some(b"rank")
}

fn peak_bytes(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| 1024 * kib)
}

fn ticks_per_s() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..]
        .iter()
        .map(|line| format!("    {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// CPU time of the whole machine, in CPU seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuTimes {
    /// Spent by anybody.
    pub busy: f64,
    /// That the hypervisor gave to others.
    pub stolen: f64,
}

impl CpuTimes {
    /// Reads `/proc/stat`.
    pub fn now() -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let n: Vec<f64> = line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let at = |i: usize| n.get(i).copied().unwrap_or(0.0) / ticks_per_s();
        // user nice system idle iowait irq softirq steal
        Self { busy: at(0) + at(1) + at(2) + at(5) + at(6), stolen: at(7) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_watched_and_ended_with_their_children() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut procs = Procs::default();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo started; wait"]);
        procs.spawn(dir.path(), "parent", &mut command, &[]).expect("sh is everywhere");
        let begun = Instant::now();
        while procs.seen.len() < 2 {
            procs.sample();
            assert!(begun.elapsed() < Duration::from_secs(20), "the child is seen");
        }
        procs.check().expect("it lives");
        // The shell can't tell its child; the child is ended by its number, after a while.
        let child = *procs.seen.keys().max().expect("two processes");
        assert!(procs.peak_bytes() > 0 && lives(child, procs.seen[&child]));
        end(child);
        procs.kill();
        assert!(!lives(child, procs.seen[&child]));
    }

    #[test]
    fn an_early_end_is_told_with_the_log() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut procs = Procs::default();
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such model >&2; exit 3"]);
        procs.spawn(dir.path(), "rank 1", &mut command, &[]).expect("sh is everywhere");
        let begun = Instant::now();
        let error = loop {
            if let Err(error) = procs.check() {
                break error.to_string();
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "it ends");
        };
        assert!(
            error.contains("rank 1 ended with exit code 3") && error.contains("no such model"),
            "{error}"
        );
    }
}
