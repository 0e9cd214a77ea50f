//! AVX2 with FMA: 6 rows of two 8-lane registers, twelve sums, two of B and one of A.

use std::arch::x86_64::*;

const MR: usize = 6;
const NR: usize = 16;

/// # Safety
/// See `Run`; the CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn f32_6x16(depth: usize, a: *const f32, b: *const f32, c: *mut f32, first: bool) {
    let mut sums = [[_mm256_setzero_ps(); 2]; MR];
    for k in 0..depth {
        // SAFETY: k < depth, and the panels have MR and NR elements for each k.
        let (a, b) = unsafe { (a.add(k * MR), b.add(k * NR)) };
        // SAFETY: as above.
        let (b0, b1) = unsafe { (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8))) };
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: i < MR.
            let x = unsafe { _mm256_broadcast_ss(&*a.add(i)) };
            sum[0] = _mm256_fmadd_ps(x, b0, sum[0]);
            sum[1] = _mm256_fmadd_ps(x, b1, sum[1]);
        }
    }
    for (i, sum) in sums.iter().enumerate() {
        for (j, &sum) in sum.iter().enumerate() {
            // SAFETY: the tile has MR rows of NR.
            unsafe {
                let c = c.add(i * NR + j * 8);
                let sum = if first { sum } else { _mm256_add_ps(sum, _mm256_loadu_ps(c)) };
                _mm256_storeu_ps(c, sum);
            }
        }
    }
}
