//! The relative terms of a block of queries.
//!
//! The relative rows of a head are laid out once per task *by distance*: a bucket that several distances share is
//! repeated. A term is then a Toeplitz product whatever the buckets are; moving between (row, distance) and
//! (row, column) is a shift per row or per column, and sums over diagonals are products over skewed views
//! ([`super::product`]). The price is more arithmetic than one product per bucket beyond 128 tokens (1.4 times, for
//! one of the two terms, at 512); gathers and scatters would cost more than that.

use super::product::Tile;
use super::rows::{Block, Load, Transpose};
use super::scratch::{Table, padded, row_stride};
use super::vector::{PAD, Vector, with_vector};
use super::{Relative, Shape};
use crate::element::Element;
use crate::isa::{Isa, Kernel, Simd, dispatch};

/// Rows before the first distance: strips of keys are padded and then ask for distances below it.
const FRONT: usize = 2 * PAD;

/// The distances of sequences of up to `longest` tokens, as rows of a table.
#[derive(Clone, Copy)]
pub(super) struct Span {
    longest: usize,
}

impl Span {
    pub(super) const fn of(longest: usize) -> Self {
        Self { longest: if longest == 0 { 1 } else { longest } }
    }

    /// Row of distance 0.
    pub(super) const fn zero(self) -> usize {
        FRONT + self.longest - 1
    }

    /// Rows of a table.
    pub(super) const fn rows(self) -> usize {
        self.zero() + self.longest
    }

    /// Distance of rows of the transpose of Kr; column c belongs to distance `longest - 1 - c`.
    pub(super) const fn stride(self) -> usize {
        row_stride(padded(2 * self.longest + PAD - 2))
    }

    /// The first row that a block of queries from `from` needs against `n` keys; it needs `n + rows - 1` of them.
    pub(super) const fn first_row(self, from: usize, n: usize) -> usize {
        self.zero() + from + 1 - n
    }

    /// Table row and slot of each distance.
    fn slots<'a, E>(self, r: &Relative<'a, E>) -> impl Iterator<Item = (usize, usize)> + use<'a, E> {
        let middle = r.slots.len() / 2;
        let slots = &r.slots[middle + 1 - self.longest..middle + self.longest];
        (FRONT..).zip(slots.iter().map(|&s| s as usize))
    }

    /// Loads the relative rows of a head; Qr is scaled.
    pub(super) fn load<E: Element>(
        self,
        isa: Isa,
        t: &mut Table,
        r: &Relative<'_, E>,
        (shape, head): (&Shape<'_>, usize),
        scale: f32,
    ) {
        let d = shape.head_dim;
        let (block, stride) = (Block { row_stride: r.row_stride, from: head * d, cols: d }, padded(d));
        let len = self.rows() * stride;
        if r.terms.c2p() {
            let to = &mut t.kr.sized(len)[FRONT * stride..];
            let rows = self.slots(r).map(|(_, slot)| slot);
            dispatch(isa, Load { data: r.keys, block, rows, factor: 1.0, to, stride });
            let transpose = Transpose {
                from: t.kr.all(),
                origin: (self.rows() - 1) * stride,
                row: -(stride as isize),
                to: t.krt.sized(stride * self.stride()),
                to_stride: self.stride(),
                size: (2 * self.longest + PAD - 2, d),
            };
            dispatch(isa, transpose);
        }
        if r.terms.p2c() {
            let to = &mut t.qr.sized(len)[FRONT * stride..];
            let rows = self.slots(r).map(|(_, slot)| slot);
            dispatch(isa, Load { data: r.queries, block, rows, factor: scale, to, stride });
        }
    }

    /// Clears the gradients by distance.
    pub(super) fn clear<E>(self, t: &mut Table, r: &Relative<'_, E>, d: usize) {
        let len = self.rows() * padded(d);
        if r.terms.c2p() {
            t.dkr.sized(len).fill(0.0);
        }
        if r.terms.p2c() {
            t.dqr.sized(len).fill(0.0);
        }
    }

    /// Calls `f` with the slot and the gradient of each distance, in the order of distances.
    pub(super) fn by_slot<E>(
        self,
        r: &Relative<'_, E>,
        gradient: &[f32],
        d: usize,
        mut f: impl FnMut(usize, &[f32]),
    ) {
        self.slots(r).for_each(|(at, slot)| f(slot, &gradient[at * padded(d)..][..d]));
    }
}

/// A block of queries against all keys of its sequence.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub(super) span: Span,
    /// First query, number of queries, number of keys.
    pub(super) from: usize,
    pub(super) rows: usize,
    pub(super) n: usize,
    /// Columns of a head.
    pub(super) d: usize,
}

/// `scores[i, j] += Q_i . Kr[i - j]`.
///
/// A tile of a few queries is multiplied with all the distances it has; row i of the result is then a shifted row of
/// scores, distances running downwards as keys run upwards.
pub(super) struct AddContentToPosition<'a> {
    pub(super) window: Window,
    pub(super) q: &'a [f32],
    pub(super) krt: &'a [f32],
    pub(super) strip: &'a mut [f32],
    /// From the first score on, rows `stride` apart.
    pub(super) scores: &'a mut [f32],
    pub(super) stride: usize,
}

impl Kernel for AddContentToPosition<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        with_vector!(S, content_to_position(self))
    }
}

