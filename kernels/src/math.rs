//! Branch-free f32 functions that LLVM vectorises. NaN goes in, NaN comes out.
//!
//! Coefficients are our own weighted least-squares fits (Lawson iteration towards the minimax fit in f64).

use crate::element::Element;
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
    let a = (x * std::f32::consts::FRAC_1_SQRT_2).abs();
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
    // For a < 1 an odd polynomial of x: 1 - erfc would carry the error of e at full size.
    let c = [
        4.3384333e-07,
        -8.849957e-06,
        1.1464664e-04,
        -1.1867818e-03,
        9.973374e-03,
        -6.649036e-02,
        3.989423e-01,
    ];
    let near = s.mul_add(x, poly(s, x * x, c), 0.5);
    let cdf = if a < 1.0 { near } else { far };
    Gauss { cdf: if x.is_nan() { x } else { cdf }, pdf: 0.398_942_3 * e }
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: f32) -> f32 {
    1.0 / (1.0 + exp(s, -x))
}

/// ln(x) for normal x within 2e-7 relative or absolute; NaN for a NaN or an infinity.
#[inline(always)]
pub(crate) fn ln<S: Simd>(s: S, x: f32) -> f32 {
    // x = 2^k m with m from sqrt(1/2) on, and ln m = 2 artanh((m - 1) / (m + 1)).
    let shifted = x.to_bits().wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let k = (shifted as i32) >> 23;
    let m = f32::from_bits(x.to_bits().wrapping_sub((k << 23) as u32));
    let r = (m - 1.0) / (m + 1.0);
    let t = r * r;
    let p = s.mul_add(t, s.mul_add(t, s.mul_add(t, 2.0 / 9.0, 2.0 / 7.0), 2.0 / 5.0), 2.0 / 3.0);
    let p = s.mul_add(r * t, p, 2.0 * r);
    s.mul_add(k as f32, std::f32::consts::LN_2, p) + 0.0 * x
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

/// Sum of f(x) in lanes: element i goes to lane i mod 16. (Over slices, so that no bounds check is left in the loop.)
#[inline(always)]
pub(crate) fn sum_by<T: Copy>(x: &[T], f: impl Fn(T) -> f32) -> f32 {
    let mut acc = [0.0_f32; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for c in &mut chunks {
        for l in 0..LANES {
            acc[l] += f(c[l]);
        }
    }
    for (a, &v) in acc.iter_mut().zip(chunks.remainder()) {
        *a += f(v);
    }
    add_lanes(acc)
}

/// Sum of x y in lanes.
#[inline(always)]
pub(crate) fn dot<S: Simd, X: Element, Y: Element>(s: S, x: &[X], y: &[Y]) -> f32 {
    let mut acc = [0.0_f32; LANES];
    let (mut xs, mut ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    for (x, y) in (&mut xs).zip(&mut ys) {
        for l in 0..LANES {
            acc[l] = s.mul_add(x[l].to_f32(), y[l].to_f32(), acc[l]);
        }
    }
    for (a, (x, y)) in acc.iter_mut().zip(xs.remainder().iter().zip(ys.remainder())) {
        *a = s.mul_add(x.to_f32(), y.to_f32(), *a);
    }
    add_lanes(acc)
}

/// Lanes of the reductions of long rows. They are many enough that LLVM keeps them in memory and vectorises the loop over
/// them, one load and one store per vector; few lanes in registers would wait for each other's additions.
const WIDE: usize = 8 * LANES;

/// Folds `WIDE` lanes to `LANES`, by halves.
#[inline(always)]
fn fold(wide: &mut [f32; WIDE]) -> [f32; LANES] {
    let mut width = WIDE / 2;
    while width >= LANES {
        let (low, high) = wide.split_at_mut(width);
        for (a, b) in low.iter_mut().zip(high) {
            *a += *b;
        }
        width /= 2;
    }
    let mut lanes = [0.0; LANES];
    lanes.copy_from_slice(&wide[..LANES]);
    lanes
}

/// Sum of f(x), as [`sum_by`] but for long rows.
#[inline(always)]
pub(crate) fn sum_wide(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut acc = [0.0_f32; WIDE];
    let (chunks, rest) = x.as_chunks::<WIDE>();
    for c in chunks {
        for (sum, x) in acc.iter_mut().zip(c) {
            *sum += f(*x);
        }
    }
    add_lanes(fold(&mut acc)) + sum_by(rest, f)
}

/// Sum of x y, as [`dot`] but for long rows.
#[inline(always)]
pub(crate) fn dot_wide<S: Simd>(s: S, x: &[f32], y: &[f32]) -> f32 {
    let mut acc = [0.0_f32; WIDE];
    let ((xs, x_rest), (ys, y_rest)) = (x.as_chunks::<WIDE>(), y.as_chunks::<WIDE>());
    for (x, y) in xs.iter().zip(ys) {
        for (sum, (x, y)) in acc.iter_mut().zip(x.iter().zip(y)) {
            *sum = s.mul_add(*x, *y, *sum);
        }
    }
    add_lanes(fold(&mut acc)) + dot(s, x_rest, y_rest)
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
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            acc[i] = if acc[i + width] > acc[i] { acc[i + width] } else { acc[i] };
        }
        width /= 2;
    }
    acc[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Isa, Kernel, dispatch};
    use crate::reference;

    struct Each<'a, F>(&'a [f32], F);
    trait Function {
        fn call<S: Simd>(&self, s: S, x: f32) -> f32;
    }
    impl<F: Function> Kernel for Each<'_, F> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            self.0.iter().map(|&x| self.1.call(s, x)).collect()
        }
    }

    macro_rules! function {
        ($name:ident, $f:expr) => {
            struct $name;
            impl Function for $name {
                #[inline(always)]
                fn call<S: Simd>(&self, s: S, x: f32) -> f32 {
                    $f(s, x)
                }
            }
        };
    }
    function!(Exp, exp);
    function!(Ln, ln);
    function!(Tanh, tanh);
    function!(Erf, |s, x: f32| 2.0 * gauss(s, x).cdf - 1.0);
    function!(Cdf, |s, x| gauss(s, x).cdf);

    const ISAS: [Isa; 3] = [Isa::Scalar, Isa::Avx2, Isa::Avx512];

    /// Distance of `got` from `want` in units of the last place of `want` as f32, gradual underflow included.
    fn ulps(got: f32, want: f64) -> f64 {
        let exponent = want.abs().log2().floor().max(-126.0);
        (f64::from(got) - want).abs() / 2.0_f64.powf(exponent - 23.0)
    }

    fn grid(from: f64, to: f64, n: usize) -> Vec<f32> {
        (0..=n).map(|i| (from + (to - from) * i as f64 / n as f64) as f32).collect()
    }

    #[test]
    fn exp_is_within_two_ulp_over_the_whole_range() {
        let mut x = grid(-104.5, 88.72, 400_000);
        x.extend(grid(-1.0, 1.0, 100_000));
        x.extend([0.0, -0.0, 1e-30, -1e-30, 1e-42]);
        for isa in ISAS {
            for (&x, y) in x.iter().zip(dispatch(isa, Each(&x, Exp))) {
                let error = ulps(y, f64::from(x).exp());
                assert!(error <= 2.0, "exp({x:e}) = {y:e} is {error} ulp off on {isa}");
            }
            let ends = [f32::NEG_INFINITY, -1e30, -104.2, 88.73, 1e30, f32::INFINITY, f32::NAN];
            let y = dispatch(isa, Each(&ends, Exp));
            assert!(y[0] == 0.0 && y[1] == 0.0 && y[2] == 0.0, "{y:?}");
            assert!(y[3..6].iter().all(|&y| y == f32::INFINITY) && y[6].is_nan(), "{y:?}");
            assert_eq!(dispatch(isa, Each(&[0.0], Exp)), [1.0]);
        }
    }

    #[test]
    fn the_logarithm_keeps_its_error() {
        let x: Vec<f32> =
            (0..200_000).map(|i| 1.0 + (i as f32 / 1000.0).powi(3)).chain([1e-30, 3e38]).collect();
        for isa in ISAS {
            for (&x, y) in x.iter().zip(dispatch(isa, Each(&x, Ln))) {
                let want = f64::from(x).ln();
                assert!((f64::from(y) - want).abs() <= 2e-7 * want.abs().max(1.0), "ln({x}) = {y} on {isa}");
            }
            let ends = dispatch(isa, Each(&[f32::NAN, f32::INFINITY], Ln));
            assert!(ends.iter().all(|y| y.is_nan()), "{ends:?}");
        }
    }

    #[test]
    fn tanh_is_within_four_units_of_1e7_relative() {
        let mut x = grid(-12.0, 12.0, 400_000);
        x.extend([1e-30, -1e-30, 1e-42, 1e-4, 1e30, f32::INFINITY]);
        for isa in ISAS {
            for (&x, y) in x.iter().zip(dispatch(isa, Each(&x, Tanh))) {
                let want = f64::from(x).tanh();
                assert!((f64::from(y) - want).abs() <= 4e-7 * want.abs(), "tanh({x:e}) = {y:e} on {isa}");
                assert!(y.abs() <= 1.0);
            }
            assert!(dispatch(isa, Each(&[f32::NAN], Tanh))[0].is_nan());
        }
    }

    #[test]
    fn the_error_function_is_within_2e_7() {
        let x = grid(-6.0, 6.0, 300_000);
        for isa in ISAS {
            for (&x, y) in x.iter().zip(dispatch(isa, Each(&x, Erf))) {
                let want = reference::erf(f64::from(x) / std::f64::consts::SQRT_2);
                assert!((f64::from(y) - want).abs() <= 2e-7, "erf({x} / sqrt 2) = {y}, want {want} on {isa}");
            }
        }
    }

    #[test]
    fn the_normal_distribution_keeps_its_stated_errors() {
        let x = grid(-8.0, 8.0, 300_000);
        for isa in ISAS {
            for (&x, y) in x.iter().zip(dispatch(isa, Each(&x, Cdf))) {
                let want = reference::normal_cdf(f64::from(x));
                let error = (f64::from(y) - want).abs();
                assert!(error <= 1.5e-7, "cdf({x}) = {y} on {isa}");
                assert!(error <= 4e-6 * want, "cdf({x}) = {y:e}, want {want:e} on {isa}");
            }
        }
    }

    struct Dot<'a>(&'a [f32]);
    impl Kernel for Dot<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> f32 {
            dot_wide(s, self.0, self.0)
        }
    }

    #[test]
    fn reductions_take_every_element_once() {
        for n in [0, 1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 80, 100, 200] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37) % 101) as f32 - 50.0).collect();
            assert_eq!(sum_by(&x, |x| x), x.iter().sum::<f32>(), "integers add up exactly");
            assert_eq!(sum_wide(&x, |x| x), x.iter().sum::<f32>());
            let squares = dispatch(Isa::Scalar, Dot(&x));
            assert_eq!(squares, x.iter().map(|x| x * x).sum::<f32>());
            assert_eq!(max(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
        assert_eq!(max(&[f32::NAN, 3.0]), 3.0);
    }
}
