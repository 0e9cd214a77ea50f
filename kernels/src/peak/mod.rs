//! What the machine can do at most: the yardsticks of `make bench` and `muster doctor`.

mod stream;

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::isa::{Cpu, Isa};
use crate::pool::Pool;

pub use stream::{Mix, Stream};

/// Independent chains per thread: FMA latency 4, two units, and some to spare.
const CHAINS: usize = 12;

// Written with intrinsics: left to itself, LLVM vectorises across the chains and goes through memory.
#[cfg(target_arch = "x86_64")]
mod loops {
    use super::CHAINS;
    use std::arch::x86_64::*;

    macro_rules! chains {
        ($name:ident, $features:literal, $splat:ident, $step:expr, $first:ident) => {
            /// Multiplies and adds `CHAINS` registers, `rounds` times.
            #[target_feature(enable = $features)]
            pub(super) fn $name(rounds: usize, factor: f32) -> f32 {
                let (factor, add) = ($splat(factor), $splat(1e-3));
                let mut acc = [$splat(1.0); CHAINS];
                for _ in 0..rounds {
                    for x in &mut acc {
                        *x = $step(*x, factor, add);
                    }
                }
                acc.into_iter().map(|x| $first(x)).sum()
            }
        };
    }
    chains!(avx512, "avx512f,avx512bw,avx512vl,avx512dq", _mm512_set1_ps, _mm512_fmadd_ps, _mm512_cvtss_f32);
    chains!(avx2, "avx2,fma", _mm256_set1_ps, _mm256_fmadd_ps, _mm256_cvtss_f32);
    chains!(sse2, "sse2", _mm_set1_ps, |x, f, a| _mm_add_ps(_mm_mul_ps(x, f), a), _mm_cvtss_f32);
}

/// The lanes of the loop that ran.
fn fma_loop(isa: Isa, rounds: usize, factor: f32) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let usable = isa.min(Cpu::here().best());
        // SAFETY: `usable` says that this CPU has the features of the function called; SSE2 is part of x86-64.
        unsafe {
            if usable >= Isa::Avx512 {
                black_box(loops::avx512(rounds, factor));
                return 16;
            }
            if usable >= Isa::Avx2 {
                black_box(loops::avx2(rounds, factor));
                return 8;
            }
            black_box(loops::sse2(rounds, factor));
            4
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        let mut acc = [1.0_f32; CHAINS];
        for _ in 0..rounds {
            acc.iter_mut().for_each(|x| *x = *x * factor + 1e-3);
        }
        black_box(acc);
        1
    }
}

const ROUNDS: usize = 200_000;

/// Measures f32 GFLOP/s of register-resident multiply-adds on every thread of the pool at once, best of some 100 ms.
pub fn measure_fma_peak(pool: &Pool) -> f64 {
    let lanes = fma_loop(pool.isa(), 1, 0.5);
    let flops = (2 * CHAINS * lanes * ROUNDS * pool.threads()) as f64;
    best_of(|| {
        pool.run(pool.threads(), |_| {
            fma_loop(pool.isa(), ROUNDS, black_box(0.999));
        });
    })
    .map_or(0.0, |t| flops / t.as_secs_f64() / 1e9)
}

/// Elements of each array: three of them exceed common last-level caches.
const TRIAD: usize = 16 << 20;

/// Measures GB/s (1e9 bytes) of a pass over 192 MB that reads two arrays and writes a third, best of some 100 ms.
pub fn measure_memory_bandwidth(pool: &Pool) -> f64 {
    let mut stream = Stream::new(Mix { reads: 2, updates: 0, writes: 1 }, TRIAD);
    let bytes = stream.bytes() as f64;
    best_of(|| {
        stream.pass(pool);
    })
    .map_or(0.0, |t| bytes / t.as_secs_f64() / 1e9)
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
