//! A test's promise that tile instructions execute on a CPU that has none.

use std::sync::atomic::{AtomicBool, Ordering};

use super::detect::{Cpu, Isa};

static TILES: AtomicBool = AtomicBool::new(false);

/// Makes pools choose AMX whatever CPU this is, unless a cap forbids it; for tests of the AMX path alone.
///
/// [`Cpu`] stays honest: AMX without AVX-512 is possible from then on.
///
/// # Safety
/// On every thread of this process tile instructions execute or are executed in software (`tests/amx-trap`).
#[doc(hidden)]
pub unsafe fn assume_tiles() {
    TILES.store(true, Ordering::Relaxed);
}

/// Whether a test has made that promise. Nothing asks the system for the use of real tiles then.
#[doc(hidden)]
pub fn tiles_assumed() -> bool {
    TILES.load(Ordering::Relaxed)
}

/// Lowers an instruction set to what this process executes.
///
/// `Amx` means that tile instructions do, and nothing else: code with AVX-512 intrinsics asks [`Cpu::best`].
pub fn executable(isa: Isa) -> Isa {
    if isa == Isa::Amx && tiles_assumed() { isa } else { isa.min(Cpu::here().best()) }
}
