//! The row-wise part of attention: softmax, dropout of probabilities, and the gradient of both.
//!
//! Rows are padded to whole registers, and loops run over registers of [`PAD`] elements: a row of 16 or 40 scores has
//! no remainder to compute one by one.

use super::scratch::BLOCK;
use super::vector::{PAD, Vector, with_vector};
use crate::dropout::{Dropout, RowMask};
use crate::isa::{Kernel, Simd};
use crate::math;

/// Rows of scores inside a buffer: row i starts at `base + i * stride` and has `n` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) base: usize,
    pub(super) stride: usize,
    pub(super) n: usize,
}

impl Place {
    /// Row i with its padding.
    #[inline(always)]
    fn row(self, i: usize) -> std::ops::Range<usize> {
        let from = self.base + i * self.stride;
        from..from + self.n.next_multiple_of(PAD)
    }
}

/// The masks of a block of queries and a head.
#[derive(Clone, Copy)]
pub(super) struct Masks<'a> {
    pub(super) dropout: Option<&'a Dropout<'a>>,
    pub(super) first_token: usize,
    pub(super) head: usize,
}

impl Masks<'_> {
    /// The masks of all rows of a block at once: their hashes do not wait for each other then.
    #[inline(always)]
    fn rows(&self, count: usize) -> Option<[RowMask; BLOCK]> {
        self.dropout.map(|d| {
            let mut rows = [RowMask::KEEP; BLOCK];
            for (i, row) in rows[..count].iter_mut().enumerate() {
                // Head 0 gets sub-site 1: sub-site 0 belongs to dropout of whole rows.
                *row = d.row_at(self.first_token + i, self.head as u64 + 1);
            }
            rows
        })
    }
}

/// Sum of a padded row. (LLVM takes a loop over arrays of lanes apart into halves of registers.)
#[inline(always)]
fn sum<S: Simd>(row: &[f32]) -> f32 {
    with_vector!(S, lanes_sum(row))
}

/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn lanes_sum<V: Vector>(row: &[f32]) -> f32 {
    let mut lanes = [0.0; PAD];
    for at in (0..PAD).step_by(V::LANES) {
        // SAFETY: each register is inside of a chunk of PAD elements, PAD being a multiple of LANES.
        unsafe {
            let mut acc = V::splat(0.0);
            for x in row.as_chunks::<PAD>().0 {
                acc = acc.add(V::load(x.as_ptr().add(at)));
            }
            acc.store(lanes.as_mut_ptr().add(at));
        }
    }
    math::add_lanes(lanes)
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
        let masks = self.masks.rows(self.lse.len());
        let mut sums = [1.0; BLOCK];
        for (i, (lse, all)) in self.lse.iter_mut().zip(&mut sums).enumerate() {
            let row = &mut self.scores[self.place.row(i)];
            row[self.place.n..].fill(f32::NEG_INFINITY);
            let top = math::max(row);
            for x in row.as_chunks_mut::<PAD>().0 {
                x.iter_mut().for_each(|x| *x = math::exp(s, *x - top));
            }
            let sum = sum::<S>(row);
            (*lse, *all) = (top, sum);
            let inverse = 1.0 / sum;
            match &masks {
                None => row.iter_mut().for_each(|x| *x *= inverse),
                Some(masks) => {
                    let mask = masks[i];
                    for (j, x) in row.as_chunks_mut::<PAD>().0.iter_mut().enumerate() {
                        let columns = (j * PAD..).zip(x);
                        columns.for_each(|(j, x)| *x = mask.apply(j, *x * inverse));
                    }
                }
            }
        }
        // All rows at once: a call of the library for each row is a twentieth of a short sequence's time.
        self.lse.iter_mut().zip(sums).for_each(|(lse, sum)| *lse += math::ln(s, sum));
    }
}

/// Scores become their gradient, and the gradient of the dropped probabilities becomes those probabilities.
pub(super) struct SoftmaxGrad<'a> {
    /// In: scores; out: gradient of the scores, zero in the padding.
    pub(super) scores: &'a mut [f32],
    pub(super) place: Place,
    /// Rows `place.stride` apart. In: gradient of the dropped probabilities; out: the dropped probabilities.
    pub(super) dp: &'a mut [f32],
    pub(super) masks: Masks<'a>,
    pub(super) lse: &'a [f32],
    /// Gradient of the output and the output, rows `stride` apart, `d` columns.
    pub(super) dout: &'a [f32],
    pub(super) out: &'a [f32],
    pub(super) columns: (usize, usize),
}

impl Kernel for SoftmaxGrad<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (d, stride) = self.columns;
        let masks = self.masks.rows(self.lse.len());
        for (i, &lse) in self.lse.iter().enumerate() {
            let at = i * stride..i * stride + d;
            // The sum over j of p * dp equals dout . out, dropout included.
            let delta = math::dot(s, &self.dout[at.clone()], &self.out[at]);
            let row = &mut self.scores[self.place.row(i)];
            let dp = &mut self.dp[i * self.place.stride..][..row.len()];
            let registers = row.as_chunks_mut::<PAD>().0.iter_mut().zip(dp.as_chunks_mut::<PAD>().0);
            match &masks {
                None => {
                    for (x, dp) in registers {
                        for l in 0..PAD {
                            let p = math::exp(s, x[l] - lse);
                            x[l] = p * (dp[l] - delta);
                            dp[l] = p;
                        }
                    }
                }
                Some(masks) => {
                    let mask = masks[i];
                    for (j, (x, dp)) in registers.enumerate() {
                        for l in 0..PAD {
                            let p = math::exp(s, x[l] - lse);
                            let f = mask.factor((j * PAD + l) as u32);
                            x[l] = p * s.mul_add(f, dp[l], -delta);
                            dp[l] = p * f;
                        }
                    }
                }
            }
            row[self.place.n..].fill(0.0);
        }
    }
}
