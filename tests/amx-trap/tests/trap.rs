//! Tile instructions in a process that may not execute them: each one goes through the handler, on any host.
//!
//! Nothing in this binary may ask for permission.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod tile_asm;

use std::arch::asm;
use std::sync::Once;

use muster_amx_trap::tiles::{ROW, ROWS, Tile};
use muster_amx_trap::{counts, install};
use tile_asm::{config, product_of};

fn trap() {
    static ONCE: Once = Once::new();
    ONCE.call_once(install);
}

/// 1.0 in bf16, everywhere.
fn ones() -> Tile {
    let mut tile = [[0; ROW]; ROWS];
    tile.as_flattened_mut().as_chunks_mut().0.fill(0x3f80_u16.to_le_bytes());
    tile
}

fn floats(tile: &Tile) -> Vec<f32> {
    tile.as_flattened().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

#[test]
fn a_product_of_ones_counts_its_inner_indices() {
    trap();
    let before = counts();
    let out = product_of(&config([(16, 64); 3]), &[[0; ROW]; ROWS], &ones(), &ones());
    assert!(floats(&out).iter().all(|&x| x == 32.0), "{out:?}");
    let after = counts();
    assert!(after.products > before.products && after.others >= before.others + 4);
}

#[test]
fn every_thread_has_tiles_of_its_own() {
    trap();
    let run = |rows: u8| {
        let mut c = [[0; ROW]; ROWS];
        for _ in 0..50 {
            let shape = config([(rows, 64), (rows, 64), (16, 64)]);
            c = product_of(&shape, &c, &ones(), &ones());
        }
        let (inside, outside) = c.split_at(rows.into());
        let all = |rows: &[[u8; ROW]], want: f32| {
            rows.as_flattened().as_chunks().0.iter().all(|&b| f32::from_le_bytes(b) == want)
        };
        assert!(all(inside, 1600.0) && all(outside, 0.0), "{rows} rows");
    };
    std::thread::scope(|s| [3, 7, 16].into_iter().for_each(|rows| drop(s.spawn(move || run(rows)))));
}

/// Copies tile-sized memory with one load and one store whose operands are written as the strings say.
macro_rules! copies {
    ($($load:literal $store:literal, $base:tt = $base_add:expr, $index:tt = $index_by:expr;)*) => {
        $({
            let (from, mut to) = (pattern(), [[0_u8; ROW]; ROWS]);
            let source = from.as_ptr().cast::<u8>().wrapping_offset($base_add);
            let shape = config([(16, 64); 4]);
            let target = to.as_mut_ptr().cast::<u8>().wrapping_offset($base_add);
            // SAFETY: the trap executes the instructions; displacement and offset of the base cancel out, and base
            // and stride describe exactly the two tiles.
            unsafe {
                asm!(
                    "ldtilecfg [{config}]",
                    concat!("tileloadd tmm3, [", $load, "]"),
                    concat!("mov ", $base, ", {target}"),
                    concat!("tilestored [", $store, "], tmm3"),
                    "tilerelease",
                    config = in(reg) shape.as_ptr(), target = in(reg) target,
                    inout($base) source => _, in($index) $index_by,
                    out("tmm3") _, options(nostack),
                );
            }
            assert!(from == to, "{} and {}", $load, $store);
        })*
    };
}

fn pattern() -> Tile {
    let mut tile = [[0; ROW]; ROWS];
    tile.as_flattened_mut().iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7 + i / 64) as u8);
    tile
}

#[test]
fn operands_decode_in_every_form() {
    trap();
    copies! {
        "rsi + rax" "rsi + rax", "rsi" = 0, "rax" = 64_usize;
        "rsi + 2*rax + 16" "rsi + 2*rax + 16", "rsi" = -16, "rax" = 32_usize;
        "rdi + 8*r9 - 100" "rdi + 8*r9 - 100", "rdi" = 100, "r9" = 8_usize;
        "r12 + 4*r13 + 4096" "r12 + 4*r13 + 4096", "r12" = -4096, "r13" = 16_usize;
        "r13 + r12" "r13 + 1*r12", "r13" = 0, "r12" = 64_usize;
        "r8 + r15 - 70000" "r8 + r15 - 70000", "r8" = 70000, "r15" = 64_usize;
    }
    // Without an index the stride is zero: one row, sixteen times.
    let (shape, row, mut out) = (config([(16, 64); 3]), [5_u8; ROW], [[0_u8; ROW]; ROWS]);
    // SAFETY: as above; only the one row is read.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            "tileloadd tmm2, [{row}]",
            "tilestored [{out} + {stride}], tmm2",
            "tilerelease",
            config = in(reg) shape.as_ptr(), row = in(reg) row.as_ptr(),
            out = in(reg) out.as_mut_ptr(), stride = in(reg) 64_usize, out("tmm2") _, options(nostack),
        );
    }
    assert!(out == [row; ROWS]);
}
