//! The optimizer's pass over the arenas, and the reductions that gradient clipping and health checks need.

use crate::element::Element;
use crate::isa::{Kernel, Simd, dispatch};
use crate::math::LANES;
use crate::pool::{BLOCK, Pool};

/// AdamW with decoupled weight decay (Loshchilov and Hutter 2019), as `torch.optim.AdamW` computes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the corrected second moment.
    pub eps: f32,
    /// Decoupled weight decay; the weight shrinks by `lr * weight_decay`.
    pub weight_decay: f32,
    /// Number of this update, from 1, for the bias correction.
    pub step: u64,
    /// Factor of every gradient (clipping).
    pub grad_scale: f32,
}

struct Update<'a, E> {
    hyper: &'a Derived,
    grad: &'a [f32],
    master: &'a mut [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
    compute: Option<&'a mut [E]>,
}

/// What the inner loop needs, computed once in f64.
struct Derived {
    grad_scale: f32,
    keep: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    step_size: f32,
    inverse_root: f32,
    eps: f32,
}

impl AdamW {
    fn derive(&self) -> Derived {
        assert!(self.step >= 1, "step counts from 1");
        let (b1, b2) = (f64::from(self.beta1), f64::from(self.beta2));
        let correction = |b: f64| 1.0 - b.powf(self.step as f64);
        Derived {
            grad_scale: self.grad_scale,
            keep: (1.0 - f64::from(self.lr) * f64::from(self.weight_decay)) as f32,
            one_minus_beta1: (1.0 - b1) as f32,
            beta2: self.beta2,
            one_minus_beta2: (1.0 - b2) as f32,
            step_size: (f64::from(self.lr) / correction(b1)) as f32,
            inverse_root: (1.0 / correction(b2).sqrt()) as f32,
            eps: self.eps,
        }
    }
}

impl<E: Element> Kernel for Update<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let h = self.hyper;
        let n = self.grad.len();
        let (master, m, v) = (&mut self.master[..n], &mut self.m[..n], &mut self.v[..n]);
        for i in 0..n {
            let g = self.grad[i] * h.grad_scale;
            let mi = s.mul_add(g - m[i], h.one_minus_beta1, m[i]);
            let vi = s.mul_add(g * g, h.one_minus_beta2, v[i] * h.beta2);
            m[i] = mi;
            v[i] = vi;
            let denominator = s.mul_add(vi.sqrt(), h.inverse_root, h.eps);
            master[i] = master[i] * h.keep - h.step_size * mi / denominator;
        }
        if let Some(compute) = self.compute {
            compute[..n].iter_mut().zip(&*master).for_each(|(c, w)| *c = E::from_f32(*w));
        }
    }
}

/// Updates a range of the arenas: moments, master weights, and the compute copy in the same pass.
///
/// Cost: reads 16 bytes and writes 12 (plus the copy) per parameter.
pub fn adamw<E: Element>(
    pool: &Pool,
    hyper: &AdamW,
    grad: &[f32],
    master: &mut [f32],
    m: &mut [f32],
    v: &mut [f32],
    compute: Option<&mut [E]>,
) {
    let n = grad.len();
    assert!(
        master.len() == n && m.len() == n && v.len() == n,
        "master and moments must be as long as grad ({n})"
    );
    if let Some(c) = &compute {
        assert_eq!(c.len(), n, "the compute copy must be as long as grad");
    }
    let hyper = &hyper.derive();
    let mut copies = compute.map(|c| c.chunks_mut(BLOCK));
    let parts = (grad.chunks(BLOCK).zip(master.chunks_mut(BLOCK)))
        .zip(m.chunks_mut(BLOCK).zip(v.chunks_mut(BLOCK)))
        .map(|((grad, master), (m, v))| {
            let compute = copies.as_mut().and_then(Iterator::next);
            Update { hyper, grad, master, m, v, compute }
        });
    pool.each(parts, |update| dispatch(pool.isa(), update));
}

struct SumSquares<'a>(&'a [f32]);
impl Kernel for SumSquares<'_> {
    type Output = f64;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        let mut acc = [0.0_f64; LANES];
        let mut chunks = self.0.chunks_exact(LANES);
        for c in &mut chunks {
            for l in 0..LANES {
                let x = f64::from(c[l]);
                acc[l] += x * x;
            }
        }
        for (a, x) in acc.iter_mut().zip(chunks.remainder()) {
            *a += f64::from(*x) * f64::from(*x);
        }
        acc.iter().sum()
    }
}

/// Elements per partial sum: few enough partials to add up on one thread.
const REDUCE_BLOCK: usize = 64 * 1024;

/// Sum of squares, accumulated in f64 over fixed blocks in fixed order.
pub fn sum_squares(pool: &Pool, x: &[f32]) -> f64 {
    let mut partial = vec![0.0_f64; x.len().div_ceil(REDUCE_BLOCK)];
    pool.each(x.chunks(REDUCE_BLOCK).zip(&mut partial), |(x, sum)| {
        *sum = dispatch(pool.isa(), SumSquares(x))
    });
    partial.iter().sum()
}

struct AllFinite<'a>(&'a [f32]);
impl Kernel for AllFinite<'_> {
    type Output = bool;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> bool {
        // An and over all exponents vectorises; a search that stops early does not.
        self.0.iter().fold(true, |good, x| good & (x.to_bits() & 0x7f80_0000 != 0x7f80_0000))
    }
}

/// Index of the first element that is NaN or infinite.
pub fn first_non_finite(pool: &Pool, x: &[f32]) -> Option<usize> {
    let mut bad = vec![false; x.len().div_ceil(REDUCE_BLOCK)];
    pool.each(x.chunks(REDUCE_BLOCK).zip(&mut bad), |(x, bad)| *bad = !dispatch(pool.isa(), AllFinite(x)));
    let block = bad.iter().position(|&b| b)?;
    let from = block * REDUCE_BLOCK;
    x[from..].iter().position(|x| !x.is_finite()).map(|i| from + i)
}
