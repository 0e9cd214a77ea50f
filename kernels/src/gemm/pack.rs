//! Packing: a strided matrix becomes panels in the order in which a micro-kernel reads them.
//!
//! A panel holds `width` rows. Inner indices come in groups: group 0 of row 0, of row 1, ..., then group 1. Rows and
//! inner indices beyond the matrix are zeros.

use std::ops::Range;

use half::bf16;

use super::Mat;
use super::micro::Unit;
use crate::element::{DType, Element};
use crate::isa::{Isa, Kernel, Simd, dispatch};
use crate::transpose::{Words, transpose};

/// The shape of a packed operand. For B, rows are the columns of the matrix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panels {
    /// Rows of the matrix.
    pub(super) rows: usize,
    /// Inner indices of the matrix.
    pub(super) inner: usize,
    /// Rows of a panel.
    pub(super) width: usize,
    /// Inner indices that lie side by side.
    pub(super) group: usize,
    /// Inner indices of a panel: `inner`, rounded up to what the kernel steps over.
    pub(super) depth: usize,
}

impl Panels {
    /// Number of panels.
    pub(super) fn count(&self) -> usize {
        self.rows.div_ceil(self.width)
    }

    /// Elements from one panel to the next: whole cache lines.
    fn stride(&self) -> usize {
        (self.width * self.depth).next_multiple_of(32)
    }

    /// Elements of all panels.
    pub(super) fn len(&self) -> usize {
        self.count() * self.stride()
    }

    /// Number of tasks that pack them all.
    pub(super) fn tasks(&self) -> usize {
        self.count().div_ceil(PANELS)
    }

    /// Elements of the panels of one packing task.
    pub(super) fn range(&self, task: usize) -> Range<usize> {
        let first = task * PANELS;
        first * self.stride()..(first + PANELS).min(self.count()) * self.stride()
    }

    /// Elements of `depth` inner indices of a panel, from index `from` on; both are whole steps of the kernel.
    pub(super) fn block(&self, panel: usize, from: usize, depth: usize) -> Range<usize> {
        let at = panel * self.stride() + from * self.width;
        at..at + depth * self.width
    }
}

/// Panels that one task packs: where a row of the matrix is contiguous, each read of it is long enough for the memory.
const PANELS: usize = 4;

/// Packs the panels of one task; columns of the matrix are the inner indices.
pub(super) fn panels<E: Element, U: Unit>(isa: Isa, to: &Panels, m: Mat<'_, E>, task: usize, out: &mut [U]) {
    let first = task * PANELS * to.width;
    let rows = (PANELS * to.width).min(to.rows - first);
    if m.row_stride == 1 && to.group == 1 && m.col_stride != 1 {
        return dispatch(isa, Columns { data: &m.data[first..], col_stride: m.col_stride, rows, to, out });
    }
    for (i, out) in out.chunks_exact_mut(to.stride()).enumerate() {
        let row = first + i * to.width;
        let rows = to.width.min(to.rows - row);
        panel(
            isa,
            to,
            Mat { data: &m.data[row * m.row_stride..], rows, ..m },
            &mut out[..to.width * to.depth],
        );
    }
}

/// Packs one panel: all rows of `m`.
fn panel<E: Element, U: Unit>(isa: Isa, to: &Panels, m: Mat<'_, E>, out: &mut [U]) {
    let rows = m.rows;
    if rows < to.width {
        out.fill(U::zeroed());
    } else if to.depth > to.inner {
        let whole = to.inner / to.group * to.group * to.width;
        out[whole..].fill(U::zeroed());
    }
    if to.inner == 0 {
        return;
    }
    let source = Source { isa, data: m.data, rows, inner: to.inner };
    match (E::DTYPE, U::DTYPE, to.group) {
        (DType::F32, DType::F32, 1) if m.col_stride == 1 => {
            let out = bytemuck::cast_slice_mut::<U, u32>(out);
            transpose(isa, source.words(m.row_stride), (rows, to.inner), out, to.width);
        }
        (DType::Bf16, DType::F32, 1) if m.col_stride == 1 => source.widened(m.row_stride, to, out),
        (DType::Bf16, DType::Bf16, 2) if m.col_stride == 1 => source.pairs(m.row_stride, to, out),
        (DType::Bf16, DType::Bf16, RUN) if m.col_stride == 1 => source.runs(m.row_stride, to, out),
        (DType::Bf16, DType::Bf16, 2) if m.row_stride == 1 => source.zipped(m.col_stride, to, out),
        (DType::Bf16, DType::Bf16, RUN) if m.row_stride == 1 => source.zipped_runs(m.col_stride, to, out),
        _ => source.any((m.row_stride, m.col_stride), to, out),
    }
}

