//! The software tiles against a CPU that has them, bit for bit; skipped on one that has not.
//!
//! This binary asks for permission, so nothing traps in it. Under the emulator of `tests/isa` the same tests compare
//! with the model there.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::print_stdout, reason = "a comparison says how much it compared")]

mod tile_asm;

use muster_amx_trap::hardware;
use muster_amx_trap::tiles::{ROW, ROWS, Tile, Tiles};
use tile_asm::{config, product_of};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A tile whose 16-bit or 32-bit words are what `word` makes of random bits.
    fn tile<const N: usize>(&mut self, word: impl Fn(u64) -> [u8; N]) -> Tile {
        let mut tile = [[0; ROW]; ROWS];
        for chunk in tile.as_flattened_mut().as_chunks_mut::<N>().0 {
            *chunk = word(self.next());
        }
        tile
    }
}

/// A bf16 with random sign and mantissa and an exponent of `low .. low + count`.
fn ranged(bits: u64, low: u64, count: u64) -> [u8; 2] {
    let exponent = low + (bits >> 32) % count;
    ((bits as u16 & 0x807f) | (exponent << 7) as u16).to_le_bytes()
}

/// C + A B in software.
fn expected(config: &[u8; 64], c: &Tile, a: &Tile, b: &Tile) -> Tile {
    let mut tiles = Tiles::new();
    tiles.configure(config).expect("the configuration is valid");
    for (i, from) in [c, a, b].into_iter().enumerate() {
        let rows = tiles.load(i).expect("the tile is configured");
        rows.zip(from).for_each(|(to, from)| to.copy_from_slice(&from[..to.len()]));
    }
    tiles.product(0, 1, 2).expect("the shapes match");
    let mut out = *c;
    let rows = tiles.store(0).expect("the tile is configured");
    rows.zip(&mut out).for_each(|(from, to)| to[..from.len()].copy_from_slice(from));
    out
}

fn words(tile: &Tile) -> impl Iterator<Item = u32> {
    tile.as_flattened().as_chunks().0.iter().map(|&w| u32::from_le_bytes(w))
}

/// Compares `rounds` random products and says how many elements of them are special.
#[track_caller]
fn compare(what: &str, rounds: usize, mut inputs: impl FnMut(&mut Random) -> [Tile; 3]) {
    if !hardware::request() {
        println!("skipped: {what}: this CPU has no AMX");
        return;
    }
    let (mut random, shape) = (Random(what.len() as u64), config([(16, 64); 3]));
    let (mut differ, mut first, mut nans, mut zeros) = (0, None, 0, 0);
    for round in 0..rounds {
        let [c, a, b] = inputs(&mut random);
        let (want, got) = (expected(&shape, &c, &a, &b), product_of(&shape, &c, &a, &b));
        for (i, (want, got)) in words(&want).zip(words(&got)).enumerate() {
            nans += usize::from(f32::from_bits(got).is_nan());
            zeros += usize::from(got << 1 == 0);
            if want != got {
                differ += 1;
                first.get_or_insert(format!(
                    "round {round} element {i}: {want:#010x}, the CPU has {got:#010x}"
                ));
            }
        }
    }
    println!("{what}: {} sums, {differ} differ, {nans} NaN, {zeros} zero", rounds * 256);
    assert!(differ == 0, "{what}: {differ} of {} differ; {}", rounds * 256, first.unwrap_or_default());
}

#[test]
fn ordinary_numbers() {
    compare("ordinary", 200, |r| {
        [
            r.tile(|x| ((x % 2001) as f32 / 500.0 - 2.0).to_le_bytes()),
            r.tile(|x| ranged(x, 120, 10)),
            r.tile(|x| ranged(x, 120, 10)),
        ]
    });
}

#[test]
fn wide_exponents_that_cancel_and_round() {
    compare("wide", 200, |r| {
        [r.tile(|x| ranged_f32(x, 100, 60)), r.tile(|x| ranged(x, 100, 50)), r.tile(|x| ranged(x, 100, 50))]
    });
}

fn ranged_f32(bits: u64, low: u64, count: u64) -> [u8; 4] {
    let exponent = low + (bits >> 32) % count;
    ((bits as u32 & 0x807f_ffff) | (exponent << 23) as u32).to_le_bytes()
}

#[test]
fn denormal_inputs() {
    compare("denormal inputs", 200, |r| {
        // Exponent 0 in one of two: denormals beside numbers large enough for their products to show.
        [r.tile(|x| ranged_f32(x, 0, 2)), r.tile(|x| ranged(x, 0, 2)), r.tile(|x| ranged(x, 120, 30))]
    });
}

#[test]
fn denormal_products_and_sums() {
    compare("denormal results", 400, |r| {
        // Products around 2^-126, the smallest normal number.
        [r.tile(|x| ranged_f32(x, 0, 6)), r.tile(|x| ranged(x, 60, 8)), r.tile(|x| ranged(x, 60, 8))]
    });
}

#[test]
fn overflows_and_infinities() {
    compare("overflows", 200, |r| {
        [r.tile(|x| ranged_f32(x, 240, 15)), r.tile(|x| ranged(x, 180, 12)), r.tile(|x| ranged(x, 180, 12))]
    });
}

#[test]
fn nan_and_infinite_inputs() {
    // One special value here and there, so that most sums have one or none; all kinds of NaN and both signs.
    let rare = |x: u64| if x >> 40 & 63 == 0 { ranged(x, 255, 1) } else { ranged(x, 120, 10) };
    let rare_f32 = |x: u64| if x >> 40 & 7 == 0 { ranged_f32(x, 255, 1) } else { ranged_f32(x, 120, 10) };
    compare("NaN", 200, |r| [r.tile(rare_f32), r.tile(rare), r.tile(rare)]);
}

#[test]
fn any_bits_at_all() {
    compare("any bits", 400, |r| {
        let half = |x: u64| (x as u16).to_le_bytes();
        [r.tile(|x| (x as u32).to_le_bytes()), r.tile(half), r.tile(half)]
    });
}

#[test]
fn partial_tiles() {
    if !hardware::request() {
        println!("skipped: partial tiles: this CPU has no AMX");
        return;
    }
    let mut random = Random(1);
    for (m, n, pairs) in [(1, 1, 1), (16, 16, 1), (3, 5, 7), (16, 1, 16), (1, 16, 15)] {
        let shape = config([(m, 4 * n), (m, 4 * pairs), (pairs, 4 * n)]);
        let [c, a, b] = [0; 3].map(|_| random.tile(|x| ranged(x, 120, 10)));
        assert!(expected(&shape, &c, &a, &b) == product_of(&shape, &c, &a, &b), "({m}, {n}, {pairs})");
    }
}
