//! How many compute threads to start, and on which CPUs.

use super::HostFacts;

/// The compute threads of this process.
#[derive(Debug, Clone, PartialEq)]
pub struct CpuBudget {
    /// CPUs the process may run on.
    pub allowed: Vec<u32>,
    /// Physical cores among them.
    pub physical: usize,
    /// CPU quota, in CPUs.
    pub quota: Option<f64>,
    /// Compute threads to start, at least 1.
    pub threads: usize,
    /// One CPU for each thread, physical cores first, then their siblings; shorter if threads exceed CPUs.
    pub cpus: Vec<u32>,
    /// Why it is this number of threads.
    pub reason: String,
    /// What is wrong with the number that the user asked for, if anything is.
    pub warning: Option<String>,
}

/// Chooses the number of threads: what the user asks for, or min(physical cores, floor(quota)).
pub fn cpu_budget(facts: &HostFacts, wanted: Option<usize>) -> CpuBudget {
    let physical = facts.cores.len().max(1);
    let quota = facts.quota.as_ref().map(|q| q.cpus);
    // A share below one CPU still needs one thread.
    let within_quota = quota.map_or(usize::MAX, |cpus| (cpus.floor() as usize).max(1));
    let auto = physical.min(within_quota);
    let threads = wanted.unwrap_or(auto);
    let reason = match wanted {
        Some(_) => "train.threads".to_owned(),
        None => reason(facts, physical, within_quota),
    };
    CpuBudget {
        allowed: facts.allowed.clone(),
        physical,
        quota,
        threads,
        cpus: physical_first(facts).into_iter().take(threads).collect(),
        reason,
        warning: wanted.and_then(|n| warning(facts, n, within_quota)),
    }
}

fn reason(facts: &HostFacts, physical: usize, within_quota: usize) -> String {
    let allowed = facts.allowed.len();
    let list = facts.allowed_list();
    let cores = match (physical, allowed) {
        (1, 1) => format!("one CPU allowed ({list})"),
        (cores, cpus) if cores == cpus => format!("{cpus} CPUs allowed ({list})"),
        (cores, cpus) => format!("{cpus} CPUs allowed ({list}) on {cores} physical cores"),
    };
    match &facts.quota {
        Some(quota) if within_quota < physical => {
            format!("{cores}; the quota of {} CPUs is tighter ({})", quota.cpus, quota.place)
        }
        Some(quota) => format!("{cores}; the quota of {} CPUs is wider", quota.cpus),
        None => format!("{cores}; no CPU quota"),
    }
}

fn warning(facts: &HostFacts, wanted: usize, within_quota: usize) -> Option<String> {
    let allowed = facts.allowed.len();
    if wanted > within_quota {
        let quota = facts.quota.as_ref().map_or(0.0, |q| q.cpus);
        return Some(format!(
            "{wanted} threads exceed the quota of {quota} CPUs: the kernel will throttle them"
        ));
    }
    let list = facts.allowed_list();
    (wanted > allowed)
        .then(|| format!("{wanted} threads share {allowed} allowed CPUs ({list}): expect slow steps"))
}

/// The first thread of every core, then the second of every core that has one, and so on.
fn physical_first(facts: &HostFacts) -> Vec<u32> {
    let most = facts.cores.iter().map(|core| core.cpus.len()).max().unwrap_or(0);
    (0..most).flat_map(|nth| facts.cores.iter().filter_map(move |core| core.cpus.get(nth).copied())).collect()
}
