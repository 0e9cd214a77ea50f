//! The row-wise part of attention: softmax, dropout of probabilities, and the gradient of both.

use crate::dropout::{Dropout, RowMask};
use crate::isa::{Kernel, Simd};
use crate::math;

/// A square tile inside a buffer: row i starts at `base + i * stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) base: usize,
    pub(super) stride: usize,
    pub(super) n: usize,
}

impl Place {
    #[inline(always)]
    pub(super) fn row(self, i: usize) -> std::ops::Range<usize> {
        let from = self.base + i * self.stride;
        from..from + self.n
    }
}

/// The masks of one sequence and head.
#[derive(Clone, Copy)]
pub(super) struct Masks<'a> {
    pub(super) dropout: Option<&'a Dropout<'a>>,
    pub(super) first_token: usize,
    pub(super) head: usize,
}

impl Masks<'_> {
    #[inline(always)]
    fn row(&self, i: usize) -> Option<RowMask> {
        // Head 0 gets sub-site 1: sub-site 0 belongs to dropout of whole rows.
        self.dropout.map(|d| d.row_at(self.first_token + i, self.head as u64 + 1))
    }
}

/// Scores become dropped probabilities; `lse` receives each row's log-sum-exp.
pub(super) struct Softmax<'a> {
    pub(super) scores: &'a mut [f32],
    pub(super) place: Place,
    pub(super) masks: Masks<'a>,
    pub(super) lse: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (i, lse) in self.lse.iter_mut().enumerate() {
            let row = &mut self.scores[self.place.row(i)];
            let top = math::max(row);
            row.iter_mut().for_each(|x| *x = math::exp(s, *x - top));
            let sum = math::sum_by(row, |x| x);
            *lse = top + sum.ln();
            let inverse = 1.0 / sum;
            match self.masks.row(i) {
                None => row.iter_mut().for_each(|x| *x *= inverse),
                Some(mask) => row.iter_mut().enumerate().for_each(|(j, x)| *x = mask.apply(j, *x * inverse)),
            }
        }
    }
}

/// Scores become their gradient, and the gradient of the dropped probabilities becomes those probabilities.
pub(super) struct SoftmaxGrad<'a> {
    /// In: scores; out: gradient of the scores.
    pub(super) scores: &'a mut [f32],
    pub(super) place: Place,
    /// (n, n). In: gradient of the dropped probabilities; out: the dropped probabilities.
    pub(super) dp: &'a mut [f32],
    pub(super) masks: Masks<'a>,
    pub(super) lse: &'a [f32],
    /// (n, d) gradient of the output and the output.
    pub(super) dout: &'a [f32],
    pub(super) out: &'a [f32],
}

impl Kernel for SoftmaxGrad<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.place.n;
        let d = self.dout.len() / n.max(1);
        for (i, (&lse, dp)) in self.lse.iter().zip(self.dp.chunks_mut(n)).enumerate() {
            let (dout, out) = (&self.dout[i * d..(i + 1) * d], &self.out[i * d..(i + 1) * d]);
            // The sum over j of p * dp equals dout . out, dropout included.
            let delta = math::dot(s, dout, out);
            let row = &mut self.scores[self.place.row(i)];
            match self.masks.row(i) {
                None => {
                    for (x, dp) in row.iter_mut().zip(dp) {
                        let p = math::exp(s, *x - lse);
                        *x = p * (*dp - delta);
                        *dp = p;
                    }
                }
                Some(mask) => {
                    for (j, (x, dp)) in row.iter_mut().zip(dp).enumerate() {
                        let p = math::exp(s, *x - lse);
                        let f = mask.factor(j as u32);
                        *x = p * s.mul_add(f, *dp, -delta);
                        *dp = p * f;
                    }
                }
            }
        }
    }
}
