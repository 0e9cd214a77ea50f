//! Inputs, pools and comparisons that the tests share.

use muster_kernels::isa::{Cpu, Isa};
use muster_kernels::{Element, Pool, bf16, rng};

/// The instruction sets that this machine has.
pub fn isas() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|&i| i <= Cpu::here().best()).collect()
}

/// Whether this machine starts no threads, as the emulator of tests/isa says of itself.
fn one_thread() -> bool {
    std::env::var_os("MUSTER_TEST_ONE_THREAD").is_some()
}

/// A pool of so many threads, or of one where there are no more.
pub fn pool(threads: usize, isa: Isa) -> Pool {
    Pool::with_isa(if one_thread() { 1 } else { threads }, isa).unwrap()
}

/// A pool per instruction set, each with another number of threads.
pub fn pools() -> Vec<Pool> {
    isas().into_iter().enumerate().map(|(i, isa)| pool(1 + i % 3, isa)).collect()
}

/// Lengths around the widths of vectors and blocks.
pub const LENGTHS: [usize; 14] = [0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 257, 16_500];

/// Normal numbers.
pub fn noise<E: Element>(key: u64, n: usize) -> Vec<E> {
    (0..n as u64).map(|i| E::from_f32(rng::normal(key, i))).collect()
}

/// Rounding error of one stored value, relative: half a unit in the last place, and some for the f32 arithmetic.
pub fn store_error<E: Element>() -> f64 {
    match E::DTYPE {
        muster_kernels::DType::F32 => 0.0,
        muster_kernels::DType::Bf16 => 1.0 / 256.0,
    }
}

/// Asserts |got - want| <= absolute + relative * |want| (plus the storage rounding) for each element.
#[track_caller]
pub fn close<E: Element>(what: &str, got: &[E], want: &[f64], absolute: f64, relative: f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let relative = relative + store_error::<E>();
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let g = f64::from(g.to_f32());
        let ok = (g - w).abs() <= absolute + relative * w.abs() || g == *w || (g.is_nan() && w.is_nan());
        assert!(ok, "{what}[{i}]: got {g:e}, want {w:e}");
    }
}

/// The bits of a slice, for comparisons that allow no difference.
pub fn bits<E: Element>(x: &[E]) -> Vec<u32> {
    x.iter().map(|x| x.to_f32().to_bits()).collect()
}

/// Runs `f` on pools of 1, 2 and 3 threads and asserts that the results have the same bits.
#[track_caller]
pub fn same_on_any_thread_count(f: impl Fn(&Pool) -> Vec<u32>) {
    for isa in isas() {
        let one = f(&pool(1, isa));
        if one_thread() {
            eprintln!("skipped: comparing thread counts on {isa}, for want of threads");
            continue;
        }
        for threads in [2, 3] {
            assert!(one == f(&pool(threads, isa)), "{threads} threads change results on {isa}");
        }
    }
}

/// A type argument for generic checks: `for_both!(check)` calls `check::<f32>()` and `check::<bf16>()`.
#[macro_export]
macro_rules! for_both {
    ($f:ident) => {
        $f::<f32>();
        $f::<$crate::common::Bf16>();
    };
}

pub type Bf16 = bf16;
