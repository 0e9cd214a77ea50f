//! Products with so few rows of A, or so few inner indices, that packing B would cost more than multiplying by it.

use super::Mat;
use super::target::Target;
use crate::element::Element;
use crate::isa::{Kernel, Simd, dispatch};
use crate::math;
use crate::pool::Pool;

/// Rows of A up to which B is read where it lies.
const ROWS_MAX: usize = 6;
/// Inner indices up to which an outer product is summed directly.
const INNER_MAX: usize = 4;
/// Columns of C of one task.
const COLS: usize = 64;
/// Rows of C of one task.
const ROWS: usize = 64;

/// Whether [`product`] is the better way.
pub(super) fn suits<A, B>(a: &Mat<'_, A>, b: &Mat<'_, B>) -> bool {
    let few = a.rows <= ROWS_MAX || a.cols <= INNER_MAX;
    few && (b.col_stride == 1 || (b.row_stride == 1 && a.col_stride == 1))
}

/// A B by dot products where columns of B are contiguous, otherwise by sums of its rows.
pub(super) fn product<A: Element, B: Element, T: Target>(
    pool: &Pool,
    a: Mat<'_, A>,
    b: Mat<'_, B>,
    target: &T,
) {
    let (down, across) = (a.rows.div_ceil(ROWS), b.cols.div_ceil(COLS));
    pool.run(down * across, |task| {
        let (row, col) = (task / across * ROWS, task % across * COLS);
        let block =
            Block { a, b, rows: row..(row + ROWS).min(a.rows), cols: col..(col + COLS).min(b.cols), target };
        dispatch(pool.isa(), block);
    });
}

struct Block<'a, 't, A, B, T> {
    a: Mat<'a, A>,
    b: Mat<'a, B>,
    rows: std::ops::Range<usize>,
    cols: std::ops::Range<usize>,
    target: &'t T,
}

impl<A: Element, B: Element, T: Target> Kernel for Block<'_, '_, A, B, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (a, b) = (self.a, self.b);
        for i in self.rows.clone() {
            let mut sums = [0.0_f32; COLS];
            let sums = &mut sums[..self.cols.len()];
            if b.col_stride == 1 {
                for k in 0..a.cols {
                    let x = a.data[i * a.row_stride + k * a.col_stride].to_f32();
                    let row = &b.data[k * b.row_stride + self.cols.start..][..sums.len()];
                    sums.iter_mut().zip(row).for_each(|(s, b)| *s = simd.mul_add(x, b.to_f32(), *s));
                }
            } else {
                let row = &a.data[i * a.row_stride..][..a.cols];
                for (s, j) in sums.iter_mut().zip(self.cols.clone()) {
                    *s = math::dot(simd, row, &b.data[j * b.col_stride..][..a.cols]);
                }
            }
            // SAFETY: rows and columns of C are one task's, and each is named once.
            unsafe { self.target.put(simd, i, self.cols.start, sums) };
        }
    }
}
