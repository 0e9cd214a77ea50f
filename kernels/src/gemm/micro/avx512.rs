//! AVX-512: 14 rows of two 16-lane registers: 28 sums, two registers of B, and A broadcast from memory. The bf16
//! kernel has the same shape, with pairs where f32 has single elements.

use std::arch::x86_64::*;

use half::bf16;

const MR: usize = 14;
const NR: usize = 32;

/// # Safety
/// See `Run`; the CPU has AVX-512 F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn f32_14x32(depth: usize, a: *const f32, b: *const f32, c: *mut f32, first: bool) {
    let mut sums = [[_mm512_setzero_ps(); 2]; MR];
    for k in 0..depth {
        // SAFETY: k < depth, and the panels have MR and NR elements for each k.
        let (a, b) = unsafe { (a.add(k * MR), b.add(k * NR)) };
        // SAFETY: as above.
        let (b0, b1) = unsafe { (_mm512_loadu_ps(b), _mm512_loadu_ps(b.add(16))) };
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: i < MR.
            let x = _mm512_set1_ps(unsafe { *a.add(i) });
            sum[0] = _mm512_fmadd_ps(x, b0, sum[0]);
            sum[1] = _mm512_fmadd_ps(x, b1, sum[1]);
        }
    }
    // SAFETY: the caller's promise about c.
    unsafe { store(&sums, c, first) }
}

/// # Safety
/// See `Run`; the CPU has AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn bf16_14x32(depth: usize, a: *const bf16, b: *const bf16, c: *mut f32, first: bool) {
    let mut sums = [[_mm512_setzero_ps(); 2]; MR];
    let (a, b) = (a.cast::<i32>(), b.cast::<i32>());
    for pair in 0..depth / 2 {
        // SAFETY: the panels have MR and NR pairs for each pair of inner indices.
        let (a, b) = unsafe { (a.add(pair * MR), b.add(pair * NR)) };
        // SAFETY: as above; a vector of 32 bf16 is 16 pairs.
        let (b0, b1): (__m512bh, __m512bh) = unsafe {
            (
                std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(b.cast())),
                std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(b.add(16).cast())),
            )
        };
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: i < MR; the types have the same size and any bits are valid.
            let x = unsafe {
                std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(a.add(i).read_unaligned()))
            };
            sum[0] = _mm512_dpbf16_ps(sum[0], x, b0);
            sum[1] = _mm512_dpbf16_ps(sum[1], x, b1);
        }
    }
    // SAFETY: the caller's promise about c.
    unsafe { store(&sums, c, first) }
}

/// # Safety
/// c has MR rows of NR.
#[target_feature(enable = "avx512f")]
unsafe fn store(sums: &[[__m512; 2]; MR], c: *mut f32, first: bool) {
    for (i, sum) in sums.iter().enumerate() {
        for (j, &sum) in sum.iter().enumerate() {
            // SAFETY: i < MR and j < 2.
            unsafe {
                let c = c.add(i * NR + j * 16);
                let sum = if first { sum } else { _mm512_add_ps(sum, _mm512_loadu_ps(c)) };
                _mm512_storeu_ps(c, sum);
            }
        }
    }
}
