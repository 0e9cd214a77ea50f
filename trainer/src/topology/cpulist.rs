//! The kernel's notation of CPU sets: `0-3,8,10-11`.

use muster_proto::limits::MAX_CPUS;

/// Reads a CPU list into ascending numbers; `None` if it is malformed or names impossible CPUs.
pub(super) fn parse(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last as usize >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// Writes ascending CPU numbers in the kernel's notation.
pub fn format(cpus: &[u32]) -> String {
    let mut parts = Vec::new();
    let mut rest = cpus;
    while let Some(&first) = rest.first() {
        let run = rest.iter().zip(first..).take_while(|(cpu, expected)| *cpu == expected).count();
        parts.push(match run {
            1 => first.to_string(),
            _ => format!("{first}-{}", rest[run - 1]),
        });
        rest = &rest[run..];
    }
    parts.join(",")
}

/// CPUs that are in both ascending lists.
pub(super) fn intersect(a: &[u32], b: &[u32]) -> Vec<u32> {
    a.iter().copied().filter(|cpu| b.binary_search(cpu).is_ok()).collect()
}
