//! Moves rows between tensors and scratch: widening, scaling, transposing, rounding.

use super::vector::{PAD, Vector, with_vector};
use crate::element::Element;
use crate::isa::{Isa, Kernel, Simd, dispatch};
use crate::pool::SharedMut;

/// A column block of a row-major matrix.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) row_stride: usize,
    /// Index of the block's first element.
    pub(super) from: usize,
    pub(super) cols: usize,
}

impl Block {
    #[inline(always)]
    fn row(self, r: usize) -> std::ops::Range<usize> {
        let at = self.from + r * self.row_stride;
        at..at + self.cols
    }
}

/// Where a tensor starts: an address for hints, not for access.
#[derive(Clone, Copy)]
pub(super) struct Spot(usize);

impl Spot {
    pub(super) fn of<E>(data: &[E]) -> Self {
        Self(data.as_ptr() as usize)
    }

    /// Asks for rows that will soon be read or written. A head's rows are short and far apart, which no hardware
    /// prefetch follows; on short sequences waiting for them would take longer than the arithmetic.
    pub(super) fn prefetch<E>(self, block: Block, rows: usize) {
        #[cfg(target_arch = "x86_64")]
        for r in 0..rows {
            let row = block.row(r);
            for at in row.step_by(64 / size_of::<E>()) {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                let line = std::ptr::without_provenance(self.0 + at * size_of::<E>());
                // SAFETY: a prefetch is a hint, valid for any address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (block, rows);
    }
}

/// Copies rows of a block, times a factor, to f32 rows of `stride` elements. One dispatch per tile, not per row: rows
/// are as short as a head.
pub(super) struct Load<'a, E, R> {
    pub(super) data: &'a [E],
    pub(super) block: Block,
    pub(super) rows: R,
    pub(super) factor: f32,
    pub(super) to: &'a mut [f32],
    pub(super) stride: usize,
}

impl<E: Element, R: Iterator<Item = usize>> Kernel for Load<'_, E, R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (r, to) in self.rows.zip(self.to.chunks_exact_mut(self.stride)) {
            let from = &self.data[self.block.row(r)];
            let to = &mut to[..self.block.cols];
            // By registers: a loop over a row of 32 would spend its time before and after the vector part. (As values,
            // so that LLVM need not prove that the slices do not overlap.)
            let ((x, x_rest), (y, y_rest)) = (from.as_chunks::<PAD>(), to.as_chunks_mut::<PAD>());
            for (x, y) in x.iter().zip(y) {
                *y = std::array::from_fn(|l| x[l].to_f32() * self.factor);
            }
            for (x, y) in x_rest.iter().zip(y_rest) {
                *y = x.to_f32() * self.factor;
            }
        }
    }
}

/// `to[c, r] = from[origin + r * row + c]`; rows and columns are taken in whole squares of [`PAD`].
pub(super) struct Transpose<'a> {
    pub(super) from: &'a [f32],
    pub(super) origin: usize,
    /// May be negative: then the columns of `to` are the rows before the origin.
    pub(super) row: isize,
    pub(super) to: &'a mut [f32],
    pub(super) to_stride: usize,
    /// Rows and columns of `from`.
    pub(super) size: (usize, usize),
}

impl Kernel for Transpose<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        with_vector!(S, transpose(self))
    }
}

/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn transpose<V: Vector>(t: Transpose<'_>) {
    let (rows, cols) = (t.size.0.next_multiple_of(PAD), t.size.1.next_multiple_of(PAD));
    if rows == 0 || cols == 0 {
        return;
    }
    let last = t.origin as isize + (rows as isize - 1) * t.row;
    let (low, high) = (last.min(t.origin as isize), last.max(t.origin as isize));
    assert!(low >= 0 && high as usize + cols <= t.from.len(), "rows outside of their slice");
    assert!(
        rows <= t.to_stride && (cols - 1) * t.to_stride + rows <= t.to.len(),
        "the transpose is too short"
    );
    for r in (0..rows).step_by(V::LANES) {
        for c in (0..cols).step_by(V::LANES) {
            // SAFETY: the square is inside of both slices by the assertions.
            unsafe {
                let from = t.from.as_ptr().offset(t.origin as isize + r as isize * t.row).add(c);
                V::transpose(from, t.row, t.to.as_mut_ptr().add(c * t.to_stride + r), t.to_stride);
            }
        }
    }
}

struct StoreRows<'a, 'b, E> {
    from: &'a [f32],
    stride: usize,
    factor: f32,
    out: &'a SharedMut<'b, E>,
    block: Block,
}

impl<E: Element> Kernel for StoreRows<'_, '_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (r, from) in self.from.chunks_exact(self.stride).enumerate() {
            // SAFETY: the caller of `store` promises that the block is its own.
            let to = unsafe { self.out.range(self.block.row(r)) };
            let from = &from[..self.block.cols];
            let ((x, x_rest), (y, y_rest)) = (from.as_chunks::<PAD>(), to.as_chunks_mut::<PAD>());
            for (x, y) in x.iter().zip(y) {
                *y = std::array::from_fn(|l| E::from_f32(x[l] * self.factor));
            }
            for (x, y) in x_rest.iter().zip(y_rest) {
                *y = E::from_f32(*x * self.factor);
            }
        }
    }
}

/// Writes f32 rows of `stride` elements, times a factor, to a block of a shared matrix.
///
/// # Safety
/// No other task reads or writes the block meanwhile.
pub(super) unsafe fn store<E: Element>(
    isa: Isa,
    (from, stride): (&[f32], usize),
    factor: f32,
    out: &SharedMut<'_, E>,
    block: Block,
) {
    dispatch(isa, StoreRows { from, stride, factor, out, block });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_are_transposed_forwards_and_backwards_on_every_isa() {
        let (rows, cols) = (32, 48);
        let from: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
        for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
            for backwards in [false, true] {
                let mut to = vec![0.0; cols * rows];
                let (origin, row) =
                    if backwards { ((rows - 1) * cols, -(cols as isize)) } else { (0, cols as isize) };
                let size = (rows, cols);
                dispatch(isa, Transpose { from: &from, origin, row, to: &mut to, to_stride: rows, size });
                for r in 0..rows {
                    for c in 0..cols {
                        let source = if backwards { rows - 1 - r } else { r };
                        assert_eq!(to[c * rows + r], from[source * cols + c], "({r}, {c}) on {isa}");
                    }
                }
            }
        }
    }
}
