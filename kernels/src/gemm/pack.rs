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

    /// Elements of one panel.
    pub(super) fn range(&self, panel: usize) -> Range<usize> {
        let from = panel * self.stride();
        from..from + self.width * self.depth
    }

    /// Elements of `depth` inner indices of a panel, from index `from` on; both are whole steps of the kernel.
    pub(super) fn block(&self, panel: usize, from: usize, depth: usize) -> Range<usize> {
        let at = panel * self.stride() + from * self.width;
        at..at + depth * self.width
    }
}

/// Packs rows `panel * width ..` of a matrix whose columns are the inner indices.
pub(super) fn panel<E: Element, U: Unit>(isa: Isa, to: &Panels, m: Mat<'_, E>, panel: usize, out: &mut [U]) {
    let first = panel * to.width;
    let rows = to.width.min(to.rows - first);
    if rows < to.width {
        out.fill(U::zeroed());
    } else if to.depth > to.inner {
        let whole = to.inner / to.group * to.group * to.width;
        out[whole..].fill(U::zeroed());
    }
    if to.inner == 0 {
        return;
    }
    let source = Source { isa, data: &m.data[first * m.row_stride..], rows, inner: to.inner };
    match (E::DTYPE, U::DTYPE, to.group) {
        (DType::F32, DType::F32, 1) if m.col_stride == 1 => {
            let out = bytemuck::cast_slice_mut::<U, u32>(out);
            transpose(isa, source.words(m.row_stride), (rows, to.inner), out, to.width);
        }
        (DType::Bf16, DType::F32, 1) if m.col_stride == 1 => source.widened(m.row_stride, to, out),
        (DType::Bf16, DType::Bf16, 2) if m.col_stride == 1 => source.pairs(m.row_stride, to, out),
        (DType::Bf16, DType::Bf16, 32) if m.col_stride == 1 => source.runs(m.row_stride, to, out),
        (_, _, 1) if m.row_stride == 1 => source.columns(m.col_stride, to, out),
        (DType::Bf16, DType::Bf16, 2) if m.row_stride == 1 => source.zipped(m.col_stride, to, out),
        (DType::Bf16, DType::Bf16, 32) if m.row_stride == 1 => source.zipped_runs(m.col_stride, to, out),
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
            for (r, wide) in wide.chunks_exact_mut(CHUNK).take(self.rows).enumerate() {
                let x = &self.data[r * row_stride + from..][..len];
                dispatch(self.isa, Widen { x, y: &mut wide[..len] });
            }
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
        let out = bytemuck::cast_slice_mut::<U, E>(out);
        for (g, out) in
            out.chunks_exact_mut(to.width * to.group).enumerate().take(self.inner.div_ceil(to.group))
        {
            let from = g * to.group;
            let len = to.group.min(self.inner - from);
            for (r, out) in out.chunks_exact_mut(to.group).take(self.rows).enumerate() {
                out[..len].copy_from_slice(&self.data[r * row_stride + from..][..len]);
            }
        }
    }

    /// Rows side by side in memory, one inner index per group.
    fn columns<U: Unit>(&self, col_stride: usize, to: &Panels, out: &mut [U]) {
        let &Self { isa, data, rows, inner } = self;
        dispatch(isa, Columns { data, col_stride, rows, width: to.width, out: &mut out[..inner * to.width] });
    }

    /// Rows side by side in memory, pairs of inner indices per group.
    fn zipped<U: Unit>(&self, col_stride: usize, to: &Panels, out: &mut [U]) {
        let words = bytemuck::cast_slice_mut::<U, u32>(out);
        for (pair, words) in words.chunks_exact_mut(to.width).take(self.inner.div_ceil(2)).enumerate() {
            self.zip(col_stride, pair, &mut words[..self.rows]);
        }
    }

    /// Rows side by side in memory, groups longer than pairs: zipped, then transposed.
    fn zipped_runs<U: Unit>(&self, col_stride: usize, to: &Panels, out: &mut [U]) {
        let mut zipped = [0_u32; WIDTH_MAX * 16];
        let half = to.group / 2;
        let all = self.inner.div_ceil(2);
        let groups = bytemuck::cast_slice_mut::<U, u32>(out).chunks_exact_mut(to.width * half);
        for (g, out) in groups.enumerate().take(self.inner.div_ceil(to.group)) {
            let pairs = half.min(all - g * half);
            for (p, words) in zipped.chunks_exact_mut(WIDTH_MAX).take(pairs).enumerate() {
                self.zip(col_stride, g * half + p, &mut words[..self.rows]);
            }
            let words = Words { bytes: bytemuck::cast_slice(&zipped), row_bytes: WIDTH_MAX * 4 };
            transpose(self.isa, words, (pairs, self.rows), out, half);
        }
    }

    /// Inner indices 2 `pair` and 2 `pair` + 1 of every row, as words; a missing last index is 0.
    fn zip(&self, col_stride: usize, pair: usize, words: &mut [u32]) {
        let low = &self.data[2 * pair * col_stride..][..self.rows];
        let high = match 2 * pair + 1 < self.inner {
            true => &self.data[(2 * pair + 1) * col_stride..][..self.rows],
            false => &[],
        };
        dispatch(self.isa, Zip { low, high, words });
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

struct Widen<'a, E> {
    x: &'a [E],
    y: &'a mut [f32],
}
impl<E: Element> Kernel for Widen<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.y.iter_mut().zip(self.x).for_each(|(y, x)| *y = x.to_f32());
    }
}

struct Zip<'a, E> {
    low: &'a [E],
    high: &'a [E],
    words: &'a mut [u32],
}
impl<E: Element> Kernel for Zip<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        if self.high.is_empty() {
            return self.words.iter_mut().zip(self.low).for_each(|(w, &l)| *w = bits(l));
        }
        let pairs = self.low.iter().zip(self.high);
        self.words.iter_mut().zip(pairs).for_each(|(w, (&l, &h))| *w = bits(l) | bits(h) << 16);
    }
}

struct Columns<'a, E, U> {
    data: &'a [E],
    col_stride: usize,
    rows: usize,
    width: usize,
    out: &'a mut [U],
}

impl<E: Element, U: Unit> Columns<'_, E, U> {
    /// With the width known, a row of the panel is a few vector moves.
    #[inline(always)]
    fn full<const W: usize>(self) {
        for (k, out) in self.out.as_chunks_mut::<W>().0.iter_mut().enumerate() {
            let x = &self.data[k * self.col_stride..][..W];
            for r in 0..W {
                out[r] = U::from_f32(x[r].to_f32());
            }
        }
    }
}

impl<E: Element, U: Unit> Kernel for Columns<'_, E, U> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        match (self.rows == self.width, self.width) {
            (true, 6) => self.full::<6>(),
            (true, 14) => self.full::<14>(),
            (true, 16) => self.full::<16>(),
            (true, 32) => self.full::<32>(),
            _ => {
                for (k, out) in self.out.chunks_exact_mut(self.width).enumerate() {
                    let x = &self.data[k * self.col_stride..][..self.rows];
                    out.iter_mut().zip(x).for_each(|(y, x)| *y = U::from_f32(x.to_f32()));
                }
            }
        }
    }
}
