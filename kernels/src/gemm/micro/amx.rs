//! AMX: a 2 x 2 block of tiles, each 16 rows of 16 f32 sums; a step multiplies 32 inner indices.
//!
//! Rust has no stable AMX intrinsics, hence the assembly. Per step: 4 tile loads, 4 `tdpbf16ps` of 16 cycles each.

use std::arch::asm;

use half::bf16;

/// Tile configuration (Intel SDM, table 3-10): palette 1, all eight tiles with 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Config([u8; 64]);

static CONFIG: Config = {
    let mut c = [0; 64];
    c[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        c[16 + 2 * tile] = 64;
        c[48 + tile] = 16;
        tile += 1;
    }
    Config(c)
};

/// Configures the tiles of this thread.
///
/// # Safety
/// The CPU has AMX and the system lets this process use it.
pub(super) unsafe fn configure() {
    // SAFETY: the caller's promise; the operand is 64 valid bytes.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly, preserves_flags));
    }
}

/// Returns the tiles to their initial state, so that the system need not save them.
///
/// # Safety
/// As [`configure`].
pub(super) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) }
}

/// Bytes of A and of B in one step of 32 inner indices: 32 rows or columns of bf16.
const STEP: usize = 32 * 32 * 2;
/// Bytes between rows of a tile of A.
const A_ROW: usize = 64;
/// Bytes between rows of a tile of B and of C: two tiles lie side by side.
const B_ROW: usize = 128;

/// # Safety
/// See `Run`; [`configure`] was called on this thread; depth is not 0.
pub(super) unsafe fn bf16_32x32(depth: usize, a: *const bf16, b: *const bf16, c: *mut f32, first: bool) {
    // SAFETY: `depth / 32` steps read STEP bytes each of a and b, and c has 32 rows of 128 bytes, by the caller's
    // promise. One block of assembly, so that nothing comes between the tiles' being set and stored.
    unsafe {
        asm!(
            "test {add:e}, {add:e}",
            "jnz 3f",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "jmp 2f",
            "3:",
            "tileloadd tmm0, [{c} + {b_row}]",
            "tileloadd tmm1, [{c} + {b_row} + 64]",
            "tileloadd tmm2, [{low} + {b_row}]",
            "tileloadd tmm3, [{low} + {b_row} + 64]",
            "2:",
            "tileloadd tmm6, [{b} + {b_row}]",
            "tileloadd tmm4, [{a} + {a_row}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b} + {b_row} + 64]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a} + {a_row} + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, {step}",
            "add {b}, {step}",
            "dec {n}",
            "jnz 2b",
            "tilestored [{c} + {b_row}], tmm0",
            "tilestored [{c} + {b_row} + 64], tmm1",
            "tilestored [{low} + {b_row}], tmm2",
            "tilestored [{low} + {b_row} + 64], tmm3",
            add = in(reg) u32::from(!first),
            a = inout(reg) a => _, b = inout(reg) b => _, n = inout(reg) depth / 32 => _,
            c = in(reg) c, low = in(reg) c.byte_add(16 * B_ROW),
            a_row = in(reg) A_ROW, b_row = in(reg) B_ROW, step = const STEP,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
