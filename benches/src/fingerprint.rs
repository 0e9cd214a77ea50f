//! What machine measured, and how it was used: enough to know whether two files may be compared.

use std::fs;
use std::process::Command;

use muster_kernels::isa;
use muster_trainer::topology::HostFacts;
use serde::{Deserialize, Serialize};

/// The machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the CPU.
    pub cpu: String,
    /// Instruction set of the kernels.
    pub isa: String,
    /// Physical cores that the process may use.
    pub cores: usize,
    /// CPUs that the process may use.
    pub cpus: usize,
    /// NUMA nodes with an allowed CPU.
    pub numa_nodes: usize,
    /// Packages with an allowed CPU.
    pub packages: usize,
    /// Last-level cache shared by neighbouring cores, in bytes.
    pub l3_bytes: Option<u64>,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Frequency governor of the first CPU, if the kernel tells.
    pub governor: Option<String>,
    /// Hypervisor, if there is one.
    pub hypervisor: Option<String>,
    /// CPUs' worth of time that a group may take, if limited.
    pub quota_cpus: Option<f64>,
    /// `transparent_hugepage`.
    pub huge_pages: String,
    /// Release of the kernel.
    pub kernel: String,
    /// TCP congestion control that is the default.
    pub tcp_congestion: Option<String>,
    /// Version of Muster.
    pub muster: String,
    /// Commit of its source, with a plus if files were changed; `unknown` away from it.
    pub commit: String,
}

/// How the machine was used.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Settings {
    /// Compute threads of a rank.
    pub threads: usize,
    /// Whether each was bound to a CPU.
    pub pinned: bool,
    /// Storage of weights and activations.
    pub precision: String,
    /// The work, in words.
    pub workload: String,
    /// Load average of the last minute at the start.
    pub load: f64,
    /// Other settings by name.
    #[serde(default)]
    pub more: std::collections::BTreeMap<String, String>,
}

fn first_line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

fn cpu_field(name: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

impl Machine {
    /// Reads this machine; what can't be read is left out.
    pub fn detect() -> Self {
        let host = HostFacts::detect();
        let flags = cpu_field("flags").unwrap_or_default();
        let virtual_machine = flags.split_whitespace().any(|flag| flag == "hypervisor");
        let vendor =
            first_line("/sys/hypervisor/type").or_else(|| first_line("/sys/class/dmi/id/sys_vendor"));
        Self {
            cpu: cpu_field("model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            isa: isa::detect().chosen.name().into(),
            cores: host.cores.len(),
            cpus: host.allowed.len(),
            numa_nodes: host.nodes.len(),
            packages: host.packages(),
            l3_bytes: host.l3.map(|(bytes, _)| bytes),
            memory_bytes: host.memory.total,
            governor: first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            hypervisor: virtual_machine.then(|| vendor.unwrap_or_else(|| "some".into())),
            quota_cpus: host.quota.map(|quota| quota.cpus),
            huge_pages: host.huge_pages.as_str().into(),
            kernel: first_line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            tcp_congestion: first_line("/proc/sys/net/ipv4/tcp_congestion_control"),
            muster: env!("CARGO_PKG_VERSION").into(),
            commit: commit(),
        }
    }

    /// Why absolute numbers of two machines can't be compared; nothing if they can.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |what: &str, a: String, b: String| {
            if a != b {
                found.push(format!("{what}: {a} and {b}"));
            }
        };
        compare("CPU", self.cpu.clone(), other.cpu.clone());
        compare("kernels", self.isa.clone(), other.isa.clone());
        compare("cores", self.cores.to_string(), other.cores.to_string());
        compare("NUMA nodes", self.numa_nodes.to_string(), other.numa_nodes.to_string());
        let quota = |machine: &Self| machine.quota_cpus.map_or("none".into(), |cpus| cpus.to_string());
        compare("quota", quota(self), quota(other));
        let governor = |machine: &Self| machine.governor.clone().unwrap_or_else(|| "unknown".into());
        compare("governor", governor(self), governor(other));
        found
    }

    /// One line for reports.
    pub fn describe(&self) -> String {
        let mut text = format!(
            "{}, {} cores on {} NUMA nodes, {:.0} GiB, kernels {}, Linux {}",
            self.cpu,
            self.cores,
            self.numa_nodes,
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.isa,
            self.kernel
        );
        if self.hypervisor.is_some() {
            text.push_str(", virtual");
        }
        if let Some(governor) = &self.governor {
            text.push_str(&format!(", governor {governor}"));
        }
        if let Some(quota) = self.quota_cpus {
            text.push_str(&format!(", quota {quota} CPUs"));
        }
        text + &format!("; muster {} ({})", self.muster, self.commit)
    }
}

/// Load average of the last minute.
pub fn load() -> f64 {
    let text = first_line("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Of the source this program was built from, where it still is; builds elsewhere set `MUSTER_COMMIT`.
fn commit() -> String {
    if let Some(given) = option_env!("MUSTER_COMMIT") {
        return given.into();
    }
    let git = |args: &[&str]| {
        let output =
            Command::new("git").arg("-C").arg(env!("CARGO_MANIFEST_DIR")).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".into() };
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    if changed { head + "+" } else { head }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_knows_itself_and_what_sets_another_apart() {
        let here = Machine::detect();
        assert!(here.cores > 0 && here.memory_bytes > 0 && !here.kernel.is_empty(), "{here:?}");
        assert!(here.differences(&here).is_empty());
        let other = Machine { cores: here.cores + 1, isa: "none".into(), ..here.clone() };
        assert_eq!(here.differences(&other).len(), 2);
        assert!(here.describe().contains("cores on"), "{}", here.describe());
    }
}