/// The rows of one panel in their matrix.
struct Source<'a, E> {
    isa: Isa,
    data: &'a [E],
    rows: usize,
    inner: usize,
}

/// Inner indices widened at a time, before they are transposed.
const CHUNK: usize = 64;
/// Inner indices of a group where AMX multiplies: a row of a tile.
const RUN: usize = 32;
/// Widest panel of any kernel.
const WIDTH_MAX: usize = 32;

impl<E: Element> Source<'_, E> {
    /// Inner indices side by side in memory, one per group: a transposition.
    fn words(&self, row_stride: usize) -> Words<'_> {
        Words { bytes: bytemuck::cast_slice(self.data), row_bytes: row_stride * size_of::<E>() }
    }

    fn widened<U: Unit>(&self, row_stride: usize, to: &Panels, out: &mut [U]) {
        let mut wide = [0.0_f32; WIDTH_MAX * CHUNK];
        let out = bytemuck::cast_slice_mut::<U, u32>(out);
        for from in (0..self.inner).step_by(CHUNK) {
            let len = CHUNK.min(self.inner - from);
            let rows = (0..self.rows).map(|r| &self.data[r * row_stride + from..][..len]);
            dispatch(self.isa, Widen { rows: rows.zip(wide.chunks_exact_mut(CHUNK)) });
            let words = Words { bytes: bytemuck::cast_slice(&wide), row_bytes: CHUNK * 4 };
            transpose(self.isa, words, (self.rows, len), &mut out[from * to.width..], to.width);
        }
    }

    /// Pairs of inner indices side by side in memory: a transposition of 32-bit words.
    fn pairs<U: Unit>(&self, row_stride: usize, to: &Panels, out: &mut [U]) {
        let pairs = self.inner / 2;
        let words = bytemuck::cast_slice_mut::<U, u32>(out);
        transpose(self.isa, self.words(row_stride), (self.rows, pairs), words, to.width);
        if self.inner % 2 == 1 {
            for (r, word) in words[pairs * to.width..].iter_mut().take(self.rows).enumerate() {
                *word = bits(self.data[r * row_stride + self.inner - 1]);
            }
        }
    }

    /// Whole groups side by side in memory.
    fn runs<U: Unit>(&self, row_stride: usize, to: &Panels, out: &mut [U]) {
        let (groups, _) = bytemuck::cast_slice_mut::<U, E>(out).as_chunks_mut::<RUN>();
        for (g, groups) in groups.chunks_exact_mut(to.width).enumerate().take(self.inner.div_ceil(RUN)) {
            for (r, group) in groups.iter_mut().take(self.rows).enumerate() {
                let row = &self.data[r * row_stride + g * RUN..][..RUN.min(self.inner - g * RUN)];
                match row.first_chunk() {
                    // A cache line, without a call.
                    Some(whole) => *group = *whole,
                    None => group[..row.len()].copy_from_slice(row),
                }
            }
        }
    }

    /// Rows side by side in memory, pairs of inner indices per group.
    fn zipped<U: Unit>(&self, col_stride: usize, to: &Panels, out: &mut [U]) {
        let words = &mut bytemuck::cast_slice_mut::<U, u32>(out)[..self.inner.div_ceil(2) * to.width];
        dispatch(self.isa, Zip { source: self, col_stride, first: 0, words, width: to.width });
    }

    /// Rows side by side in memory, groups longer than pairs: zipped, then transposed.
    fn zipped_runs<U: Unit>(&self, col_stride: usize, to: &Panels, out: &mut [U]) {
        let mut zipped = [0_u32; WIDTH_MAX * 16];
        let half = to.group / 2;
        let all = self.inner.div_ceil(2);
        let groups = bytemuck::cast_slice_mut::<U, u32>(out).chunks_exact_mut(to.width * half);
        for (first, out) in (0..all).step_by(half).zip(groups) {
            let pairs = half.min(all - first);
            let words = &mut zipped[..pairs * WIDTH_MAX];
            dispatch(self.isa, Zip { source: self, col_stride, first, words, width: WIDTH_MAX });
            let words = Words { bytes: bytemuck::cast_slice(&zipped), row_bytes: WIDTH_MAX * 4 };
            transpose(self.isa, words, (pairs, self.rows), out, half);
        }
    }

    /// Any strides: correct, not quick.
    fn any<U: Unit>(&self, (row_stride, col_stride): (usize, usize), to: &Panels, out: &mut [U]) {
        for k in 0..self.inner {
            for r in 0..self.rows {
                let at = (k / to.group * to.width + r) * to.group + k % to.group;
                out[at] = U::from_f32(self.data[r * row_stride + k * col_stride].to_f32());
            }
        }
    }
}

