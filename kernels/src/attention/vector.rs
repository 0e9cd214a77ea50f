//! One vector register of f32, for the few loops that LLVM does not keep in registers by itself: accumulators of
//! products, transposes and blends. Everything row-wise stays ordinary Rust (see `softmax`).

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use crate::transpose::x86;

/// Columns of every tile are padded to a multiple of this: the widest register.
pub(super) const PAD: usize = 16;

/// A register of `LANES` f32.
///
/// # Safety
/// All methods need a CPU that has the implementor's instructions; pointers must be valid for `LANES` elements.
pub(super) trait Vector: Copy {
    /// Elements.
    const LANES: usize;
    /// Rows of accumulators that, times two registers, leave room for the operands.
    const ROWS: usize;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn add(self, x: Self) -> Self;
    /// `self + a * b`.
    unsafe fn fused(self, a: Self, b: Self) -> Self;
    /// Lane l of `self` where l has the bit (a power of two), else of `other`.
    unsafe fn pick(self, other: Self, bit: usize) -> Self;
    /// Transposes a square of `LANES` rows, `from_stride` and `to_stride` elements apart.
    unsafe fn transpose(from: *const f32, from_stride: isize, to: *mut f32, to_stride: usize);
}

/// Runs `$body::<V>(args)` for the register that the token `$s` proves to exist.
macro_rules! with_vector {
    ($s:ident, $body:ident($($arg:expr),*)) => {{
        #[cfg(target_arch = "x86_64")]
        match <$s as $crate::isa::Simd>::LANES {
            // SAFETY: only the AVX-512 token has 16 lanes, and a token exists only where the CPU has its instructions.
            16 => return unsafe { $body::<std::arch::x86_64::__m512>($($arg),*) },
            // SAFETY: likewise, only the AVX2 token has 8.
            8 => return unsafe { $body::<std::arch::x86_64::__m256>($($arg),*) },
            _ => {}
        }
        // SAFETY: an array needs no instructions beyond the baseline.
        unsafe { $body::<[f32; 4]>($($arg),*) }
    }};
}
pub(super) use with_vector;

impl Vector for [f32; 4] {
    const LANES: usize = 4;
    const ROWS: usize = 4;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the trait's contract.
        unsafe { p.cast::<Self>().read() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { p.cast::<Self>().write(self) }
    }
    #[inline(always)]
    unsafe fn add(self, x: Self) -> Self {
        std::array::from_fn(|l| self[l] + x[l])
    }
    #[inline(always)]
    unsafe fn fused(self, a: Self, b: Self) -> Self {
        std::array::from_fn(|l| self[l] + a[l] * b[l])
    }
    #[inline(always)]
    unsafe fn pick(self, other: Self, bit: usize) -> Self {
        std::array::from_fn(|l| if l & bit != 0 { self[l] } else { other[l] })
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: isize, to: *mut f32, to_stride: usize) {
        for r in 0..4 {
            for c in 0..4 {
                // SAFETY: the trait's contract.
                unsafe { *to.add(c * to_stride + r) = *from.offset(r as isize * from_stride + c as isize) };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Vector for __m256 {
    const LANES: usize = 8;
    const ROWS: usize = 6;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the trait's contract, here and below.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see `splat`.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see `splat`.
        unsafe { _mm256_storeu_ps(p, self) }
    }
    #[inline(always)]
    unsafe fn add(self, x: Self) -> Self {
        // SAFETY: see `splat`.
        unsafe { _mm256_add_ps(self, x) }
    }
    #[inline(always)]
    unsafe fn fused(self, a: Self, b: Self) -> Self {
        // SAFETY: see `splat`.
        unsafe { _mm256_fmadd_ps(a, b, self) }
    }
    #[inline(always)]
    unsafe fn pick(self, other: Self, bit: usize) -> Self {
        // SAFETY: see `splat`.
        unsafe {
            match bit {
                1 => _mm256_blend_ps::<0xaa>(other, self),
                2 => _mm256_blend_ps::<0xcc>(other, self),
                _ => _mm256_blend_ps::<0xf0>(other, self),
            }
        }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: isize, to: *mut f32, to_stride: usize) {
        // SAFETY: see `splat`; row r of the square is valid for 8 elements on both sides.
        unsafe {
            let row = |r: usize| _mm256_loadu_ps(from.offset(r as isize * from_stride));
            x86::square8(row, |c, x| _mm256_storeu_ps(to.add(c * to_stride), x));
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Vector for __m512 {
    const LANES: usize = 16;
    const ROWS: usize = 8;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: the trait's contract, here and below.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see `splat`.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see `splat`.
        unsafe { _mm512_storeu_ps(p, self) }
    }
    #[inline(always)]
    unsafe fn add(self, x: Self) -> Self {
        // SAFETY: see `splat`.
        unsafe { _mm512_add_ps(self, x) }
    }
    #[inline(always)]
    unsafe fn fused(self, a: Self, b: Self) -> Self {
        // SAFETY: see `splat`.
        unsafe { _mm512_fmadd_ps(a, b, self) }
    }
    #[inline(always)]
    unsafe fn pick(self, other: Self, bit: usize) -> Self {
        let mask = match bit {
            1 => 0xaaaa,
            2 => 0xcccc,
            4 => 0xf0f0,
            _ => 0xff00,
        };
        // SAFETY: see `splat`.
        unsafe { _mm512_mask_blend_ps(mask, other, self) }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_stride: isize, to: *mut f32, to_stride: usize) {
        // SAFETY: see `splat`; row r of the square is valid for 16 elements on both sides.
        unsafe {
            let row = |r: usize, q: usize| _mm_loadu_ps(from.offset(r as isize * from_stride).add(4 * q));
            x86::square16(row, |c, x| _mm512_storeu_ps(to.add(c * to_stride), x));
        }
    }
}
