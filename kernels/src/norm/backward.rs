//! The backward pass.

use super::{check_masks, mask, wide_row, widened};
use crate::dropout::{Dropout, RowMask};
use crate::element::Element;
use crate::isa::{Kernel, Simd, dispatch};
use crate::math::{dot_wide, sum_wide};
use crate::pool::Pool;

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

/// Some rows of a [`Backward`]; the slices are those of these rows, dgamma and dbeta their sums alone.
struct Rows<'a, E> {
    pass: Backward<'a, E>,
    /// Token of the first row.
    first: usize,
}

impl<E: Element> Kernel for Rows<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Rows { pass: b, first } = self;
        let cols = b.cols;
        let (mut scratch, mut wide_gamma) = (vec![0.0_f32; 2 * cols], wide_row::<E>(cols));
        let (g, xhat) = scratch.split_at_mut(cols);
        let gamma = widened(b.gamma, &mut wide_gamma);
        let mut residuals = b.dresidual.map(|r| r.chunks_exact_mut(cols));
        let rows = (b.s.chunks_exact(cols).zip(b.dy.chunks_exact(cols)))
            .zip(b.mean.iter().zip(b.rstd))
            .zip(b.dx.chunks_exact_mut(cols))
            .enumerate();
        for (i, (((s, dy), (&mean, &rstd)), dx)) in rows {
            let row = Row { s, mean, rstd, gamma };
            let sums = Sums { dgamma: b.dgamma, dbeta: b.dbeta };
            match mask(b.dropout_out.as_ref(), first + i) {
                None => gather(simd, row, |i| dy[i].to_f32(), sums, (&mut *g, &mut *xhat)),
                Some(mask) => {
                    gather(simd, row, |i| mask.apply(i, dy[i].to_f32()), sums, (&mut *g, &mut *xhat));
                }
            }
            let mean_g = sum_wide(g, |g| g) / cols as f32;
            let mean_gx = dot_wide(simd, g, xhat) / cols as f32;
            let (g, xhat) = (&g[..cols], &xhat[..cols]);
            let ds = |i: usize| rstd * simd.mul_add(-xhat[i], mean_gx, g[i] - mean_g);
            let dresidual = residuals.as_mut().and_then(Iterator::next);
            spread(cols, ds, mask(b.dropout_in.as_ref(), first + i), dx, dresidual);
        }
    }
}

struct Row<'a, E> {
    s: &'a [E],
    mean: f32,
    rstd: f32,
    gamma: &'a [f32],
}

struct Sums<'a> {
    dgamma: &'a mut [f32],
    dbeta: &'a mut [f32],
}

/// Adds a row to the sums and leaves gamma * dy and the normalised row in scratch.
#[inline(always)]
fn gather<S: Simd, E: Element>(
    simd: S,
    row: Row<'_, E>,
    dy: impl Fn(usize) -> f32,
    sums: Sums<'_>,
    (g, xhat): (&mut [f32], &mut [f32]),
) {
    let n = g.len();
    let (s, gamma, xhat) = (&row.s[..n], &row.gamma[..n], &mut xhat[..n]);
    let (dgamma, dbeta) = (&mut sums.dgamma[..n], &mut sums.dbeta[..n]);
    for i in 0..n {
        let (d, x) = (dy(i), (s[i].to_f32() - row.mean) * row.rstd);
        dgamma[i] = simd.mul_add(d, x, dgamma[i]);
        dbeta[i] += d;
        g[i] = d * gamma[i];
        xhat[i] = x;
    }
}

/// Writes a row's gradient to x, through its dropout, and to the residual.
#[inline(always)]
fn spread<E: Element>(
    n: usize,
    ds: impl Fn(usize) -> f32,
    mask: Option<RowMask>,
    dx: &mut [E],
    dresidual: Option<&mut [E]>,
) {
    // One array after the other: writing two at once fetches their lines more slowly.
    let dx = &mut dx[..n];
    match mask {
        None => {
            for (i, dx) in dx.iter_mut().enumerate() {
                *dx = E::from_f32(ds(i));
            }
            if let Some(dr) = dresidual {
                dr.copy_from_slice(dx);
            }
        }
        Some(mask) => {
            if let Some(dr) = dresidual {
                for (i, dr) in dr[..n].iter_mut().enumerate() {
                    *dr = E::from_f32(ds(i));
                }
            }
            for (i, dx) in dx.iter_mut().enumerate() {
                *dx = E::from_f32(mask.apply(i, ds(i)));
            }
        }
    }
}

/// Rows of one partial sum of dgamma and dbeta; fixed, so that the sums are the same on any number of threads.
const REDUCE_ROWS: usize = 32;

/// Sets the gradients of x and residual, adds those of gamma and beta.
pub fn backward<E: Element>(pool: &Pool, b: Backward<'_, E>) {
    let (cols, rows) = (b.cols, b.mean.len());
    check(&b, rows);
    if rows * cols == 0 {
        return;
    }
    let Backward { mean, rstd, gamma, dropout_in, dropout_out, .. } = b;
    let mut partial = vec![0.0_f32; rows.div_ceil(REDUCE_ROWS) * 2 * cols];
    let block = REDUCE_ROWS * cols;
    let mut residuals = b.dresidual.map(|r| r.chunks_mut(block));
    let parts = (b.s.chunks(block).zip(b.dy.chunks(block)))
        .zip(b.dx.chunks_mut(block).zip(partial.chunks_mut(2 * cols)))
        .zip(mean.chunks(REDUCE_ROWS).zip(rstd.chunks(REDUCE_ROWS)))
        .enumerate()
        .map(|(i, (((s, dy), (dx, sums)), (mean, rstd)))| {
            let (dgamma, dbeta) = sums.split_at_mut(cols);
            let dresidual = residuals.as_mut().and_then(Iterator::next);
            let pass = Backward {
                cols,
                s,
                mean,
                rstd,
                gamma,
                dropout_in,
                dropout_out,
                dy,
                dx,
                dresidual,
                dgamma,
                dbeta,
            };
            Rows { pass, first: i * REDUCE_ROWS }
        });
    pool.each(parts, |rows| dispatch(pool.isa(), rows));
    combine(pool, &partial, b.dgamma, b.dbeta);
}

fn check<E: Element>(b: &Backward<'_, E>, rows: usize) {
    let cols = b.cols;
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
}

/// Columns that one task combines.
const COMBINE: usize = 128;

/// Adds the partial sums, each (dgamma, dbeta), in the order of their rows.
fn combine(pool: &Pool, partial: &[f32], dgamma: &mut [f32], dbeta: &mut [f32]) {
    let cols = dgamma.len();
    let columns = |offset: usize| (0..cols).step_by(COMBINE).map(move |column| offset + column);
    let gammas = dgamma.chunks_mut(COMBINE).zip(columns(0));
    let betas = dbeta.chunks_mut(COMBINE).zip(columns(cols));
    pool.each(gammas.chain(betas), |(target, at)| {
        dispatch(pool.isa(), Combine { partial, stride: 2 * cols, at, target });
    });
}

struct Combine<'a> {
    partial: &'a [f32],
    stride: usize,
    at: usize,
    target: &'a mut [f32],
}
impl Kernel for Combine<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for sums in self.partial.chunks_exact(self.stride) {
            let sums = &sums[self.at..][..self.target.len()];
            for (d, s) in self.target.iter_mut().zip(sums) {
                *d += s;
            }
        }
    }
}
