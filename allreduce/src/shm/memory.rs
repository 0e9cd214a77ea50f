//! Shared memory of one rank: a sealed memfd, and its mapping.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::error::ShmError;
use super::protocol::{Bell, OpLine, Progress, SLOTS};

/// Offsets in a rank's memory. Everything before the arena has a fixed size.
const LINES: usize = 0;
const PROGRESS: usize = LINES + SLOTS as usize * size_of::<OpLine>();
const BELL: usize = PROGRESS + size_of::<Progress>();
const FLAT: usize = 4096;
const INCOMING: usize = FLAT + SLOTS as usize * FLAT_SLOT;
const RESULT: usize = INCOMING + SLOTS as usize * INCOMING_SLOT;
const ARENA: usize = RESULT + SLOTS as usize * RESULT_SLOT;

/// Bytes of a slot of the one-shot exchange.
pub(super) const FLAT_SLOT: usize = 32 << 10;
/// Bytes of a slot of contributions to the shards of all others.
pub(super) const INCOMING_SLOT: usize = 128 << 10;
/// Bytes of a slot of results.
pub(super) const RESULT_SLOT: usize = 128 << 10;

/// Alignment of everything in an arena.
pub const ARENA_ALIGN: usize = 64;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Name of the memory files of this process, by which the system shows where their pages lie.
pub fn memory_name() -> String {
    format!("muster-shm-{}", std::process::id())
}

