//! What the kernel says about the machine, read once from `/proc` and `/sys`.

use std::fs;
use std::path::Path;

use super::numa::{self, NodesFrom, NumaNode};
use super::{MemoryFacts, Quota, Throttling, bind, cpulist, limits};

/// A physical core, as far as this process may use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// Package (socket).
    pub package: u32,
    /// Its allowed hardware threads, ascending.
    pub cpus: Vec<u32>,
}

/// The `transparent_hugepage` setting of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HugePages {
    /// Every mapping gets huge pages.
    Always,
    /// Only mappings that ask.
    Madvise,
    /// None.
    Never,
    /// The kernel doesn't say.
    Unknown,
}

impl HugePages {
    /// The kernel's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
            Self::Unknown => "unknown",
        }
    }
}

/// What the kernel says about the machine and the limits of this process.
#[derive(Debug, Clone, PartialEq)]
pub struct HostFacts {
    /// CPUs the process may run on: affinity ∩ cpuset, ascending.
    pub allowed: Vec<u32>,
    /// Physical cores with an allowed CPU, in order of their first CPU.
    pub cores: Vec<Core>,
    /// CPU quota, if any.
    pub quota: Option<Quota>,
    /// Counters of the quota, if the kernel keeps them.
    pub throttling: Option<Throttling>,
    /// Memory.
    pub memory: MemoryFacts,
    /// Huge pages setting.
    pub huge_pages: HugePages,
    /// NUMA nodes with an allowed CPU.
    pub nodes: Vec<NumaNode>,
    /// Where `nodes` comes from.
    pub nodes_from: NodesFrom,
    /// Level 2 cache of a core, in bytes.
    pub l2_bytes: Option<u64>,
    /// Last-level cache shared by neighbouring cores, in bytes, and how many CPUs share it.
    pub l3: Option<(u64, usize)>,
    /// What could not be read, in words.
    pub warnings: Vec<String>,
}

impl HostFacts {
    /// Reads this machine. Never fails: what can't be read becomes a warning and a careful default.
    pub fn detect() -> Self {
        let affinity = affinity();
        let mut facts = Self::read(Path::new("/"), affinity.as_deref());
        match numa::detect(&facts.allowed) {
            Ok(nodes) if !nodes.is_empty() => {
                facts.nodes = nodes;
                facts.nodes_from = NodesFrom::Hwloc;
            }
            Ok(_) => facts.warnings.push("hwloc sees no NUMA node with an allowed CPU; using /sys".into()),
            Err(error) => facts.warnings.push(format!("hwloc can't read the topology ({error}); using /sys")),
        }
        facts
    }

    /// Reads the trees `proc` and `sys` below `root`. The affinity is that of the tree's `proc/self/status` unless
    /// it is given.
    pub fn read(root: &Path, affinity: Option<&[u32]>) -> Self {
        let mut warnings = Vec::new();
        let allowed = allowed(root, affinity, &mut warnings);
        let cores = cores(root, &allowed, &mut warnings);
        let first = allowed.first().copied().unwrap_or(0);
        let caches = root.join(format!("sys/devices/system/cpu/cpu{first}/cache"));
        Self {
            quota: limits::quota(root),
            throttling: limits::throttling(root),
            memory: limits::memory(root),
            huge_pages: huge_pages(root),
            nodes: numa::from_sys(root, &allowed),
            nodes_from: NodesFrom::Sys,
            l2_bytes: cache(&caches, "2").map(|(bytes, _)| bytes),
            l3: cache(&caches, "3"),
            allowed,
            cores,
            warnings,
        }
    }

    /// The allowed CPUs in the kernel's notation, such as `0-3,8`.
    pub fn allowed_list(&self) -> String {
        cpulist::format(&self.allowed)
    }

    /// Counts the packages that hold an allowed CPU.
    pub fn packages(&self) -> usize {
        let mut packages: Vec<_> = self.cores.iter().map(|core| core.package).collect();
        packages.sort_unstable();
        packages.dedup();
        packages.len()
    }
}

/// The affinity of this process, which is that of its first thread; `None` on machines with more CPUs than the system
/// call's set holds.
pub(super) fn affinity() -> Option<Vec<u32>> {
    bind::affinity(Some(rustix::process::getpid()))
}

pub(super) fn allowed(root: &Path, affinity: Option<&[u32]>, warnings: &mut Vec<String>) -> Vec<u32> {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let affinity = affinity.map(<[u32]>::to_vec).or_else(|| cpulist::parse(line?));
    let cpuset = limits::cpuset(root);
    let both = match (affinity, cpuset) {
        (Some(affinity), Some(cpuset)) => cpulist::intersect(&affinity, &cpuset),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => Vec::new(),
    };
    if both.is_empty() {
        warnings.push("neither affinity nor cpuset names a CPU; using one thread".into());
        return vec![0];
    }
    both
}

/// Groups CPUs by their list of siblings.
fn cores(root: &Path, allowed: &[u32], warnings: &mut Vec<String>) -> Vec<Core> {
    let mut cores: Vec<(Option<u32>, Core)> = Vec::new();
    let mut unknown = 0;
    for &cpu in allowed {
        let dir = root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
        let read = |file: &str| fs::read_to_string(dir.join(file)).ok();
        let siblings = read("core_cpus_list").or_else(|| read("thread_siblings_list"));
        let first = siblings.and_then(|list| cpulist::parse(&list)?.first().copied());
        let package = read("physical_package_id").and_then(|id| id.trim().parse().ok()).unwrap_or(0);
        unknown += usize::from(first.is_none());
        match cores.iter_mut().find(|(key, _)| first.is_some() && *key == first) {
            Some((_, core)) => core.cpus.push(cpu),
            None => cores.push((first, Core { package, cpus: vec![cpu] })),
        }
    }
    if unknown > 0 {
        warnings
            .push(format!("/sys does not say which of {unknown} CPUs share a core; each counts as a core"));
    }
    cores.into_iter().map(|(_, core)| core).collect()
}

fn huge_pages(root: &Path) -> HugePages {
    let text =
        fs::read_to_string(root.join("sys/kernel/mm/transparent_hugepage/enabled")).unwrap_or_default();
    match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word) {
        Some("always") => HugePages::Always,
        Some("madvise") => HugePages::Madvise,
        Some("never") => HugePages::Never,
        _ => HugePages::Unknown,
    }
}

/// Size in bytes of the data cache of a level, and how many CPUs share it.
fn cache(dir: &Path, level: &str) -> Option<(u64, usize)> {
    (0..8).map(|idx| dir.join(format!("index{idx}"))).find_map(|index| {
        let read = |file: &str| fs::read_to_string(index.join(file)).ok().map(|text| text.trim().to_owned());
        if read("level")? != level || read("type")? == "Instruction" {
            return None;
        }
        let shared =
            read("shared_cpu_list").and_then(|list| cpulist::parse(&list)).map_or(1, |cpus| cpus.len());
        Some((cache_bytes(&read("size")?)?, shared.max(1)))
    })
}

fn cache_bytes(size: &str) -> Option<u64> {
    let (number, unit) = match size.strip_suffix(['K', 'M']) {
        Some(number) => (number, if size.ends_with('K') { 1 << 10 } else { 1 << 20 }),
        None => (size, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}
