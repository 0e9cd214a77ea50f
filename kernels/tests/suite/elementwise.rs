use muster_kernels::activation::{self, Activation};
use muster_kernels::{Element, bf16, elementwise, reference};

use crate::common::{LENGTHS, close, noise, pools};
use crate::for_both;

const ALL: [Activation; 5] =
    [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Tanh, Activation::Silu];

/// Absolute and relative error of the f32 functions: a few units in the last place of their largest intermediate.
const TOLERANCE: (f64, f64) = (4e-7, 2e-6);

fn activations<E: Element>() {
    for pool in pools() {
        for n in LENGTHS {
            let x: Vec<E> = noise::<E>(1, n).iter().map(|x| E::from_f32(x.to_f32() * 3.0)).collect();
            let dy = noise::<E>(2, n);
            for act in ALL {
                let (mut y, mut dx) = (vec![E::from_f32(f32::NAN); n], vec![E::from_f32(f32::NAN); n]);
                activation::forward(&pool, act, &x, &mut y);
                activation::backward(&pool, act, &x, &dy, &mut dx);
                let wide = reference::widen(&x);
                let want: Vec<f64> = wide.iter().map(|&x| reference::activation(act, x)).collect();
                close(&format!("{act:?} {n}"), &y, &want, TOLERANCE.0, TOLERANCE.1);
                let slopes = wide.iter().map(|&x| reference::activation_slope(act, x));
                let want: Vec<f64> = slopes.zip(reference::widen(&dy)).map(|(s, d)| s * d).collect();
                close(&format!("{act:?}' {n}"), &dx, &want, 4.0 * TOLERANCE.0, TOLERANCE.1);
            }
        }
    }
}

#[test]
fn activations_match_the_reference() {
    for_both!(activations);
}

#[test]
fn activations_at_the_ends_of_the_range() {
    let x = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        1e-40,
        -1e-40,
        0.0,
        88.0,
        -88.0,
        20.0,
    ];
    let one = vec![1.0_f32; x.len()];
    for pool in pools() {
        for act in ALL {
            let (mut y, mut dx) = (one.clone(), one.clone());
            activation::forward(&pool, act, &x, &mut y);
            activation::backward(&pool, act, &x, &one, &mut dx);
            assert!(y[0].is_nan() && dx[0].is_nan(), "{act:?}: NaN must propagate");
            let top = if act == Activation::Tanh { 1.0 } else { f32::INFINITY };
            assert_eq!(y[1], top, "{act:?}(inf)");
            assert_eq!(y[2], if act == Activation::Tanh { -1.0 } else { 0.0 }, "{act:?}(-inf)");
            for (i, (y, dx)) in y.iter().zip(&dx).enumerate().skip(1) {
                assert!(!y.is_nan() && !dx.is_nan(), "{act:?}({}) gave {y}, slope {dx}", x[i]);
                assert!((-0.2..=1.2).contains(dx), "{act:?}'({}) = {dx}", x[i]);
            }
        }
    }
}

#[test]
fn gelu_keeps_relative_accuracy_in_the_lower_tail() {
    // The form 1 + erf(x) would lose every digit here.
    let x: Vec<f32> = (0..600).map(|i| -2.0 - i as f32 * 0.01).collect();
    for pool in pools() {
        let mut y = vec![0.0_f32; x.len()];
        activation::forward(&pool, Activation::Gelu, &x, &mut y);
        let want: Vec<f64> =
            reference::widen(&x).iter().map(|&x| reference::activation(Activation::Gelu, x)).collect();
        // e^(-x^2/2) multiplies the rounding of its argument by x^2 / 2 = 32.
        close("gelu tail", &y, &want, 0.0, 8e-6);
    }
}

/// Every pattern of the kept half, with the dropped half at, below and above the tie.
#[test]
fn bf16_rounds_to_nearest_even() {
    for high in 0..=u16::MAX {
        for low in [0_u16, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x = f32::from_bits(u32::from(high) << 16 | u32::from(low));
            let got = <bf16 as Element>::from_f32(x);
            if x.is_nan() {
                assert!(got.is_nan());
                continue;
            }
            let up = low > 0x8000 || low == 0x8000 && high & 1 == 1;
            assert_eq!(got.to_bits(), high + u16::from(up), "{high:04x} {low:04x}");
        }
    }
}

#[test]
fn casts_round_like_single_elements_on_every_isa() {
    let x: Vec<f32> = (0..70_000_u32).map(|i| f32::from_bits(i.wrapping_mul(61_681))).collect();
    for pool in pools() {
        let (mut narrow, mut wide) = (vec![bf16::ZERO; x.len()], vec![0.0_f32; x.len()]);
        elementwise::cast(&pool, &x, &mut narrow);
        elementwise::cast(&pool, &narrow, &mut wide);
        for ((x, n), w) in x.iter().zip(&narrow).zip(&wide) {
            assert_eq!(n.to_bits(), <bf16 as Element>::from_f32(*x).to_bits());
            assert!(w.to_bits() == u32::from(n.to_bits()) << 16);
        }
    }
}

fn sums<E: Element>() {
    for pool in pools() {
        for n in LENGTHS {
            let (a, b) = (noise::<E>(3, n), noise::<E>(4, n));
            let (mut sum, mut scaled) = (a.clone(), a.clone());
            elementwise::add_assign(&pool, &mut sum, &b);
            elementwise::scale_assign(&pool, 0.37, &mut scaled);
            let mut copied = vec![0.0_f32; n];
            elementwise::scale(&pool, 0.37, &a, &mut copied);
            let (a, b) = (reference::widen(&a), reference::widen(&b));
            close("sum", &sum, &a.iter().zip(&b).map(|(a, b)| a + b).collect::<Vec<_>>(), 1e-7, 1e-7);
            let want: Vec<f64> = a.iter().map(|a| a * f64::from(0.37_f32)).collect();
            close("scaled", &scaled, &want, 0.0, 1e-7);
            close("copied", &copied, &want, 0.0, 1e-7);
        }
    }
}

#[test]
fn sums_and_scales_match_the_reference() {
    for_both!(sums);
}

#[test]
fn copies_and_zeros_reach_every_element() {
    for pool in pools() {
        for n in LENGTHS.into_iter().chain([200_001]) {
            let x = noise::<f32>(1, n);
            let mut y = vec![f32::NAN; n];
            elementwise::copy(&pool, &x, &mut y);
            assert_eq!(x, y);
            elementwise::zero(&pool, &mut y);
            assert!(y.iter().all(|y| y.to_bits() == 0));
        }
    }
}
