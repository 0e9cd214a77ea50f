//! Micro-kernels: a (mr, nr) tile of C in registers, from one panel of A and one of B.
//!
//! Packed panels: `depth / group` groups, in each of which every row (of A) or column (of B) has `group` consecutive
//! inner indices. f32 kernels have groups of 1, bf16 dot products pairs, and AMX wants A in whole tile rows of 32.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

use half::bf16;

use super::pack::Panels;
use crate::element::Element;
use crate::isa::{self, Caches, Cpu, Isa};

/// What panels are made of.
pub(super) trait Unit: Element {}
impl Unit for f32 {}
impl Unit for bf16 {}

/// Adds to (or with `first` sets) the tile c (mr, nr), row-major, the product of `depth` inner indices.
///
/// Safety: a has `mr * depth` elements, b `nr * depth`, c `mr * nr`, all on 64-byte lines; the CPU has the
/// instructions; for AMX the tiles are configured.
type Run<U> = unsafe fn(depth: usize, a: *const U, b: *const U, c: *mut f32, first: bool);

/// A micro-kernel and the blocking that suits it. Only this module makes one, for instructions that the CPU has.
pub(super) struct Micro<U> {
    /// Rows of a tile.
    pub(super) mr: usize,
    /// Columns of a tile.
    pub(super) nr: usize,
    /// Most inner indices of a block.
    kc: usize,
    /// Panels of A and of B in a macro-tile: what shares the second-level cache.
    pub(super) macro_tile: (usize, usize),
    a_group: usize,
    b_group: usize,
    /// Packed panels are zero-filled to a multiple of this many inner indices.
    step: usize,
    run: Run<U>,
    tiles: bool,
}

/// Shape of a kernel before the cache sizes are known.
struct Kind<U> {
    tile: (usize, usize),
    groups: (usize, usize),
    run: Run<U>,
    tiles: bool,
}

/// The f32 kernel of an instruction set, lowered to what this CPU has.
pub(super) fn f32(isa: Isa) -> Micro<f32> {
    let kind = match isa.min(Cpu::here().best()) {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Kind { tile: (6, 16), groups: (1, 1), run: avx2::f32_6x16, tiles: false },
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => {
            Kind { tile: (14, 32), groups: (1, 1), run: avx512::f32_14x32, tiles: false }
        }
        _ => Kind { tile: (4, 8), groups: (1, 1), run: scalar::f32_4x8, tiles: false },
    };
    kind.fitted(Caches::here())
}

/// The bf16 kernel of an instruction set, where it has one; others widen to f32 while they pack.
pub(super) fn bf16(isa: Isa) -> Option<Micro<bf16>> {
    let kind = match isa::executable(isa) {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => Kind { tile: (14, 32), groups: (2, 2), run: avx512::bf16_14x32, tiles: false },
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => Kind { tile: (32, 32), groups: (32, 2), run: amx::bf16_32x32, tiles: true },
        _ => return None,
    };
    Some(kind.fitted(Caches::here()))
}

/// Longest block of the inner dimension, in bytes of one panel row: longer ones gain nothing.
const DEPTH_BYTES_MAX: usize = 2048;

impl<U: Unit> Kind<U> {
    fn fitted(self, caches: Caches) -> Micro<U> {
        let (mr, nr) = self.tile;
        let step = self.groups.0.max(self.groups.1);
        // A panel of B stays in the first level while panels of A, which are narrower, stream past it.
        // Both within less than half of it, since a hyper-thread may use the rest.
        let fits = caches.l1d * 2 / 5 / (nr * size_of::<U>());
        let longest = DEPTH_BYTES_MAX / size_of::<U>();
        let kc = (fits.min(longest) / 32 * 32).max(32);
        // A quarter of the second level for each operand's part of a block, and some for the sums.
        let side = caches.l2 / 4 / (kc * size_of::<U>());
        let macro_tile = ((side.min(192) / mr).max(1), (side.min(256) / nr).max(1));
        let Self { groups: (a_group, b_group), run, tiles, .. } = self;
        Micro { mr, nr, kc, macro_tile, a_group, b_group, step, run, tiles }
    }
}

impl<U: Unit> Micro<U> {
    /// The packed shapes of A (m, k) and B (k, n).
    pub(super) fn panels(&self, m: usize, n: usize, k: usize) -> (Panels, Panels) {
        let depth = k.next_multiple_of(self.step);
        let panels = |rows, width, group| Panels { rows, inner: k, width, group, depth };
        (panels(m, self.mr, self.a_group), panels(n, self.nr, self.b_group))
    }

    /// Inner indices of a block: `depth` in equal parts.
    pub(super) fn block(&self, depth: usize) -> usize {
        depth.div_ceil(depth.div_ceil(self.kc).max(1)).next_multiple_of(self.step).max(self.step)
    }

    /// Prepares this thread for [`Micro::run`].
    pub(super) fn enter(&self) {
        #[cfg(target_arch = "x86_64")]
        if self.tiles {
            // SAFETY: a kernel with tiles is only made where the CPU has AMX and the system allows it.
            unsafe { amx::configure() }
        }
    }

    /// Ends what [`Micro::enter`] began.
    pub(super) fn leave(&self) {
        #[cfg(target_arch = "x86_64")]
        if self.tiles {
            // SAFETY: as in `enter`.
            unsafe { amx::release() }
        }
    }

    /// Multiplies one block of a panel of A and a panel of B. On this thread, `enter` comes first.
    #[inline]
    pub(super) fn run(&self, depth: usize, a: &[U], b: &[U], c: &mut [f32], first: bool) {
        assert!(a.len() == self.mr * depth && b.len() == self.nr * depth && c.len() == self.mr * self.nr);
        debug_assert!(depth.is_multiple_of(self.step));
        debug_assert!(
            [a.as_ptr() as usize, b.as_ptr() as usize, c.as_ptr() as usize].iter().all(|p| p % 4 == 0)
        );
        // SAFETY: the sizes are checked; a Micro exists only for instructions that this CPU has.
        unsafe { (self.run)(depth, a.as_ptr(), b.as_ptr(), c.as_mut_ptr(), first) }
    }
}
