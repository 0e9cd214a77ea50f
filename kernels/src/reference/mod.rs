//! Scalar definitions in f64: the specification that the tests compare with.
//!
//! Written to be read next to the formulas, not to be fast. Inputs and outputs are f64 vectors.

mod attention;
mod reduce;

pub use attention::{AttentionGrad, AttentionProblem};
pub use reduce::reduce;

use crate::activation::Activation;
use crate::dropout::{Dropout, row_or_keep};
use crate::element::Element;
use crate::optim::AdamW;

/// Widens a slice.
pub fn widen<E: Element>(x: &[E]) -> Vec<f64> {
    x.iter().map(|x| f64::from(x.to_f32())).collect()
}

/// The error function to about 1e-15: Maclaurin series, or the continued fraction of erfc (Abramowitz and Stegun
/// 7.1.5, 7.1.14).
pub fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let a = x.abs();
    let value = if a < 2.5 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-18 * sum.abs() {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        2.0 / std::f64::consts::PI.sqrt() * sum
    } else {
        1.0 - erfc_tail(a)
    };
    value.copysign(x)
}

/// erfc for arguments of at least 2.
fn erfc_tail(a: f64) -> f64 {
    let fraction = (1..=120).rev().fold(0.0, |f, k| f64::from(k) / 2.0 / (a + f));
    (-a * a).exp() / std::f64::consts::PI.sqrt() / (a + fraction)
}

/// Probability that a standard normal number is below x.
pub fn normal_cdf(x: f64) -> f64 {
    let z = x / std::f64::consts::SQRT_2;
    if z < -2.5 { 0.5 * erfc_tail(-z) } else { 0.5 * (1.0 + erf(z)) }
}

/// Value of an activation function.
pub fn activation(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Gelu => x * normal_cdf(x),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Tanh => x.tanh(),
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}

/// Derivative of an activation function.
pub fn activation_slope(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Gelu => normal_cdf(x) + x * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt(),
        Activation::GeluTanh => {
            let c = (2.0 / std::f64::consts::PI).sqrt();
            let t = (c * (x + 0.044715 * x.powi(3))).tanh();
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * c * (1.0 + 3.0 * 0.044715 * x * x)
        }
        Activation::Relu => f64::from(u8::from(x > 0.0)),
        Activation::Tanh => 1.0 - x.tanh().powi(2),
        Activation::Silu => {
            let g = 1.0 / (1.0 + (-x).exp());
            g * (1.0 + x * (1.0 - g))
        }
    }
}

/// C (m, n) = A (m, k) B (k, n).
pub fn matmul(m: usize, k: usize, n: usize, a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for p in 0..k {
            for j in 0..n {
                c[i * n + j] += a[i * k + p] * b[p * n + j];
            }
        }
    }
    c
}

/// The transpose of A (m, n).
pub fn transpose(m: usize, n: usize, a: &[f64]) -> Vec<f64> {
    (0..n * m).map(|x| a[(x % m) * n + x / m]).collect()
}

/// The factor of each element under dropout (T, cols): 0 or 1 / (1 - rate).
pub fn dropout_factors(dropout: Option<&Dropout<'_>>, rows: usize, cols: usize) -> Vec<f64> {
    (0..rows * cols).map(|i| f64::from(row_or_keep(dropout, i / cols).factor((i % cols) as u32))).collect()
}

/// LayerNorm of each row of s (T, cols): y, mean and reciprocal standard deviation.
pub fn norm(cols: usize, eps: f64, s: &[f64], gamma: &[f64], beta: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (mut y, mut means, mut rstds) = (Vec::new(), Vec::new(), Vec::new());
    for row in s.chunks(cols) {
        let mean = row.iter().sum::<f64>() / cols as f64;
        let var = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
        let rstd = 1.0 / (var + eps).sqrt();
        y.extend(row.iter().zip(gamma.iter().zip(beta)).map(|(x, (g, b))| (x - mean) * rstd * g + b));
        means.push(mean);
        rstds.push(rstd);
    }
    (y, means, rstds)
}

