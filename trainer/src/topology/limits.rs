//! Limits that control groups put on CPU time and memory.

use std::fs;
use std::path::Path;

use super::cgroup::{Hierarchy, Version};
use super::cpulist;

/// A share of CPU time.
#[derive(Debug, Clone, PartialEq)]
pub struct Quota {
    /// CPUs' worth of time per period; may be a fraction.
    pub cpus: f64,
    /// File that sets it.
    pub place: String,
}

/// How often the quota stopped the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Throttling {
    /// Periods in which the group ran.
    pub periods: u64,
    /// Periods in which it was stopped until the next one.
    pub throttled: u64,
    /// Time for which threads were stopped, in microseconds.
    pub throttled_us: u64,
}

impl Throttling {
    /// What was counted after `before` was.
    pub fn since(self, before: Self) -> Self {
        Self {
            periods: self.periods.saturating_sub(before.periods),
            throttled: self.throttled.saturating_sub(before.throttled),
            throttled_us: self.throttled_us.saturating_sub(before.throttled_us),
        }
    }
}

/// Memory of the machine and of the process's groups, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryFacts {
    /// Of the machine.
    pub total: u64,
    /// What the machine could give without swapping.
    pub available: u64,
    /// The tightest limit of a group, if one is below the machine's memory.
    pub limit: Option<u64>,
    /// File that sets the limit.
    pub limit_place: Option<String>,
    /// What the groups could still take: the smallest of limit - used over all levels, file cache not counted.
    pub group_free: Option<u64>,
}

impl MemoryFacts {
    /// Leaves an even part of what can be used to each of so many processes.
    pub fn share(&mut self, processes: u32) {
        let n = u64::from(processes.max(1));
        self.available /= n;
        self.group_free = self.group_free.map(|free| free / n);
    }

    /// Leaves out memory that others of the group will take.
    pub fn keep(&mut self, bytes: u64) {
        self.available = self.available.saturating_sub(bytes);
        self.group_free = self.group_free.map(|free| free.saturating_sub(bytes));
    }

    /// Bytes that this process can take now.
    pub fn usable(&self) -> u64 {
        self.group_free.map_or(self.available, |free| free.min(self.available))
    }

    /// One line: what can be used and what limits it.
    pub fn describe(&self) -> String {
        let gb = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        match (self.limit, &self.limit_place) {
            (Some(limit), Some(place)) => {
                format!(
                    "{} usable; limit {} ({place}), machine {}",
                    gb(self.usable()),
                    gb(limit),
                    gb(self.total)
                )
            }
            _ => format!("{} usable of {}; no group limit", gb(self.usable()), gb(self.total)),
        }
    }
}

/// The tightest CPU quota over all levels.
pub(super) fn quota(root: &Path) -> Option<Quota> {
    let groups = Hierarchy::find(root, "cpu")?;
    let mut tightest: Option<Quota> = None;
    let file = match groups.version {
        Version::V2 => "cpu.max",
        Version::V1 => "cpu.cfs_quota_us",
    };
    for (dir, text) in groups.read(file) {
        let cpus = match groups.version {
            Version::V2 => parse_cpu_max(&text),
            Version::V1 => v1_quota(dir, &text),
        };
        let Some(cpus) = cpus else { continue };
        if tightest.as_ref().is_none_or(|t| cpus < t.cpus) {
            tightest = Some(Quota { cpus, place: shown(root, &dir.join(file)) });
        }
    }
    tightest
}

/// `max 100000` or `<quota> <period>`.
fn parse_cpu_max(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next().unwrap_or("100000").parse().ok()?;
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// -1 means no quota.
fn v1_quota(dir: &Path, text: &str) -> Option<f64> {
    let quota: f64 = text.trim().parse().ok()?;
    let period: f64 = fs::read_to_string(dir.join("cpu.cfs_period_us")).ok()?.trim().parse().ok()?;
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

/// Counters of the innermost group that has them.
pub(super) fn throttling(root: &Path) -> Option<Throttling> {
    let groups = Hierarchy::find(root, "cpu")?;
    let (_, text) = groups.read("cpu.stat").find(|(_, text)| text.contains("nr_throttled"))?;
    let ns = field(&text, "throttled_time").map(|ns| ns / 1000);
    Some(Throttling {
        periods: field(&text, "nr_periods")?,
        throttled: field(&text, "nr_throttled")?,
        throttled_us: field(&text, "throttled_usec").or(ns).unwrap_or(0),
    })
}

/// CPUs of the innermost cpuset that names any.
pub(super) fn cpuset(root: &Path) -> Option<Vec<u32>> {
    let groups = Hierarchy::find(root, "cpuset")?;
    let files: &[&str] = match groups.version {
        Version::V2 => &["cpuset.cpus.effective"],
        Version::V1 => &["cpuset.effective_cpus", "cpuset.cpus"],
    };
    files.iter().find_map(|file| {
        groups.read(file).find_map(|(_, text)| cpulist::parse(&text).filter(|cpus| !cpus.is_empty()))
    })
}

/// Memory of the machine and the tightest group.
pub(super) fn memory(root: &Path) -> MemoryFacts {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let kib = |name: &str| {
        meminfo.lines().find_map(|l| l.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
    };
    let total = kib("MemTotal:").unwrap_or(0u64) * 1024;
    let available = kib("MemAvailable:").or_else(|| kib("MemFree:")).unwrap_or(0u64) * 1024;
    let mut facts = MemoryFacts { total, available, ..MemoryFacts::default() };
    let Some(groups) = Hierarchy::find(root, "memory") else { return facts };
    let (limit_file, used_file, cache_key) = match groups.version {
        Version::V2 => ("memory.max", "memory.current", "inactive_file"),
        Version::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    };
    for (dir, text) in groups.read(limit_file) {
        // "max" does not parse; version 1 writes a number near 2^63 instead, which is above any machine's memory.
        let Some(limit) = text.trim().parse::<u64>().ok().filter(|&l| total == 0 || l < total) else {
            continue;
        };
        let number = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
        let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let used = number(used_file).unwrap_or(0).saturating_sub(field(&stat, cache_key).unwrap_or(0));
        let free = limit.saturating_sub(used);
        facts.group_free = Some(facts.group_free.map_or(free, |f| f.min(free)));
        if facts.limit.is_none_or(|l| limit < l) {
            facts.limit = Some(limit);
            facts.limit_place = Some(shown(root, &dir.join(limit_file)));
        }
    }
    facts
}

/// What a file system in memory can still take, in bytes.
///
/// # Errors
/// A path that can't be asked, or that lies in no such file system.
pub fn volume_room(path: &Path) -> std::io::Result<u64> {
    let stat = rustix::fs::statfs(path)?;
    // TMPFS_MAGIC, of a type that differs between architectures.
    if stat.f_type != 0x0102_1994 {
        return Err(std::io::Error::other("is not a file system in memory"));
    }
    Ok(stat.f_bavail.saturating_mul(stat.f_bsize as u64))
}

/// How many processes of this process's group the kernel has ended for lack of memory; none if it doesn't count.
pub fn memory_kills(root: &Path) -> Option<u64> {
    let groups = Hierarchy::find(root, "memory")?;
    let file = match groups.version {
        Version::V2 => "memory.events",
        Version::V1 => "memory.oom_control",
    };
    groups.read(file).find_map(|(_, text)| field(&text, "oom_kill"))
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// A path as the user knows it, without the prefix of a fake root.
fn shown(root: &Path, path: &Path) -> String {
    match path.strip_prefix(root) {
        Ok(rest) if root != Path::new("/") => format!("/{}", rest.display()),
        _ => path.display().to_string(),
    }
}
