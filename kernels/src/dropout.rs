//! Dropout whose mask is a function of (seed, step, site, data row, position, column) and is never stored.
//!
//! The mask bit of an element is a 32-bit hash compared with `rate * 2^32`. Two 32-bit keys per row come from the
//! strong 64-bit hash of [`crate::rng`]; the per-column part is a 32-bit multiply-xorshift mixer keyed by both, which
//! vectorises. Quality, as `tests/suite/dropout.rs` holds it: the kept share, the counts per row and per column, and the
//! correlation between neighbouring rows, columns and sites stay within five standard errors of independent bits. It
//! is not cryptographic.

use crate::element::Element;
use crate::elementwise;
use crate::isa::{Kernel, Simd, dispatch};
use crate::pool::{Pool, row_block};
use crate::rng;

/// Which elements are dropped.
#[derive(Debug, Clone, Copy)]
pub struct Dropout<'a> {
    /// Probability that an element becomes zero, in `[0, 1)`.
    pub rate: f32,
    /// Key of (seed, step, site).
    pub site: u64,
    /// Key of (data row, position), one per token (T).
    pub rows: &'a [u64],
}

/// The keys of one row and the threshold: all that deciding about a column needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowMask {
    key: u32,
    twist: u32,
    threshold: u32,
    scale: f32,
}

impl RowMask {
    /// Keeps everything.
    pub(crate) const KEEP: Self = Self { key: 0, twist: 0, threshold: 0, scale: 1.0 };

    /// The factor of a column: 0 or 1 / (1 - rate).
    #[inline(always)]
    pub(crate) fn factor(self, column: u32) -> f32 {
        if hash32(self.key, self.twist, column) >= self.threshold { self.scale } else { 0.0 }
    }

    /// An element times its factor; a dropped infinity or NaN becomes 0, as if it had never been there.
    #[inline(always)]
    pub(crate) fn apply(self, column: usize, x: f32) -> f32 {
        let kept = hash32(self.key, self.twist, column as u32) >= self.threshold;
        if kept { x * self.scale } else { 0.0 }
    }
}

#[inline(always)]
fn hash32(key: u32, twist: u32, column: u32) -> u32 {
    let mut h = column.wrapping_mul(0x9e37_79b1).wrapping_add(key);
    h = (h ^ (h >> 16)).wrapping_mul(0x21f0_aaad);
    h = (h ^ twist ^ (h >> 15)).wrapping_mul(0xd35a_2d97);
    h ^ (h >> 15)
}

impl Dropout<'_> {
    fn check(&self) {
        assert!((0.0..1.0).contains(&self.rate), "dropout rate must be in [0, 1), got {}", self.rate);
    }

    /// The mask of token `t` at a sub-site (the head, in attention).
    pub(crate) fn row_at(&self, t: usize, sub: u64) -> RowMask {
        let key = rng::mix(rng::mix(self.site, self.rows[t]), sub);
        let threshold = (f64::from(self.rate) * 4_294_967_296.0) as u32;
        RowMask { key: key as u32, twist: (key >> 32) as u32, threshold, scale: 1.0 / (1.0 - self.rate) }
    }

    /// The mask of token `t`.
    pub(crate) fn row(&self, t: usize) -> RowMask {
        self.row_at(t, 0)
    }
}

/// The mask of token `t`, or one that keeps everything where there is no dropout.
#[inline]
pub(crate) fn row_or_keep(dropout: Option<&Dropout<'_>>, t: usize) -> RowMask {
    match dropout {
        Some(d) if d.rate > 0.0 => d.row(t),
        _ => RowMask::KEEP,
    }
}

struct Apply<'a, E> {
    mask: RowMask,
    x: &'a [E],
    y: &'a mut [E],
}

impl<E: Element> Kernel for Apply<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (c, (y, x)) in self.y.iter_mut().zip(self.x).enumerate() {
            *y = E::from_f32(self.mask.apply(c, x.to_f32()));
        }
    }
}

/// Drops elements of x (T, cols) into y (T, cols); kept ones are multiplied by 1 / (1 - rate).
///
/// The backward pass is the same call on dy.
pub fn apply<E: Element>(pool: &Pool, dropout: &Dropout<'_>, cols: usize, x: &[E], y: &mut [E]) {
    let rows = dropout.rows.len();
    dropout.check();
    assert_eq!(x.len(), rows * cols, "x must be (T, cols) = ({rows}, {cols})");
    assert_eq!(y.len(), x.len(), "y must be as long as x");
    if dropout.rate == 0.0 {
        return elementwise::copy(pool, x, y);
    }
    if x.is_empty() {
        return;
    }
    let block = row_block(cols);
    let parts = x.chunks(block * cols).zip(y.chunks_mut(block * cols)).enumerate();
    pool.each(parts, |(b, (x, y))| {
        for (i, (x, y)) in x.chunks(cols).zip(y.chunks_mut(cols)).enumerate() {
            dispatch(pool.isa(), Apply { mask: dropout.row(b * block + i), x, y });
        }
    });
}