/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn content_to_position<V: Vector>(k: AddContentToPosition<'_>) {
    let Window { span, from, rows, n, d } = k.window;
    let (krt_stride, q_stride, width) = (span.stride(), padded(d), padded(n));
    let strip_stride = width + PAD;
    assert!((d - 1) * krt_stride + span.stride() <= k.krt.len() && from + rows <= n && n <= span.longest);
    assert!((rows - 1) * q_stride + d <= k.q.len() && V::ROWS * strip_stride + PAD <= k.strip.len());
    let tiles = rows.div_ceil(V::ROWS);
    for t in 0..tiles {
        let (low, high) = (t * rows / tiles, (t + 1) * rows / tiles);
        // The column of the distance from the tile's last query to key 0.
        let start = span.longest - from - high;
        let cols = padded(n + high - low - 1);
        let mut j = 0;
        while j < cols {
            let wide = j + 2 * V::LANES <= cols;
            // SAFETY: start + cols <= 2 longest - 1 + PAD - 1, the columns of the transpose; Q and the strip were
            // checked above.
            unsafe {
                let tile = Tile {
                    a: k.q.as_ptr().add(low * q_stride),
                    a_row: q_stride as isize,
                    a_col: 1,
                    b: k.krt.as_ptr().add(start + j),
                    b_stride: krt_stride,
                    c: k.strip.as_mut_ptr().add(j),
                    c_stride: strip_stride,
                    depth: d,
                    add: false,
                };
                if wide { tile.rows::<V, 2>(high - low) } else { tile.rows::<V, 1>(high - low) }
            }
            j += if wide { 2 * V::LANES } else { V::LANES };
        }
        for r in low..high {
            let strip = &k.strip[(r - low) * strip_stride + high - 1 - r..][..width];
            let scores = &mut k.scores[r * k.stride..][..width];
            for (y, x) in scores.chunks_exact_mut(V::LANES).zip(strip.chunks_exact(V::LANES)) {
                // SAFETY: both chunks are one register.
                unsafe { V::load(y.as_ptr()).add(V::load(x.as_ptr())).store(y.as_mut_ptr()) };
            }
        }
    }
}

/// `scores[i, j] += K_j . Qr[i - j]`.
///
/// One register of keys is multiplied with all the distances of a block; lane l of row i is then found l rows higher,
/// and the lanes are brought together in steps of 1, 2, 4 and 8 rows.
pub(super) struct AddPositionToContent<'a> {
    pub(super) window: Window,
    pub(super) qr: &'a [f32],
    pub(super) kt: &'a [f32],
    pub(super) kt_stride: usize,
    pub(super) strip: &'a mut [f32],
    /// From the first score on, rows `stride` apart.
    pub(super) scores: &'a mut [f32],
    pub(super) stride: usize,
}

impl Kernel for AddPositionToContent<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        with_vector!(S, position_to_content(self))
    }
}

/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn position_to_content<V: Vector>(k: AddPositionToContent<'_>) {
    let Window { span, from, rows, n, d } = k.window;
    let (qr_stride, lanes) = (padded(d), V::LANES);
    let count = rows + lanes - 1;
    let tiles = count.div_ceil(V::ROWS);
    assert!((d - 1) * k.kt_stride + padded(n) <= k.kt.len() && count * lanes <= k.strip.len());
    assert!((rows - 1) * k.stride + padded(n) <= k.scores.len());
    assert!(span.rows() * qr_stride <= k.qr.len() && from + rows <= n && n <= span.longest);
    for j in (0..n).step_by(lanes) {
        // Row of the lowest distance, from the first query to the last key of the register.
        let first = span.zero() + from - j - (lanes - 1);
        for t in 0..tiles {
            let (low, high) = (t * count / tiles, (t + 1) * count / tiles);
            // SAFETY: rows first .. first + count are inside of the table, as j < n <= longest and FRONT is more than
            // a register; the others were checked above.
            unsafe {
                let tile = Tile {
                    a: k.qr.as_ptr().add((first + low) * qr_stride),
                    a_row: qr_stride as isize,
                    a_col: 1,
                    b: k.kt.as_ptr().add(j),
                    b_stride: k.kt_stride,
                    c: k.strip.as_mut_ptr().add(low * lanes),
                    c_stride: lanes,
                    depth: d,
                    add: false,
                };
                tile.rows::<V, 1>(high - low);
            }
        }
        // SAFETY: the strip has rows + lanes - 1 registers, the scores `rows` rows of padded(n) columns.
        unsafe { shear::<V>(k.strip.as_mut_ptr(), rows, k.scores.as_mut_ptr().add(j), k.stride) };
    }
}

/// `to[r, l] += strip[r + LANES - 1 - l, l]` for each lane l of one register.
///
/// # Safety
/// The strip has `rows + LANES - 1` registers; row r of `to` is valid for one; the CPU has the instructions.
#[inline(always)]
unsafe fn shear<V: Vector>(strip: *mut f32, rows: usize, to: *mut f32, stride: usize) {
    // SAFETY: the caller's promise: the highest register read is rows - 1 plus 3, plus 4 or 12.
    unsafe {
        let at = |r: usize| V::load(strip.add(r * V::LANES));
        for r in 0..rows + V::LANES - 4 {
            let x = at(r).pick(at(r + 1), 1).pick(at(r + 2).pick(at(r + 3), 1), 2);
            x.store(strip.add(r * V::LANES));
        }
        for r in 0..rows {
            let x = match V::LANES {
                4 => at(r),
                8 => at(r).pick(at(r + 4), 4),
                _ => at(r).pick(at(r + 4), 4).pick(at(r + 8).pick(at(r + 12), 4), 8),
            };
            let to = to.add(r * stride);
            V::load(to).add(x).store(to);
        }
    }
}
