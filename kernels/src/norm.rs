//! Residual, dropout and LayerNorm in one pass: y = dropout_out(LayerNorm(residual + dropout_in(x))).
//!
//! Statistics are f32 and taken from the sum as it is stored, so that backward sees exactly what forward normalised.

use crate::dropout::{Dropout, RowMask, row_or_keep};
use crate::element::Element;
use crate::isa::{Kernel, Simd, dispatch};
use crate::math::{dot, sum_by};
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

struct ForwardRow<'a, E> {
    eps: f32,
    x: &'a mut [E],
    residual: Option<&'a [E]>,
    mask_in: Option<RowMask>,
    mask_out: Option<RowMask>,
    gamma: &'a [E],
    beta: &'a [E],
    y: &'a mut [E],
}

impl<E: Element> Kernel for ForwardRow<'_, E> {
    type Output = (f32, f32);
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (f32, f32) {
        let n = self.x.len();
        let (x, y, gamma, beta) = (self.x, &mut self.y[..n], &self.gamma[..n], &self.beta[..n]);
        // One loop per combination: a branch inside would keep it from being vectorised.
        match (self.mask_in, self.residual) {
            (None, None) => {}
            (None, Some(r)) => {
                x.iter_mut().zip(r).for_each(|(x, r)| *x = E::from_f32(x.to_f32() + r.to_f32()))
            }
            (Some(mask), None) => (0..n).for_each(|i| x[i] = E::from_f32(mask.apply(i, x[i].to_f32()))),
            (Some(mask), Some(r)) => {
                let r = &r[..n];
                (0..n).for_each(|i| x[i] = E::from_f32(mask.apply(i, x[i].to_f32()) + r[i].to_f32()));
            }
        }
        let x = &*x;
        let mean = sum_by(x, E::to_f32) / n as f32;
        let var = sum_by(x, |x| {
            let d = x.to_f32() - mean;
            d * d
        }) / n as f32;
        let rstd = 1.0 / (var + self.eps).sqrt();
        let value = |i: usize| s.mul_add((x[i].to_f32() - mean) * rstd, gamma[i].to_f32(), beta[i].to_f32());
        match self.mask_out {
            None => (0..n).for_each(|i| y[i] = E::from_f32(value(i))),
            Some(mask) => (0..n).for_each(|i| y[i] = E::from_f32(mask.apply(i, value(i)))),
        }
        (mean, rstd)
    }
}

fn mask(dropout: Option<&Dropout<'_>>, t: usize) -> Option<RowMask> {
    dropout.filter(|d| d.rate > 0.0).map(|d| row_or_keep(Some(d), t))
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
    let (block, eps, gamma, beta) = (row_block(cols), f.eps, f.gamma, f.beta);
    let parts = (f.x.chunks_mut(block * cols).zip(f.y.chunks_mut(block * cols)))
        .zip(f.mean.chunks_mut(block).zip(f.rstd.chunks_mut(block)))
        .enumerate();
    let (residual, dropout_in, dropout_out) = (f.residual, f.dropout_in, f.dropout_out);
    pool.each(parts, |(b, ((x, y), (mean, rstd)))| {
        let rows = x.chunks_mut(cols).zip(y.chunks_mut(cols)).zip(mean.iter_mut().zip(rstd));
        for (i, ((x, y), (mean, rstd))) in rows.enumerate() {
            let t = b * block + i;
            let residual = residual.map(|r| &r[t * cols..(t + 1) * cols]);
            let (mask_in, mask_out) = (mask(dropout_in.as_ref(), t), mask(dropout_out.as_ref(), t));
            let row = ForwardRow { eps, x, residual, mask_in, mask_out, gamma, beta, y };
            (*mean, *rstd) = dispatch(pool.isa(), row);
        }
    });
}

fn check_masks(masks: &[Option<&Dropout<'_>>], rows: usize) {
    for d in masks.iter().flatten() {
        assert_eq!(d.rows.len(), rows, "dropout rows must be (T) = ({rows})");
        assert!((0.0..1.0).contains(&d.rate), "dropout rate must be in [0, 1), got {}", d.rate);
    }
}

/// Backward pass over T rows of `cols`.
pub struct Backward<'a, E> {
    /// Width of a row.
    pub cols: usize,
    /// The sum that forward left in `x` (T, cols).
    pub s: &'a [E],
    /// Mean of each row (T).
    pub mean: &'a [f32],
    /// Reciprocal standard deviation of each row (T).
    pub rstd: &'a [f32],
    /// Factor (cols).
    pub gamma: &'a [E],
    /// Dropout of x, as in forward.
    pub dropout_in: Option<Dropout<'a>>,
    /// Dropout of the result, as in forward.
    pub dropout_out: Option<Dropout<'a>>,
    /// Gradient of the result (T, cols).
    pub dy: &'a [E],
    /// Set to the gradient of x (T, cols).
    pub dx: &'a mut [E],
    /// Set to the gradient of the residual (T, cols).
    pub dresidual: Option<&'a mut [E]>,
    /// Gradient of gamma is added here (cols).
    pub dgamma: &'a mut [f32],
    /// Gradient of beta is added here (cols).
    pub dbeta: &'a mut [f32],
}