/// The mapped memory of one rank.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; what lies in it is atomics, and bytes that the
// protocol hands to one writer at a time.
unsafe impl Send for Memory {}
// SAFETY: as above; shared references give atomics and raw pointers only.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates memory with an arena of so many bytes and maps it.
    ///
    /// Pages are reserved now: a lack of memory is an error here and no signal later.
    pub(super) fn create(me: usize, arena: usize) -> Result<(OwnedFd, Self), ShmError> {
        let too_large = || ShmError::Config { name: "arena", problem: format!("{arena} bytes are too many") };
        let bytes =
            arena.checked_next_multiple_of(4096).and_then(|a| a.checked_add(ARENA)).ok_or_else(too_large)?;
        let length = u64::try_from(bytes).ok().filter(|&b| b < 1 << 62).ok_or_else(too_large)?;
        let system = |attempt: &str, e: rustix::io::Errno| ShmError::System {
            me,
            attempt: attempt.into(),
            source: Arc::new(e.into()),
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(memory_name(), flags).map_err(|e| system("create a memfd", e))?;
        rustix::fs::ftruncate(&fd, length).map_err(|e| system("size its memfd", e))?;
        // A reservation that can't be met would wake the kernel's killer before it fails.
        if available().is_some_and(|free| length > free) {
            let source = std::io::Error::from(rustix::io::Errno::NOMEM);
            return Err(ShmError::NoMemory { me, bytes, source: Arc::new(source) });
        }
        let memory = Self::map(fd.as_fd(), bytes).map_err(|e| system("map its memfd", e))?;
        memory.fill();
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, length).map_err(|e| ShmError::NoMemory {
            me,
            bytes,
            source: Arc::new(e.into()),
        })?;
        // Whoever maps it can rely on its size for ever.
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(|e| system("seal its memfd", e))?;
        Ok((fd, memory))
    }

    /// Maps the memory of a peer, after checking that nobody can shrink it.
    pub(super) fn of_peer(fd: BorrowedFd<'_>, arena: usize) -> Result<Self, String> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|e| format!("no seals on its memory: {e}"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err("its memory could shrink".into());
        }
        let size = rustix::fs::fstat(fd).map_err(|e| format!("no size of its memory: {e}"))?.st_size;
        let bytes = arena.checked_next_multiple_of(4096).and_then(|a| a.checked_add(ARENA));
        match bytes {
            Some(bytes) if i64::try_from(bytes) == Ok(size) => {
                let memory = Self::map(fd, bytes).map_err(|e| format!("mapping its memory: {e}"))?;
                memory.fill();
                Ok(memory)
            }
            _ => Err(format!("{size} bytes of memory don't fit an arena of {arena}")),
        }
    }

    fn map(fd: BorrowedFd<'_>, bytes: usize) -> rustix::io::Result<Self> {
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags, fd, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, bytes })
    }

    /// Asks for large pages, and for all of them now, so that no page fault falls into an operation.
    ///
    /// Where the system knows neither, pages come when they are touched; the reservation holds all the same.
    fn fill(&self) {
        for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateWrite] {
            // SAFETY: our own mapping; neither changes what is in it.
            let _ = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.bytes, advice) };
        }
    }

    /// The line of an operation.
    pub(super) fn line(&self, operation: u64) -> &OpLine {
        let at = LINES + (operation % SLOTS) as usize * size_of::<OpLine>();
        // SAFETY: inside the mapping, aligned, and atomics for which zeros and any other bits are valid.
        unsafe { self.base.add(at).cast().as_ref() }
    }

    /// The last operation that the rank has begun.
    pub(super) fn begun(&self) -> u64 {
        (0..SLOTS).map(|slot| self.line(slot).seq.load(Ordering::Acquire)).max().unwrap_or(0)
    }

    pub(super) fn progress(&self) -> &Progress {
        // SAFETY: as for `line`.
        unsafe { self.base.add(PROGRESS).cast().as_ref() }
    }

    pub(super) fn bell(&self) -> &Bell {
        // SAFETY: as for `line`.
        unsafe { self.base.add(BELL).cast().as_ref() }
    }

    /// Slot of the one-shot exchange, [`FLAT_SLOT`] bytes.
    pub(super) fn flat(&self, operation: u64) -> *mut u8 {
        self.at(FLAT + (operation % SLOTS) as usize * FLAT_SLOT)
    }

    /// Slot of contributions, [`INCOMING_SLOT`] bytes.
    pub(super) fn incoming(&self, chunk: u64) -> *mut u8 {
        self.at(INCOMING + (chunk % SLOTS) as usize * INCOMING_SLOT)
    }

    /// Slot of results, [`RESULT_SLOT`] bytes.
    pub(super) fn result(&self, chunk: u64) -> *mut u8 {
        self.at(RESULT + (chunk % SLOTS) as usize * RESULT_SLOT)
    }

    /// The first byte of the arena, aligned to a page.
    pub(super) fn arena(&self) -> *mut u8 {
        self.at(ARENA)
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.bytes);
        // SAFETY: all offsets above lie inside the mapping, which holds at least `ARENA` bytes.
        unsafe { self.base.add(offset).as_ptr() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this size; nothing borrowed from it outlives it. An error would mean
        // that it is no mapping, and leaves nothing to do.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Bytes that can be had without pushing anybody out: of the machine, and of the container. None if nobody
/// says.
fn available() -> Option<u64> {
    let number = |path: String| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = meminfo.as_deref().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
    });
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let container = ["", own].into_iter().filter_map(|path| {
        let folder = format!("/sys/fs/cgroup{path}");
        // "max" is no number, and no limit.
        let limit = number(format!("{folder}/memory.max"))?;
        Some(limit.saturating_sub(number(format!("{folder}/memory.current")).unwrap_or(0)))
    });
    container.chain(machine).min()
}

const _: () = assert!(BELL + size_of::<Bell>() <= FLAT && ARENA.is_multiple_of(4096));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_beyond_memory_is_an_error_and_no_signal() {
        let error = Memory::create(3, 1 << 50).unwrap_err();
        assert!(matches!(error, ShmError::NoMemory { me: 3, .. }), "{error}");
        assert!(error.hint().unwrap().contains("arena"));
        assert!(matches!(Memory::create(0, usize::MAX), Err(ShmError::Config { .. })));
    }

    #[test]
    fn memory_of_another_size_is_refused() {
        let (fd, memory) = Memory::create(0, 100).unwrap();
        assert_eq!(memory.bytes, ARENA + 4096);
        assert!(Memory::of_peer(fd.as_fd(), 100).is_ok());
        assert!(Memory::of_peer(fd.as_fd(), 5000).unwrap_err().contains("5000"));
        let unsealed = rustix::fs::memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
        assert!(Memory::of_peer(unsealed.as_fd(), 100).unwrap_err().contains("shrink"));
        assert!(rustix::fs::ftruncate(&fd, 0).is_err(), "sealed");
    }
}