/// Gradients of [`norm`] with respect to s, gamma and beta.
pub fn norm_grad(
    cols: usize,
    eps: f64,
    s: &[f64],
    gamma: &[f64],
    dy: &[f64],
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (_, means, rstds) = norm(cols, eps, s, gamma, gamma);
    let (mut ds, mut dgamma, mut dbeta) = (vec![0.0; s.len()], vec![0.0; cols], vec![0.0; cols]);
    for t in 0..means.len() {
        let xhat: Vec<f64> = (0..cols).map(|c| (s[t * cols + c] - means[t]) * rstds[t]).collect();
        let g: Vec<f64> = (0..cols).map(|c| dy[t * cols + c] * gamma[c]).collect();
        let mean_g = g.iter().sum::<f64>() / cols as f64;
        let mean_gx = g.iter().zip(&xhat).map(|(a, b)| a * b).sum::<f64>() / cols as f64;
        for c in 0..cols {
            ds[t * cols + c] = rstds[t] * (g[c] - mean_g - xhat[c] * mean_gx);
            dgamma[c] += dy[t * cols + c] * xhat[c];
            dbeta[c] += dy[t * cols + c];
        }
    }
    (ds, dgamma, dbeta)
}

/// 'Same' convolution unfolding of x (T, cols) to (T, cols * kernel).
pub fn unfold(cols: usize, kernel: usize, offsets: &[u32], x: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; x.len() * kernel];
    for row in offsets.windows(2) {
        let (from, to) = (row[0] as i64, row[1] as i64);
        for t in from..to {
            for (c, k) in (0..cols).flat_map(|c| (0..kernel).map(move |k| (c, k))) {
                let at = t + k as i64 - kernel as i64 / 2;
                if (from..to).contains(&at) {
                    y[(t as usize * cols + c) * kernel + k] = x[at as usize * cols + c];
                }
            }
        }
    }
    y
}

/// One AdamW update of (weight, m, v), step by step as in the documentation of `torch.optim.AdamW`.
pub fn adamw(h: &AdamW, grad: f64, (weight, m, v): (f64, f64, f64)) -> (f64, f64, f64) {
    let (lr, b1, b2) = (f64::from(h.lr), f64::from(h.beta1), f64::from(h.beta2));
    let g = grad * f64::from(h.grad_scale);
    let weight = weight - lr * f64::from(h.weight_decay) * weight;
    let m = b1 * m + (1.0 - b1) * g;
    let v = b2 * v + (1.0 - b2) * g * g;
    let m_hat = m / (1.0 - b1.powf(h.step as f64));
    let v_hat = v / (1.0 - b2.powf(h.step as f64));
    (weight - lr * m_hat / (v_hat.sqrt() + f64::from(h.eps)), m, v)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_its_tabulated_values() {
        // Abramowitz and Stegun, table 7.1.
        for (x, y) in [(0.0, 0.0), (0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0)] {
            assert!((erf(x) - y).abs() < 1e-10 && (erf(-x) + y).abs() < 1e-10);
        }
        assert!((erf(2.5 - 1e-12) - erf(2.5)).abs() < 1e-12, "series and fraction meet");
    }

    #[test]
    fn slopes_are_the_differences_of_values() {
        use Activation::{Gelu, GeluTanh, Relu, Silu, Tanh};
        for act in [Gelu, GeluTanh, Relu, Silu, Tanh] {
            for i in -60..60 {
                let (x, h) = (f64::from(i) * 0.1 + 0.05, 1e-5);
                let difference = (activation(act, x + h) - activation(act, x - h)) / (2.0 * h);
                assert!((difference - activation_slope(act, x)).abs() < 1e-8, "{act:?} at {x}");
            }
        }
    }

    #[test]
    fn norm_gradient_is_the_difference_of_values() {
        let (cols, eps, h) = (5, 1e-3, 1e-5);
        let noise = |key, n| (0..n).map(|i| f64::from(crate::rng::normal(key, i))).collect::<Vec<_>>();
        let (s, gamma, beta, dy) = (noise(1, 15), noise(2, 5), noise(3, 5), noise(4, 15));
        let loss = |s: &[f64], g: &[f64]| {
            norm(cols, eps, s, g, &beta).0.iter().zip(&dy).map(|(a, b)| a * b).sum::<f64>()
        };
        let (ds, dgamma, _) = norm_grad(cols, eps, &s, &gamma, &dy);
        for i in 0..15 {
            let (mut up, mut down) = (s.clone(), s.clone());
            up[i] += h;
            down[i] -= h;
            assert!(((loss(&up, &gamma) - loss(&down, &gamma)) / (2.0 * h) - ds[i]).abs() < 1e-7);
        }
        for i in 0..5 {
            let (mut up, mut down) = (gamma.clone(), gamma.clone());
            up[i] += h;
            down[i] -= h;
            assert!(((loss(&s, &up) - loss(&s, &down)) / (2.0 * h) - dgamma[i]).abs() < 1e-7);
        }
    }
}
