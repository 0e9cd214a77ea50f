//! How much of this process's memory lies on its own NUMA nodes (`/proc/self/numa_maps`).
//!
//! What counts is memory that the process made: anonymous pages, and shared memory that carries its name. Files and the
//! memory of other ranks lie where others touched them.

/// Own memory that has pages, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnMemory {
    /// On any node.
    pub bytes: u64,
    /// On the nodes asked about.
    pub local_bytes: u64,
}

impl OwnMemory {
    /// The share on the nodes asked about; none for no memory.
    pub fn local_share(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.local_bytes as f64 / self.bytes as f64)
    }
}

/// Counts the own memory in the text of `numa_maps`: anonymous mappings, and memory files named `own_file`.
pub fn own_memory(numa_maps: &str, own_file: &str, nodes: &[u32]) -> OwnMemory {
    count(numa_maps, nodes, |file| file.is_none_or(|file| memory_file(file) == Some(own_file)))
}

/// Counts the memory files of this name.
pub(super) fn file_memory(numa_maps: &str, own_file: &str, nodes: &[u32]) -> OwnMemory {
    count(numa_maps, nodes, |file| file.and_then(memory_file) == Some(own_file))
}

/// The name of a memory file, from `/memfd:NAME\040(deleted)`.
fn memory_file(file: &str) -> Option<&str> {
    file.strip_prefix("/memfd:").map(|name| name.split('\\').next().unwrap_or(name))
}

fn count(numa_maps: &str, nodes: &[u32], counts: impl Fn(Option<&str>) -> bool) -> OwnMemory {
    let mut memory = OwnMemory::default();
    for line in numa_maps.lines() {
        let words = || line.split(' ').skip(2);
        if !counts(words().find_map(|word| word.strip_prefix("file="))) {
            continue;
        }
        let page = words().find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
        let page_bytes = page.unwrap_or(4) * 1024;
        let on_node = |word: &str| {
            let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
            Some((node.parse::<u32>().ok()?, pages.parse::<u64>().ok()?))
        };
        for (node, pages) in words().filter_map(on_node) {
            let bytes = pages.saturating_mul(page_bytes);
            memory.bytes += bytes;
            memory.local_bytes += if nodes.contains(&node) { bytes } else { 0 };
        }
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d5c6a00000 default file=/usr/bin/muster mapped=300 N0=300 kernelpagesize_kB=4
7f0000000000 default anon=100 dirty=100 N0=90 N1=10 kernelpagesize_kB=4
7f1000000000 prefer:0 anon=1024 dirty=1024 active=0 N0=1024 kernelpagesize_kB=4
7f2000000000 default file=/memfd:muster-shm-42\\040(deleted) dirty=50 mapmax=2 N0=49 N1=1 kernelpagesize_kB=4
7f3000000000 default file=/memfd:muster-shm-43\\040(deleted) dirty=50 mapmax=2 N1=50 kernelpagesize_kB=4
7f4000000000 default huge anon=2 dirty=2 N1=2 kernelpagesize_kB=2048
7f5000000000 default
7ffd00000000 default stack anon=5 dirty=5 N0=5 kernelpagesize_kB=4
";

    #[test]
    fn own_pages_are_counted_and_files_and_the_memory_of_others_are_not() {
        let pages = |n: u64| n * 4096;
        let memory = own_memory(MAPS, "muster-shm-42", &[0]);
        assert_eq!(memory.bytes, pages(100 + 1024 + 50 + 1024 + 5));
        assert_eq!(memory.local_bytes, pages(90 + 1024 + 49 + 5));
        assert_eq!(own_memory(MAPS, "muster-shm-42", &[0, 1]).local_share(), Some(1.0));
        assert_eq!(
            file_memory(MAPS, "muster-shm-43", &[1]),
            OwnMemory { bytes: pages(50), local_bytes: pages(50) }
        );
        assert_eq!(own_memory("", "x", &[0]).local_share(), None);
        assert_eq!(own_memory("7f00 garbage N=3 Nx=1 N0=-1\n\n", "x", &[0]), OwnMemory::default());
    }

    #[test]
    fn this_process_has_memory_somewhere() {
        let Ok(maps) = std::fs::read_to_string("/proc/self/numa_maps") else {
            println!("skipped: this kernel has no numa_maps");
            return;
        };
        let all: Vec<u32> = (0..1024).collect();
        assert_eq!(own_memory(&maps, "none", &all).local_share(), Some(1.0));
    }
}
