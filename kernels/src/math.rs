//! Branch-free f32 functions that LLVM vectorises. NaN goes in, NaN comes out.
//!
//! Coefficients are our own weighted least-squares fits (Lawson iteration towards the minimax fit in f64).

use crate::isa::Simd;

/// 1.5 * 2^23: adding and subtracting it rounds to the nearest integer.
const ROUND: f32 = 12_582_912.0;

/// Horner's rule, highest coefficient first.
#[inline(always)]
fn poly<S: Simd, const N: usize>(s: S, x: f32, c: [f32; N]) -> f32 {
    let mut r = c[0];
    let mut i = 1;
    while i < N {
        r = s.mul_add(r, x, c[i]);
        i += 1;
    }
    r
}

/// e^x within 2 ulp, with gradual underflow to 0 and overflow to infinity.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: f32) -> f32 {
    // Comparisons this way round keep a NaN.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -105.0 { -105.0 } else { x };
    let shifted = s.mul_add(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts (Cody and Waite): the high part has 9 zero bits at its end, so n * high is exact.
    let r = s.mul_add(n, -0.693_359_4, x);
    let r = s.mul_add(n, 2.121_944_4e-4, r);
    let q = poly(s, r, [0.001_381_460_6, 0.008_368_715, 0.041_668_39, 0.166_665_21, 0.499_999_94]);
    let p = s.mul_add(r * r, q, r) + 1.0;
    // 2^n in two factors, so that results below the normal range round once and 2^128 can be reached.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    let power = |k: i32| f32::from_bits((k.wrapping_add(127) as u32) << 23);
    p * power(half) * power(n.wrapping_sub(half))
}

/// tanh(x) within 4e-7 relative.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: f32) -> f32 {
    let c = if x > 9.0 { 9.0 } else { x };
    let c = if c < -9.0 { -9.0 } else { c };
    let t = c * c;
    let p = poly(s, t, [3.683_39e-11, 1.113_186_3e-7, 4.229_846_3e-5, 0.004_426_906_4, 0.140_999_27, 1.0]);
    let q = poly(s, t, [2.956_476_8e-9, 2.606_156_2e-6, 5.010_185e-4, 0.029_204_443, 0.474_332_6, 1.0]);
    let y = c * p / q;
    let y = if y > 1.0 { 1.0 } else { y };
    if y < -1.0 { -1.0 } else { y }
}

/// The Gauss integral in the two forms its users need, from one exponential.
#[derive(Clone, Copy)]
pub(crate) struct Gauss {
    /// Probability that a standard normal number is below x.
    pub(crate) cdf: f32,
    /// Density of a standard normal number at x.
    pub(crate) pdf: f32,
}

/// Cumulative distribution (absolute error 1.5e-7; relative error 4e-6 in the lower tail down to -8) and density.
#[inline(always)]
pub(crate) fn gauss<S: Simd>(s: S, x: f32) -> Gauss {
    let z = x * std::f32::consts::FRAC_1_SQRT_2;
    let a = z.abs();
    let e = exp(s, -0.5 * x * x);
    // erfc(a) = e * erfcx(a), with erfcx a polynomial in 1 / (1 + a / 2) for a >= 0.45.
    let a = if a > 10.5 { 10.5 } else { a };
    let t = 1.0 / s.mul_add(a, 0.5, 1.0);
    let c = [
        0.060_308_088,
        -0.127_432_5,
        -0.039_373_215,
        0.141_297_53,
        0.148_334_8,
        0.253_584_75,
        0.281_276_76,
        0.282_134_3,
    ];
    let half_tail = 0.5 * e * (t * poly(s, t, c));
    let far = if x > 0.0 { 1.0 - half_tail } else { half_tail };
    let near_half =
        0.5 * z * poly(s, z * z, [0.004_717_992, -0.026_757_186, 0.112_828_225, -0.376_126_08, 1.128_379_1]);
    let cdf = if a < 0.5 { 0.5 + near_half } else { far };
    Gauss { cdf: if x.is_nan() { x } else { cdf }, pdf: 0.398_942_28 * e }
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: f32) -> f32 {
    1.0 / (1.0 + exp(s, -x))
}

/// Lanes of the reductions: one AVX-512 register, two of AVX2.
pub(crate) const LANES: usize = 16;

/// Adds the lanes pairwise, in an order that is the same on every ISA.
#[inline(always)]
pub(crate) fn add_lanes(mut a: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            a[i] += a[i + width];
        }
        width /= 2;
    }
    a[0]
}

/// Sum of f(i) over a length, in lanes: i goes to lane i mod 16.
#[inline(always)]
pub(crate) fn sum_by(len: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut acc = [0.0_f32; LANES];
    let whole = len - len % LANES;
    let mut i = 0;
    while i < whole {
        for l in 0..LANES {
            acc[l] += f(i + l);
        }
        i += LANES;
    }
    for l in 0..len - whole {
        acc[l] += f(whole + l);
    }
    add_lanes(acc)
}

/// The greatest element; -inf for none; NaN elements are passed over.
#[inline(always)]
pub(crate) fn max(x: &[f32]) -> f32 {
    let mut acc = [f32::NEG_INFINITY; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for c in &mut chunks {
        for l in 0..LANES {
            acc[l] = if c[l] > acc[l] { c[l] } else { acc[l] };
        }
    }
    for (a, &v) in acc.iter_mut().zip(chunks.remainder()) {
        *a = if v > *a { v } else { *a };
    }
    acc.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}
