//! The optimizer's pass over the arenas, and the reductions that gradient clipping and health checks need.

mod table;

use std::ops::Range;

use crate::element::Element;
use crate::isa::{Isa, Kernel, Simd, dispatch};
use crate::math::LANES;
use crate::pool::{BLOCK, Pool};

pub use table::{LazyRows, LiveRows, TableWeights, adamw_table, sum_squares_rows};

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

/// The same range of every arena that an update touches.
pub struct Arenas<'a, E> {
    /// Gradients; zero afterwards.
    pub grad: &'a mut [f32],
    /// f32 weights.
    pub master: &'a mut [f32],
    /// First moments.
    pub first_moment: &'a mut [f32],
    /// Second moments.
    pub second_moment: &'a mut [f32],
    /// The rounded weights that forward reads, where they are not the master itself.
    pub compute: Option<&'a mut [E]>,
}

/// What the inner loop needs, computed once in f64.
struct Derived {
    grad_scale: f32,
    keep_decayed: f32,
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
            keep_decayed: (1.0 - f64::from(self.lr) * f64::from(self.weight_decay)) as f32,
            one_minus_beta1: (1.0 - b1) as f32,
            beta2: self.beta2,
            one_minus_beta2: (1.0 - b2) as f32,
            step_size: (f64::from(self.lr) / correction(b1)) as f32,
            inverse_root: (1.0 / correction(b2).sqrt()) as f32,
            eps: self.eps,
        }
    }
}

/// Zero instead of a subnormal number. The first moment of a row that no token takes shrinks by `beta1` in each step: after
/// some 830 steps it would be subnormal for 150 more, each of which costs the CPU a hundred cycles.
#[inline(always)]
fn normal(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0 } else { x }
}

/// Elements updated before their rounded copy is made: few enough that all five slices stay in the nearest cache.
const CHUNK: usize = 1024;

/// One stretch of the arenas with one decay.
struct Update<'a, E> {
    hyper: &'a Derived,
    /// What is left of a weight after its decay.
    keep: f32,
    arenas: Arenas<'a, E>,
}

impl<E: Element> Kernel for Update<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let h = self.hyper;
        let a = self.arenas;
        let mut copies = a.compute.map(|c| c.chunks_mut(CHUNK));
        let chunks = (a.grad.chunks_mut(CHUNK).zip(a.master.chunks_mut(CHUNK)))
            .zip(a.first_moment.chunks_mut(CHUNK).zip(a.second_moment.chunks_mut(CHUNK)));
        for ((grad, master), (m, v)) in chunks {
            let n = grad.len();
            let (master, m, v) = (&mut master[..n], &mut m[..n], &mut v[..n]);
            for i in 0..n {
                let g = grad[i] * h.grad_scale;
                let mi = normal(s.mul_add(g - m[i], h.one_minus_beta1, m[i]));
                let vi = normal(s.mul_add(g * g, h.one_minus_beta2, v[i] * h.beta2));
                grad[i] = 0.0;
                m[i] = mi;
                v[i] = vi;
                let denominator = s.mul_add(vi.sqrt(), h.inverse_root, h.eps);
                master[i] = master[i] * self.keep - h.step_size * mi / denominator;
            }
            if let Some(copy) = copies.as_mut().and_then(Iterator::next) {
                for (c, w) in copy.iter_mut().zip(&*master) {
                    *c = E::from_f32(*w);
                }
            }
        }
    }
}

impl<E: Element> Arenas<'_, E> {
    fn check(&self) {
        let n = self.grad.len();
        let lens = [self.master.len(), self.first_moment.len(), self.second_moment.len()];
        assert!(lens.iter().all(|&len| len == n), "master and moments must be as long as grad ({n})");
        assert!(
            self.compute.as_ref().is_none_or(|c| c.len() == n),
            "the compute copy must be as long as grad ({n})"
        );
    }

    fn range(&mut self, range: Range<usize>) -> Arenas<'_, E> {
        Arenas {
            grad: &mut self.grad[range.clone()],
            master: &mut self.master[range.clone()],
            first_moment: &mut self.first_moment[range.clone()],
            second_moment: &mut self.second_moment[range.clone()],
            compute: self.compute.as_deref_mut().map(|c| &mut c[range]),
        }
    }
}

/// Updates a range of the arenas in one pass: moments, master weights, the compute copy; gradients become zero.
///
/// `undecayed` are the stretches without weight decay, ascending and disjoint: a whole model is one call, however
/// many biases and norms it has. Moments below the normal range of f32 become zero.
///
/// Cost: reads 16 bytes and writes 16 (plus the copy) per parameter.
pub fn adamw<E: Element>(pool: &Pool, hyper: &AdamW, undecayed: &[Range<usize>], arenas: Arenas<'_, E>) {
    arenas.check();
    assert!(undecayed.is_sorted_by(|a, b| a.end <= b.start), "stretches must ascend and not overlap");
    let hyper = &hyper.derive();
    let mut copies = arenas.compute.map(|c| c.chunks_mut(BLOCK));
    let parts = (arenas.grad.chunks_mut(BLOCK).zip(arenas.master.chunks_mut(BLOCK)))
        .zip(arenas.first_moment.chunks_mut(BLOCK).zip(arenas.second_moment.chunks_mut(BLOCK)))
        .map(|((grad, master), (first_moment, second_moment))| {
            let compute = copies.as_mut().and_then(Iterator::next);
            Arenas { grad, master, first_moment, second_moment, compute }
        })
        .enumerate();
    pool.each(parts, |(b, block)| update_block(pool.isa(), hyper, undecayed, b * BLOCK, block));
}

/// Updates the block that starts at element `start`, stretch by stretch.
fn update_block<E: Element>(
    isa: Isa,
    hyper: &Derived,
    undecayed: &[Range<usize>],
    start: usize,
    mut block: Arenas<'_, E>,
) {
    let len = block.grad.len();
    let mut update = |range: Range<usize>, keep: f32| {
        if !range.is_empty() {
            dispatch(isa, Update { hyper, keep, arenas: block.range(range) });
        }
    };
    let mut at = 0;
    let first = undecayed.partition_point(|r| r.end <= start);
    for stretch in undecayed[first..].iter().take_while(|r| r.start < start + len) {
        let (from, to) = (stretch.start.saturating_sub(start), (stretch.end - start).min(len));
        update(at..from, hyper.keep_decayed);
        update(from..to, 1.0);
        at = to;
    }
    update(at..len, hyper.keep_decayed);
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