struct BackwardRow<'a, E> {
    s: &'a [E],
    mean: f32,
    rstd: f32,
    gamma: &'a [E],
    mask_in: Option<RowMask>,
    mask_out: Option<RowMask>,
    dy: &'a [E],
    dx: &'a mut [E],
    dresidual: Option<&'a mut [E]>,
    /// Partial sums of this block (cols each) and two rows of scratch.
    dgamma: &'a mut [f32],
    dbeta: &'a mut [f32],
    g: &'a mut [f32],
    xhat: &'a mut [f32],
}

impl<E: Element> Kernel for BackwardRow<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let n = self.s.len();
        let (s, dy, gamma) = (&self.s[..n], &self.dy[..n], &self.gamma[..n]);
        let (g, xhat, dx) = (&mut self.g[..n], &mut self.xhat[..n], &mut self.dx[..n]);
        let (dgamma, dbeta) = (&mut self.dgamma[..n], &mut self.dbeta[..n]);
        match self.mask_out {
            None => (0..n).for_each(|i| g[i] = dy[i].to_f32()),
            Some(mask) => (0..n).for_each(|i| g[i] = mask.apply(i, dy[i].to_f32())),
        }
        for i in 0..n {
            xhat[i] = (s[i].to_f32() - self.mean) * self.rstd;
            dgamma[i] = simd.mul_add(g[i], xhat[i], dgamma[i]);
            dbeta[i] += g[i];
            g[i] *= gamma[i].to_f32();
        }
        let (g, xhat) = (&*g, &*xhat);
        let mean_g = sum_by(g, |g| g) / n as f32;
        let mean_gx = dot(simd, g, xhat) / n as f32;
        let ds = |i: usize| self.rstd * simd.mul_add(-xhat[i], mean_gx, g[i] - mean_g);
        if let Some(dr) = self.dresidual {
            let dr = &mut dr[..n];
            (0..n).for_each(|i| dr[i] = E::from_f32(ds(i)));
        }
        match self.mask_in {
            None => (0..n).for_each(|i| dx[i] = E::from_f32(ds(i))),
            Some(mask) => (0..n).for_each(|i| dx[i] = E::from_f32(mask.apply(i, ds(i)))),
        }
    }
}

/// Rows of one partial sum of dgamma and dbeta; fixed, so that the sums are the same on any number of threads.
const REDUCE_ROWS: usize = 64;

/// Sets the gradients of x and residual, adds those of gamma and beta.
pub fn backward<E: Element>(pool: &Pool, b: Backward<'_, E>) {
    let (cols, rows) = (b.cols, b.mean.len());
    for (name, len) in [("s", b.s.len()), ("dy", b.dy.len()), ("dx", b.dx.len())] {
        assert_eq!(len, rows * cols, "{name} must be (T, cols) = ({rows}, {cols})");
    }
    assert_eq!(b.rstd.len(), rows, "rstd must be (T) = ({rows})");
    assert_eq!(b.gamma.len(), cols, "gamma must be (cols) = ({cols})");
    assert!(b.dgamma.len() == cols && b.dbeta.len() == cols, "dgamma and dbeta must be (cols) = ({cols})");
    assert!(
        b.dresidual.as_ref().is_none_or(|r| r.len() == rows * cols),
        "dresidual must be ({rows}, {cols})"
    );
    check_masks(&[b.dropout_in.as_ref(), b.dropout_out.as_ref()], rows);
    if rows * cols == 0 {
        return;
    }
    let (s, mean, rstd, gamma, dy) = (b.s, b.mean, b.rstd, b.gamma, b.dy);
    let (dropout_in, dropout_out) = (b.dropout_in, b.dropout_out);
    let mut partial = vec![0.0_f32; rows.div_ceil(REDUCE_ROWS) * 2 * cols];
    let mut residuals = b.dresidual.map(|r| r.chunks_mut(REDUCE_ROWS * cols));
    let parts = (b.dx.chunks_mut(REDUCE_ROWS * cols).zip(partial.chunks_mut(2 * cols)))
        .map(|(dx, sums)| (dx, sums, residuals.as_mut().and_then(Iterator::next)))
        .enumerate();
    pool.each(parts, |(block, (dx, sums, mut dresidual))| {
        let (dgamma, dbeta) = sums.split_at_mut(cols);
        let mut scratch = vec![0.0_f32; 2 * cols];
        let (g, xhat) = scratch.split_at_mut(cols);
        for (i, dx) in dx.chunks_mut(cols).enumerate() {
            let t = block * REDUCE_ROWS + i;
            let at = t * cols..(t + 1) * cols;
            let row = BackwardRow {
                s: &s[at.clone()],
                mean: mean[t],
                rstd: rstd[t],
                gamma,
                mask_in: mask(dropout_in.as_ref(), t),
                mask_out: mask(dropout_out.as_ref(), t),
                dy: &dy[at],
                dx,
                dresidual: dresidual.as_mut().map(|r| &mut r[i * cols..(i + 1) * cols]),
                dgamma: &mut *dgamma,
                dbeta: &mut *dbeta,
                g: &mut *g,
                xhat: &mut *xhat,
            };
            dispatch(pool.isa(), row);
        }
    });
    for sums in partial.chunks(2 * cols) {
        b.dgamma.iter_mut().zip(&sums[..cols]).for_each(|(d, s)| *d += s);
        b.dbeta.iter_mut().zip(&sums[cols..]).for_each(|(d, s)| *d += s);
    }
}
