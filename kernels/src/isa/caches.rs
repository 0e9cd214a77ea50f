//! Sizes of the data caches, which decide how products are blocked.

use std::sync::OnceLock;

/// Bytes of data cache that one core has to itself at each level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caches {
    /// First level.
    pub l1d: usize,
    /// Second level.
    pub l2: usize,
}

/// Where the CPU doesn't say, or says nonsense (some virtual machines): the smallest of the last ten years.
const FALLBACK: Caches = Caches { l1d: 32 << 10, l2: 256 << 10 };

impl Caches {
    /// Asks this machine, once.
    pub fn here() -> Self {
        static HERE: OnceLock<Caches> = OnceLock::new();
        *HERE.get_or_init(|| {
            let found = ask().unwrap_or(FALLBACK);
            Self { l1d: found.l1d.clamp(FALLBACK.l1d, 128 << 10), l2: found.l2.clamp(FALLBACK.l2, 4 << 20) }
        })
    }

    /// Bytes of the last level, which cores share; what streams past more than that gains nothing from caches.
    pub fn last_level_bytes() -> usize {
        static HERE: OnceLock<usize> = OnceLock::new();
        *HERE.get_or_init(|| {
            levels().map_or(8 << 20, |size_at| (2..5).filter_map(size_at).max().unwrap_or(8 << 20))
        })
    }
}

fn ask() -> Option<Caches> {
    let size_at = levels()?;
    Some(Caches { l1d: size_at(1)?, l2: size_at(2)? })
}

#[cfg(not(target_arch = "x86_64"))]
fn levels() -> Option<impl Fn(u32) -> Option<usize>> {
    None::<fn(u32) -> Option<usize>>
}

/// Reads bytes by level from the deterministic cache parameters: leaf 4 (Intel), or 0x8000001d with the same layout (AMD).
#[cfg(target_arch = "x86_64")]
fn levels() -> Option<impl Fn(u32) -> Option<usize>> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let leaf = [4, 0x8000_001d].into_iter().find(|&leaf| {
        let highest = __cpuid(leaf & 0x8000_0000).eax;
        highest >= leaf && __cpuid_count(leaf, 0).eax & 31 != 0
    })?;
    Some(move |level: u32| {
        (0..8).map(|i| __cpuid_count(leaf, i)).take_while(|c| c.eax & 31 != 0).find_map(|c| {
            // Type 1 holds data, type 3 data and instructions.
            let data = matches!(c.eax & 31, 1 | 3) && c.eax >> 5 & 7 == level;
            let ways = (c.ebx >> 22) as usize + 1;
            let partitions = (c.ebx >> 12 & 0x3ff) as usize + 1;
            let line = (c.ebx & 0xfff) as usize + 1;
            data.then(|| ways * partitions * line * (c.ecx as usize + 1))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_plausible() {
        let c = Caches::here();
        assert!(c.l1d.is_multiple_of(1024) && c.l2 >= c.l1d, "{c:?}");
        assert!(Caches::last_level_bytes() >= 256 << 10);
    }
}
