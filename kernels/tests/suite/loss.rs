use muster_kernels::loss::{bce_with_logits, cross_entropy, mse, softmax_rows};

use crate::common::{close, noise};

/// Asserts that `gradient` is `scale` times the difference quotient of the loss.
fn differences(x: &[f32], scale: f32, gradient: &[f32], loss: impl Fn(&[f32]) -> f64) {
    for i in 0..x.len() {
        // A power of two, so that x +- h is exact enough in f32.
        let h = 1.0 / 1024.0;
        let (mut up, mut down) = (x.to_vec(), x.to_vec());
        up[i] += h;
        down[i] -= h;
        let width = f64::from(up[i]) - f64::from(down[i]);
        let want = f64::from(scale) * (loss(&up) - loss(&down)) / width;
        assert!((f64::from(gradient[i]) - want).abs() < 1e-6, "element {i}: {} {want}", gradient[i]);
    }
}

#[test]
fn cross_entropy_and_its_gradient() {
    let (x, targets) = (noise::<f32>(1, 15), [4, 0, 2]);
    let mut d = vec![0.0; 15];
    let got = cross_entropy(5, &x, &targets, 0.25, &mut d);
    let mut probs = vec![0.0; 15];
    softmax_rows(5, &x, &mut probs);
    let want: f64 =
        targets.iter().enumerate().map(|(r, &t)| -f64::from(probs[r * 5 + t as usize]).ln()).sum();
    assert!((got - want).abs() < 1e-6);
    differences(&x, 0.25, &d, |x| cross_entropy(5, x, &targets, 1.0, &mut [0.0; 15]));
    assert!((cross_entropy(3, &[0.0; 3], &[1], 1.0, &mut [0.0; 3]) - 3.0_f64.ln()).abs() < 1e-12);
}

#[test]
fn bce_and_mse_and_their_gradients() {
    let (x, t) = (noise::<f32>(2, 12), noise::<f32>(3, 12));
    let labels: Vec<f32> = t.iter().map(|&t| f32::from(u8::from(t > 0.0))).collect();
    let mut d = vec![0.0; 12];
    bce_with_logits(4, &x, &labels, 0.5, &mut d);
    differences(&x, 0.5, &d, |x| bce_with_logits(4, x, &labels, 1.0, &mut [0.0; 12]));
    mse(3, &x, &t, 2.0, &mut d);
    differences(&x, 2.0, &d, |x| mse(3, x, &t, 1.0, &mut [0.0; 12]));
    // Hand values: ln 2 for a logit of 0; ((1 - 0)^2 + (2 - 4)^2) / 2.
    assert!((bce_with_logits(1, &[0.0], &[1.0], 1.0, &mut [0.0]) - 2.0_f64.ln()).abs() < 1e-12);
    assert_eq!(mse(2, &[1.0, 2.0], &[0.0, 4.0], 1.0, &mut [0.0; 2]), 2.5);
}

#[test]
fn large_logits_stay_finite_and_nan_shows() {
    let mut d = [0.0; 3];
    let loss = cross_entropy(3, &[3e38, -3e38, 0.0], &[0], 1.0, &mut d);
    assert!(loss == 0.0 && d.iter().all(|d| d.is_finite()));
    let loss = bce_with_logits(3, &[1e38, -1e38, 5.0], &[1.0, 0.0, 1.0], 1.0, &mut d);
    assert!(loss.is_finite() && d.iter().all(|d| d.is_finite()));
    for x in [f32::NAN, f32::INFINITY] {
        assert!(cross_entropy(3, &[0.0, x, 0.0], &[0], 1.0, &mut d).is_nan(), "{x} must show in the loss");
    }
}

#[test]
fn softmax_rows_sum_to_one() {
    let x = noise::<f32>(5, 70);
    let mut p = vec![0.0; 70];
    softmax_rows(7, &x, &mut p);
    close("sums", &p.chunks(7).map(|r| r.iter().sum()).collect::<Vec<f32>>(), &[1.0; 10], 1e-6, 0.0);
}

#[test]
#[should_panic(expected = "target 3 of row 1 must be below 3")]
fn a_target_outside_of_the_classes_is_named() {
    cross_entropy(3, &[0.0; 6], &[0, 3], 1.0, &mut [0.0; 6]);
}
