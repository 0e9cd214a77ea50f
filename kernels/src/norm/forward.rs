//! The forward pass.

use super::{check_masks, mask, wide_row, widened};
use crate::dropout::{Dropout, RowMask};
use crate::element::{DType, Element};
use crate::isa::{Kernel, Simd, dispatch};
use crate::math::sum_wide;
use crate::pool::{Pool, row_block};

/// Forward pass over T rows of `cols`.
pub struct Forward<'a, E> {
    /// Width of a row.
    pub cols: usize,
    /// Added to the variance.
    pub eps: f32,
    /// In: x (T, cols); out: the sum s that is normalised, to be kept for backward.
    pub x: &'a mut [E],
    /// Added to x after its dropout (T, cols).
    pub residual: Option<&'a [E]>,
    /// Dropout of x.
    pub dropout_in: Option<Dropout<'a>>,
    /// Dropout of the result.
    pub dropout_out: Option<Dropout<'a>>,
    /// Factor (cols).
    pub gamma: &'a [E],
    /// Shift (cols).
    pub beta: &'a [E],
    /// Result (T, cols).
    pub y: &'a mut [E],
    /// Mean of each row (T).
    pub mean: &'a mut [f32],
    /// Reciprocal standard deviation of each row (T).
    pub rstd: &'a mut [f32],
}

/// Some rows of a [`Forward`]; the slices are those of these rows.
struct Rows<'a, E> {
    pass: Forward<'a, E>,
    /// Token of the first row.
    first: usize,
}

impl<E: Element> Kernel for Rows<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Rows { pass: f, first } = self;
        let cols = f.cols;
        let (mut row, mut gamma, mut beta) = (wide_row::<E>(cols), wide_row::<E>(cols), wide_row::<E>(cols));
        let (gamma, beta) = (widened(f.gamma, &mut gamma), widened(f.beta, &mut beta));
        let mut residuals = f.residual.map(|r| r.chunks_exact(cols));
        let rows = (f.x.chunks_exact_mut(cols).zip(f.y.chunks_exact_mut(cols)))
            .zip(f.mean.iter_mut().zip(f.rstd))
            .enumerate();
        for (i, ((x, y), (mean, rstd))) in rows {
            let residual = residuals.as_mut().and_then(Iterator::next);
            add(x, residual, mask(f.dropout_in.as_ref(), first + i), &mut row);
            let sum = E::as_f32(x).unwrap_or(&row);
            *mean = sum_wide(sum, |x| x) / cols as f32;
            let var = sum_wide(sum, |x| (x - *mean) * (x - *mean)) / cols as f32;
            *rstd = 1.0 / (var + f.eps).sqrt();
            let mask = mask(f.dropout_out.as_ref(), first + i);
            normalise(s, Row { sum, mean: *mean, rstd: *rstd, gamma, beta }, mask, y);
        }
    }
}

/// x = residual + dropout(x), and the same, as it is stored, in `row` if x is not f32.
#[inline(always)]
fn add<E: Element>(x: &mut [E], residual: Option<&[E]>, mask: Option<RowMask>, row: &mut [f32]) {
    let n = x.len();
    // One loop per combination: a branch inside would keep it from being vectorised.
    match (mask, residual.map(|r| &r[..n])) {
        (None, None) => {
            widened(x, row);
        }
        (None, Some(r)) => store(x, row, |i, x| x + r[i].to_f32()),
        (Some(mask), None) => store(x, row, |i, x| mask.apply(i, x)),
        (Some(mask), Some(r)) => store(x, row, |i, x| mask.apply(i, x) + r[i].to_f32()),
    }
}

#[inline(always)]
fn store<E: Element>(x: &mut [E], row: &mut [f32], f: impl Fn(usize, f32) -> f32) {
    let n = x.len();
    match E::DTYPE {
        DType::F32 => {
            for (i, x) in x.iter_mut().enumerate() {
                *x = E::from_f32(f(i, x.to_f32()));
            }
        }
        DType::Bf16 => {
            let row = &mut row[..n];
            for i in 0..n {
                x[i] = E::from_f32(f(i, x[i].to_f32()));
                row[i] = x[i].to_f32();
            }
        }
    }
}

struct Row<'a> {
    sum: &'a [f32],
    mean: f32,
    rstd: f32,
    gamma: &'a [f32],
    beta: &'a [f32],
}

#[inline(always)]
fn normalise<S: Simd, E: Element>(s: S, row: Row<'_>, mask: Option<RowMask>, y: &mut [E]) {
    let n = y.len();
    let (sum, gamma, beta) = (&row.sum[..n], &row.gamma[..n], &row.beta[..n]);
    let value = |i: usize| s.mul_add((sum[i] - row.mean) * row.rstd, gamma[i], beta[i]);
    match mask {
        None => {
            for (i, y) in y.iter_mut().enumerate() {
                *y = E::from_f32(value(i));
            }
        }
        Some(mask) => {
            for (i, y) in y.iter_mut().enumerate() {
                *y = E::from_f32(mask.apply(i, value(i)));
            }
        }
    }
}

/// Adds, normalises, and leaves the sum in `x`.
pub fn forward<E: Element>(pool: &Pool, f: Forward<'_, E>) {
    let (cols, rows) = (f.cols, f.mean.len());
    assert_eq!(f.x.len(), rows * cols, "x must be (T, cols) = ({rows}, {cols})");
    assert_eq!(f.y.len(), rows * cols, "y must be (T, cols) = ({rows}, {cols})");
    assert_eq!(f.rstd.len(), rows, "rstd must be (T) = ({rows})");
    assert!(f.gamma.len() == cols && f.beta.len() == cols, "gamma and beta must be (cols) = ({cols})");
    assert!(
        f.residual.is_none_or(|r| r.len() == rows * cols),
        "residual must be (T, cols) = ({rows}, {cols})"
    );
    check_masks(&[f.dropout_in.as_ref(), f.dropout_out.as_ref()], rows);
    if rows * cols == 0 {
        return;
    }
    let block = row_block(cols);
    let Forward { eps, gamma, beta, dropout_in, dropout_out, .. } = f;
    let mut residuals = f.residual.map(|r| r.chunks(block * cols));
    let parts = (f.x.chunks_mut(block * cols).zip(f.y.chunks_mut(block * cols)))
        .zip(f.mean.chunks_mut(block).zip(f.rstd.chunks_mut(block)))
        .enumerate()
        .map(|(b, ((x, y), (mean, rstd)))| {
            let residual = residuals.as_mut().and_then(Iterator::next);
            let pass =
                Forward { cols, eps, x, residual, dropout_in, dropout_out, gamma, beta, y, mean, rstd };
            Rows { pass, first: b * block }
        });
    pool.each(parts, |rows| dispatch(pool.isa(), rows));
}
