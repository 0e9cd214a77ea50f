//! `muster doctor`: what this machine offers, what would be slow, and why.

use muster_kernels::isa;
use muster_trainer::topology::{
    CpuBudget, HostFacts, HugePages, NodesFrom, cpu_budget, cpu_list as list, local_share_of_touched,
    may_bind_memory, split_cpus,
};
use serde::Serialize;

use crate::args::Global;
use crate::commands::{print, table};
use crate::exit::Exit;
use crate::host;

/// One line of the report.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Finding {
    what: &'static str,
    value: String,
    detail: String,
}

/// Something slow and its reason.
#[derive(Debug, Serialize, PartialEq, Eq)]
struct Slow {
    what: String,
    fix: String,
}

#[derive(Debug, Serialize)]
struct Report {
    findings: Vec<Finding>,
    slow: Vec<Slow>,
    warnings: Vec<String>,
}

/// Reports on this machine.
///
/// # Errors
/// A stdout that can't be written.
pub fn run(global: &Global) -> anyhow::Result<Exit> {
    let host = host::detect();
    let mut report = examine(&host, &isa::detect());
    report.findings.extend(rank_findings(&host, &try_memory));
    report.findings.push(policy_finding(may_bind_memory(&host)));
    print(global, &report, || render(&report))?;
    Ok(Exit::Success)
}

fn examine(host: &HostFacts, cpu: &isa::Report) -> Report {
    let budget = cpu_budget(host, None);
    let mut findings = cpu_findings(cpu);
    findings.extend(host_findings(host, &budget));
    Report { findings, slow: slow(host, cpu, &budget), warnings: host.warnings.clone() }
}

fn finding(what: &'static str, value: impl Into<String>, detail: impl Into<String>) -> Finding {
    Finding { what, value: value.into(), detail: detail.into() }
}

fn cpu_findings(cpu: &isa::Report) -> Vec<Finding> {
    let names = |present: bool| {
        let names: Vec<_> = cpu.features.iter().filter(|f| f.present == present).map(|f| f.name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(" ") }
    };
    let (precision, why) = match cpu.bf16_is_emulated {
        true => ("f32", "these kernels only emulate bf16"),
        false => ("bf16", "these kernels multiply bf16 natively"),
    };
    vec![
        finding("CPU features", names(true), format!("missing: {}", names(false))),
        finding("kernels", cpu.chosen.name(), cpu.reason.clone()),
        finding("precision = \"auto\"", precision, why),
    ]
}

fn host_findings(host: &HostFacts, budget: &CpuBudget) -> Vec<Finding> {
    let quota = match &host.quota {
        Some(quota) => finding("CPU quota", format!("{} CPUs", quota.cpus), quota.place.clone()),
        None => finding("CPU quota", "none", "no group limits CPU time"),
    };
    let nodes: Vec<String> =
        host.nodes.iter().map(|n| format!("node {}: {} CPUs", n.node, n.cpus.len())).collect();
    let from = match host.nodes_from {
        NodesFrom::Hwloc => "read by hwloc",
        NodesFrom::Sys => "read from /sys",
    };
    let mib =
        |bytes: Option<u64>| bytes.map_or("unknown".into(), |b| format!("{:.1} MiB", b as f64 / 1048576.0));
    let l3 = host.l3.map_or("unknown".into(), |(b, n)| format!("{} shared by {n} CPUs", mib(Some(b))));
    let throttled = host.throttling.map(|t| {
        let seconds = t.throttled_us as f64 / 1e6;
        (format!("{} of {} periods stopped", t.throttled, t.periods), seconds)
    });
    let mut findings = vec![
        finding("compute threads", budget.threads.to_string(), budget.reason.clone()),
        finding(
            "physical cores",
            budget.physical.to_string(),
            format!("allowed CPUs {}", host.allowed_list()),
        ),
        quota,
        finding("NUMA nodes", host.nodes.len().to_string(), format!("{} ({from})", nodes.join(", "))),
        finding("packages", host.packages().to_string(), "sockets with an allowed CPU"),
        finding("caches", format!("level 2 {}", mib(host.l2_bytes)), format!("level 3 {l3}")),
        finding("memory", gigabytes(host.memory.usable()), host.memory.describe()),
        finding("huge pages", host.huge_pages.as_str(), "transparent_hugepage/enabled"),
    ];
    if let Some((text, seconds)) = throttled {
        let detail = format!("{seconds:.1} s of all threads, since the group was made");
        findings.insert(3, finding("throttling", text, detail));
    }
    findings
}

