//! Tile instructions as a kernel writes them.

use std::arch::asm;

use muster_amx_trap::tiles::{ROW, Tile};

/// A configuration of tiles 0, 1, ... with rows and bytes of a row each.
pub fn config<const N: usize>(shapes: [(u8, u8); N]) -> [u8; 64] {
    let mut c = [0; 64];
    c[0] = 1;
    for (t, (rows, bytes)) in shapes.into_iter().enumerate() {
        (c[48 + t], c[16 + 2 * t]) = (rows, bytes);
    }
    c
}

/// C + A B, by the CPU's instructions or what traps them. Beyond the configured part, C stays as it is.
pub fn product_of(config: &[u8; 64], c: &Tile, a: &Tile, b: &Tile) -> Tile {
    let mut out = *c;
    // SAFETY: the tests come here where tile instructions execute; each tile has at most 16 rows of 64 bytes, as the
    // operands have; one block, so that the state of the tiles is in nobody's way.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            "tileloadd tmm0, [{c} + {row}]",
            "tileloadd tmm1, [{a} + {row}]",
            "tileloadd tmm2, [{b} + {row}]",
            "tdpbf16ps tmm0, tmm1, tmm2",
            "tilestored [{c} + {row}], tmm0",
            "tilerelease",
            config = in(reg) config.as_ptr(), row = in(reg) ROW,
            c = in(reg) out.as_mut_ptr(), a = in(reg) a.as_ptr(), b = in(reg) b.as_ptr(),
            out("tmm0") _, out("tmm1") _, out("tmm2") _,
            options(nostack),
        );
    }
    out
}
