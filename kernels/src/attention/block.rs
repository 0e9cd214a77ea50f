//! The scores of a block of queries, the same in both passes.

use super::product::{Product, View};
use super::relative::{AddContentToPosition, AddPositionToContent, Span, Window};
use super::rows::{Block, Load, Spot, Transpose};
use super::scratch::{MARGIN, Scratch, padded, row_stride, score_stride, strip_len};
use super::softmax::{Masks, Place};
use super::tasks::Queries;
use super::vector::PAD;
use super::{Relative, Shape};
use crate::dropout::Dropout;
use crate::element::Element;
use crate::isa::{Isa, dispatch};

/// What a block is computed from.
pub(super) struct Source<'a, E> {
    pub(super) isa: Isa,
    pub(super) shape: Shape<'a>,
    pub(super) qkv: &'a [E],
    pub(super) relative: Option<&'a Relative<'a, E>>,
    pub(super) scale: f32,
    pub(super) dropout: Option<&'a Dropout<'a>>,
}

/// A block of queries of a head, and the relative rows laid out for it.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub(super) queries: Queries,
    pub(super) head: usize,
    pub(super) span: Span,
    /// Index in [`Scratch::tables`].
    pub(super) table: usize,
}

/// A column block of qkv.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Queries,
    Keys,
    Values,
}

impl<'a, E: Element> Source<'a, E> {
    /// Distance of a head's rows in scratch.
    pub(super) fn stride(&self) -> usize {
        padded(self.shape.head_dim)
    }

    /// A head's columns of a part of qkv, from a token on.
    pub(super) fn part(&self, part: Part, token: usize, head: usize) -> Block {
        let (hidden, cols) = (self.shape.hidden(), self.shape.head_dim);
        Block { row_stride: 3 * hidden, from: (token * 3 + part as usize) * hidden + head * cols, cols }
    }

    /// A head's columns of a (T, H) matrix, from a token on.
    pub(super) fn head(&self, token: usize, head: usize) -> Block {
        let (hidden, cols) = (self.shape.hidden(), self.shape.head_dim);
        Block { row_stride: hidden, from: token * hidden + head * cols, cols }
    }

    pub(super) fn masks(&self, first_token: usize, head: usize) -> Masks<'a> {
        Masks { dropout: self.dropout.filter(|d| d.rate > 0.0), first_token, head }
    }

    /// Asks for the columns of a head in the rows of a sequence, in a matrix (T, 3 H).
    pub(super) fn prefetch_parts(&self, matrix: Spot, (first, n): (usize, usize), head: usize) {
        for part in [Part::Keys, Part::Queries, Part::Values] {
            matrix.prefetch::<E>(self.part(part, first, head), n);
        }
    }

    /// Loads `count` rows, times a factor.
    pub(super) fn load(&self, data: &[E], block: Block, (count, factor): (usize, f32), to: &mut [f32]) {
        let stride = self.stride();
        dispatch(self.isa, Load { data, block, rows: 0..count, factor, to, stride });
    }

    /// Transposes `n` loaded rows.
    pub(super) fn transpose(&self, from: &[f32], n: usize, to: &mut [f32]) {
        let (row, to_stride) = (self.stride() as isize, row_stride(n));
        let size = (n, self.shape.head_dim);
        dispatch(self.isa, Transpose { from, origin: 0, row, to, to_stride, size });
    }

    /// Loads the keys of a sequence, as they are and transposed.
    pub(super) fn load_keys(&self, t: &mut Scratch, (first, n): (usize, usize), head: usize) {
        let stride = self.stride();
        let k = t.k.sized(padded(n) * stride);
        self.load(self.qkv, self.part(Part::Keys, first, head), (n, 1.0), k);
        self.transpose(k, n, t.kt.sized(stride * row_stride(n)));
    }

    /// Fills the scores of a block whose keys are loaded, and says where they are.
    pub(super) fn scores(&self, t: &mut Scratch, unit: Unit) -> Place {
        let Unit { queries: u, head, span, table } = unit;
        let (stride, n, d) = (score_stride(u.n), u.n, self.shape.head_dim);
        let q = t.q.sized(u.rows * self.stride());
        let block = self.part(Part::Queries, u.first + u.from, head);
        self.load(self.qkv, block, (u.rows, self.scale), q);
        let place = Place { base: MARGIN * stride + PAD, stride, n };
        let scores = &mut t.scores.sized((u.rows + 2 * MARGIN) * stride)[place.base..];
        let (kt, kt_stride) = (t.kt.all(), row_stride(n));
        let product = Product {
            a: View::rows(q, self.stride()),
            band: None,
            b: kt,
            b_stride: kt_stride,
            c: &mut *scores,
            c_stride: stride,
            size: (u.rows, d, padded(n)),
            add: false,
        };
        dispatch(self.isa, product);
        let window = Window { span, from: u.from, rows: u.rows, n, d };
        let strip = t.strip.sized(strip_len(n));
        if self.relative.is_some_and(|r| r.terms.c2p()) {
            let (krt, strip, scores) = (t.tables[table].krt.all(), &mut *strip, &mut *scores);
            dispatch(self.isa, AddContentToPosition { window, q, krt, strip, scores, stride });
        }
        if self.relative.is_some_and(|r| r.terms.p2c()) {
            let qr = t.tables[table].qr.all();
            dispatch(self.isa, AddPositionToContent { window, qr, kt, kt_stride, strip, scores, stride });
        }
        place
    }
}