/// What a trial says about memory that is touched from these CPUs: the share of it on these NUMA nodes.
type Trial<'a> = &'a dyn Fn(&[u32], &[u32]) -> Result<f64, String>;

fn try_memory(cpus: &[u32], nodes: &[u32]) -> Result<f64, String> {
    local_share_of_touched(cpus, nodes)
}

/// The ranks that `ranks.per_node = "numa"` would start here, each with a trial of its memory.
fn rank_findings(host: &HostFacts, trial: Trial<'_>) -> Vec<Finding> {
    let count = host.nodes.len();
    // Where there is one, it is usually not the only one of its run.
    let split = match split_cpus(host, count, count.max(2)) {
        Ok(split) => split,
        Err(error) => return vec![finding("ranks", "none", error.to_string())],
    };
    let mut findings = vec![finding("ranks", count.to_string(), split.reason)];
    for (rank, (cpus, node)) in split.ranks.iter().zip(&host.nodes).enumerate() {
        let local = match trial(&cpus.cpus, &[node.node]) {
            Ok(share) => format!("{:.1} % of touched memory was NUMA-local", share * 100.0),
            Err(why) => format!("where its memory lies is unknown: {why}"),
        };
        let mut sorted = cpus.cpus.clone();
        sorted.sort_unstable();
        let detail = format!("CPUs {} of NUMA node {}; {local}", list(&sorted), node.node);
        findings.push(finding("rank", format!("{rank}: {} cores", cpus.cores), detail));
    }
    if !split.spare.is_empty() {
        findings.push(finding("communication", format!("CPUs {}", list(&split.spare)), "left over by ranks"));
    }
    findings
}