/// The bits of a bf16.
#[inline(always)]
fn bits<E: Element>(x: E) -> u32 {
    u32::from(bytemuck::cast::<E, bf16>(x).to_bits())
}

/// Rows of elements, each with the start of an f32 row that it is copied to.
struct Widen<R> {
    rows: R,
}
impl<'a, E: Element, R: Iterator<Item = (&'a [E], &'a mut [f32])>> Kernel for Widen<R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (x, y) in self.rows {
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x.to_f32());
        }
    }
}

/// Inner indices 2 p and 2 p + 1 of every row as words, for pairs p from `first` on; a missing last index is 0.
struct Zip<'a, 's, E> {
    source: &'a Source<'s, E>,
    col_stride: usize,
    first: usize,
    /// A pair after the other, `width` words apart.
    words: &'a mut [u32],
    width: usize,
}
impl<E: Element> Kernel for Zip<'_, '_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Source { data, rows, inner, .. } = *self.source;
        let index = |k: usize| &data[k * self.col_stride..][..rows];
        for (words, pair) in self.words.chunks_exact_mut(self.width).zip(self.first..) {
            let words = words[..rows].iter_mut();
            if 2 * pair + 1 < inner {
                let pairs = index(2 * pair).iter().zip(index(2 * pair + 1));
                words.zip(pairs).for_each(|(w, (&l, &h))| *w = bits(l) | bits(h) << 16);
            } else {
                words.zip(index(2 * pair)).for_each(|(w, &l)| *w = bits(l));
            }
        }
    }
}

/// Several panels whose rows lie side by side in memory, one inner index per group.
struct Columns<'a, E, U> {
    data: &'a [E],
    col_stride: usize,
    rows: usize,
    to: &'a Panels,
    out: &'a mut [U],
}

impl<E: Element, U: Unit> Columns<'_, E, U> {
    /// With the width known, a row of a panel is a few vector moves.
    #[inline(always)]
    fn copy<const W: usize>(&mut self) {
        let (stride, whole) = (self.to.stride(), self.rows / W);
        for k in 0..self.to.inner {
            let row = &self.data[k * self.col_stride..][..self.rows];
            let (full, rest) = row.as_chunks::<W>();
            for (p, x) in full.iter().enumerate() {
                // Read before anything is written: the compiler can't know that `out` is not `data`, and would go by
                // single elements.
                let mut held = [U::zeroed(); W];
                held.iter_mut().zip(x).for_each(|(y, x)| *y = U::from_f32(x.to_f32()));
                let out = &mut self.out[p * stride + k * W..][..W];
                out.iter_mut().zip(held).for_each(|(y, x)| *y = x);
            }
            if !rest.is_empty() {
                let out = &mut self.out[whole * stride + k * W..][..W];
                out[rest.len()..].fill(U::zeroed());
                out.iter_mut().zip(rest).for_each(|(y, x)| *y = U::from_f32(x.to_f32()));
            }
        }
    }
}

impl<E: Element, U: Unit> Kernel for Columns<'_, E, U> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, _: S) {
        match self.to.width {
            4 => self.copy::<4>(),
            6 => self.copy::<6>(),
            8 => self.copy::<8>(),
            14 => self.copy::<14>(),
            16 => self.copy::<16>(),
            32 => self.copy::<32>(),
            width => unreachable!("no kernel has panels of {width}"),
        }
    }
}
