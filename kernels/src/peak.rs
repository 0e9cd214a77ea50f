//! What the machine can do at most: the yardsticks of `make bench` and `muster doctor`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::isa::{Kernel, Simd, dispatch};
use crate::pool::Pool;

/// Independent chains per lane: FMA latency 4, two units, and some to spare.
const CHAINS: usize = 12;

struct FmaLoop {
    rounds: usize,
    factor: f32,
}

/// One register of accumulators per chain.
#[inline(always)]
fn chains<S: Simd, const L: usize>(s: S, rounds: usize, factor: f32) -> f32 {
    let mut acc = [[1.0_f32; L]; CHAINS];
    for _ in 0..rounds {
        for chain in &mut acc {
            for lane in chain.iter_mut() {
                *lane = s.mul_add(*lane, factor, 1e-3);
            }
        }
    }
    acc.iter().flatten().sum()
}

impl Kernel for FmaLoop {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        match S::LANES {
            16 => chains::<S, 16>(s, self.rounds, self.factor),
            8 => chains::<S, 8>(s, self.rounds, self.factor),
            _ => chains::<S, 4>(s, self.rounds, self.factor),
        }
    }
}

const ROUNDS: usize = 200_000;

/// Measures f32 GFLOP/s of register-resident multiply-adds on every thread of the pool at once, best of some 100 ms.
pub fn measure_fma_peak(pool: &Pool) -> f64 {
    let lanes = match pool.isa() {
        i if i >= crate::isa::Isa::Avx512 => 16,
        crate::isa::Isa::Avx2 => 8,
        _ => 4,
    };
    let flops = (2 * CHAINS * lanes * ROUNDS * pool.threads()) as f64;
    best_of(|| {
        pool.run(pool.threads(), |_| {
            black_box(dispatch(pool.isa(), FmaLoop { rounds: ROUNDS, factor: black_box(0.999) }));
        });
    })
    .map_or(0.0, |t| flops / t.as_secs_f64() / 1e9)
}

struct Triad<'a> {
    a: &'a mut [f32],
    b: &'a [f32],
    c: &'a [f32],
    factor: f32,
}
impl Kernel for Triad<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for ((a, b), c) in self.a.iter_mut().zip(self.b).zip(self.c) {
            *a = s.mul_add(self.factor, *c, *b);
        }
    }
}

/// Elements of each array: three of them exceed common last-level caches.
const TRIAD: usize = 16 << 20;
const TRIAD_BLOCK: usize = 1 << 18;

/// Measures GB/s (1e9 bytes) of a = b + f * c over 192 MB, counting two reads and one write, best of some 100 ms.
pub fn measure_memory_bandwidth(pool: &Pool) -> f64 {
    let (mut a, b, c) = (vec![0.0_f32; TRIAD], vec![1.0_f32; TRIAD], vec![2.0_f32; TRIAD]);
    best_of(|| {
        let parts = a.chunks_mut(TRIAD_BLOCK).zip(b.chunks(TRIAD_BLOCK)).zip(c.chunks(TRIAD_BLOCK));
        pool.each(parts, |((a, b), c)| dispatch(pool.isa(), Triad { a, b, c, factor: black_box(0.5) }));
    })
    .map_or(0.0, |t| (3 * 4 * TRIAD) as f64 / t.as_secs_f64() / 1e9)
}

fn best_of(mut f: impl FnMut()) -> Option<Duration> {
    f(); // warm-up: clocks, pages
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || start.elapsed() < Duration::from_millis(100) {
        let t = Instant::now();
        f();
        times.push(t.elapsed());
    }
    times.into_iter().min().filter(|t| !t.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_yardsticks_are_positive_numbers() {
        let pool = Pool::new(1).expect("one thread starts");
        let peak = measure_fma_peak(&pool);
        assert!(peak > 0.5 && peak < 10_000.0, "{peak} GFLOP/s");
        let bandwidth = measure_memory_bandwidth(&pool);
        assert!(bandwidth > 0.1 && bandwidth < 10_000.0, "{bandwidth} GB/s");
    }
}