fn policy_finding(allowed: Result<(), String>) -> Finding {
    match allowed {
        Ok(()) => finding("memory policy", "allowed", "ranks.membind can bind memory to NUMA nodes"),
        Err(error) => finding(
            "memory policy",
            "refused",
            format!("{error}; bound threads touch memory first instead, which needs no privilege"),
        ),
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

fn slow(host: &HostFacts, cpu: &isa::Report, budget: &CpuBudget) -> Vec<Slow> {
    let mut slow = Vec::new();
    let mut add = |what: String, fix: &str| slow.push(Slow { what, fix: fix.into() });
    if cpu.chosen == isa::Isa::Scalar {
        add(
            "no AVX2: products run 5 to 10 times slower than on any server since 2014".into(),
            "use another machine",
        );
    } else if cpu.cap.is_some_and(|cap| cap < cpu.best) {
        add(format!("kernels are capped below {}", cpu.best.name()), "unset MUSTER_MAX_ISA");
    }
    if cpu.bf16_is_emulated {
        add(
            "precision = \"bf16\" would be emulated and slower than f32".into(),
            "leave precision at \"auto\"",
        );
    }
    if let Some(quota) = budget.quota.filter(|&quota| quota.fract() != 0.0) {
        let unused = format!("the quota of {quota} CPUs is not a whole number: the fraction is unused");
        add(unused, "give the container whole CPUs");
    }
    if host.throttling.is_some_and(|t| t.throttled * 20 > t.periods && t.periods > 0) {
        add(
            "the quota stopped this group in over 5 % of its periods".into(),
            "raise the CPU limit, or start less in the group",
        );
    }
    if host.huge_pages == HugePages::Never {
        add(
            "transparent huge pages are off: large arrays cost more address translations".into(),
            "set them to madvise",
        );
    }
    if host.nodes.len() > 1 {
        let nodes = host.nodes.len();
        let what = format!("one rank spans {nodes} NUMA nodes: half or more of its memory traffic is remote");
        add(
            what,
            &format!("train with --ranks {nodes}, one for each NUMA node; they reduce through shared memory"),
        );
    }
    slow
}

fn render(report: &Report) -> String {
    let rows: Vec<_> =
        report.findings.iter().map(|f| vec![f.what.into(), f.value.clone(), f.detail.clone()]).collect();
    let mut text = table(&["what", "value", "detail"], &rows);
    text.push_str("\nwhat would be slow\n");
    for slow in &report.slow {
        text.push_str(&format!("  {}\n    fix: {}\n", slow.what, slow.fix));
    }
    if report.slow.is_empty() {
        text.push_str("  nothing found\n");
    }
    for warning in &report.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_trainer::topology::{Core, MemoryFacts, NumaNode, Quota, Throttling};

    fn host() -> HostFacts {
        let node = |node: u32| NumaNode { node, cpus: vec![2 * node, 2 * node + 1], memory_bytes: 0 };
        HostFacts {
            allowed: (0..4).collect(),
            cores: (0..4).map(|cpu| Core { package: cpu / 2, cpus: vec![cpu] }).collect(),
            quota: Some(Quota { cpus: 2.5, place: "/sys/fs/cgroup/cpu.max".into() }),
            throttling: Some(Throttling { periods: 100, throttled: 30, throttled_us: 1 }),
            memory: MemoryFacts { total: 8_000_000_000, available: 4_000_000_000, ..MemoryFacts::default() },
            huge_pages: HugePages::Never,
            nodes: vec![node(0), node(1)],
            nodes_from: NodesFrom::Sys,
            l2_bytes: Some(1 << 20),
            l3: Some((32 << 20, 4)),
            warnings: vec!["hwloc can't read the topology".into()],
        }
    }

    #[test]
    fn the_report_shows_limits_and_says_what_would_be_slow() {
        let cpu = isa::Cpu { avx2: true, fma: true, ..isa::Cpu::default() };
        let report = examine(&host(), &cpu.report(None));
        let text = render(&report);
        for part in [
            "avx2 fma",
            "2.5 CPUs",
            "/sys/fs/cgroup/cpu.max",
            "30 of 100 periods",
            "node 1: 2 CPUs",
            "4.0 GB",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let threads = report.findings.iter().find(|f| f.what == "compute threads").expect("a finding");
        assert_eq!(threads.value, "2");
        let slow: Vec<_> = report.slow.iter().map(|s| s.what.as_str()).collect();
        for part in ["bf16", "fraction is unused", "over 5 %", "huge pages", "2 NUMA nodes"] {
            assert!(slow.iter().any(|what| what.contains(part)), "{part} in {slow:?}");
        }
        assert!(text.ends_with("warning: hwloc can't read the topology\n"));
    }

    #[test]
    fn ranks_are_shown_with_their_cpus_and_where_their_memory_lies() {
        let mut host = host();
        host.quota = None;
        let trial = |cpus: &[u32], nodes: &[u32]| match nodes {
            [0] => Ok(0.5),
            _ => Err(format!("{cpus:?}")),
        };
        let findings = rank_findings(&host, &trial);
        let text: Vec<_> = findings.iter().map(|f| format!("{} {} {}", f.what, f.value, f.detail)).collect();
        assert_eq!(
            text,
            [
                "ranks 2 2 ranks on 2 NUMA nodes",
                "rank 0: 2 cores CPUs 0-1 of NUMA node 0; 50.0 % of touched memory was NUMA-local",
                "rank 1: 2 cores CPUs 2-3 of NUMA node 1; where its memory lies is unknown: [2, 3]",
            ]
        );
        host.cores = (0..16).map(|cpu| Core { package: cpu / 8, cpus: vec![cpu] }).collect();
        host.nodes = [0, 8]
            .map(|cpu| NumaNode { node: cpu / 8, cpus: (cpu..cpu + 8).collect(), memory_bytes: 0 })
            .into();
        let findings = rank_findings(&host, &trial);
        assert_eq!(findings.last().map(|f| f.value.as_str()), Some("CPUs 7"));
        let refused = policy_finding(Err("Operation not permitted".into()));
        assert!(refused.detail.contains("not permitted; bound threads"), "{refused:?}");
    }

    #[test]
    fn case_7_an_old_cpu_and_a_cap_are_named() {
        let old = examine(&host(), &isa::Cpu::default().report(None));
        assert!(old.slow[0].what.contains("no AVX2"));
        let new = isa::Cpu { avx2: true, fma: true, avx512: true, ..isa::Cpu::default() };
        let capped = examine(&host(), &new.report(Some(isa::Isa::Avx2)));
        assert_eq!(capped.slow[0].what, "kernels are capped below avx512");
    }
}
