//! Matrix products: C (+)= A B with f32 accumulation, in f32 or from bf16 operands.
//!
//! Both operands are packed whole into panels (`pack`), then every macro-tile of C is one task (`driver`) that runs
//! a register-blocked micro-kernel (`micro`) over blocks of the inner dimension and hands finished elements to a
//! `Target`: bias, activation, rounding to bf16 or addition to a gradient happen while the tile is in cache.
//! Products with few rows skip the packing (`skinny`).
//!
//! The order of every sum depends on the shape, the instruction set and the cache sizes alone, never on the threads.
//! Deliberately absent: sparse or batched products, factors, and results with gaps between rows.

mod driver;
mod micro;
mod pack;
mod skinny;
mod target;

use crate::aligned::Buffer;
use crate::element::Element;
use crate::pool::{Pool, SharedMut};

use self::target::Plain;
pub(crate) use self::target::{Bias, BiasActivation, Slope, Target};

/// Memory for packed operands, reused from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    a: Buffer,
    b: Buffer,
}

impl Scratch {
    /// Makes room for operands of so many numbers, which spares growing to them; what is not used is not resident.
    pub fn reserve(&mut self, a: usize, b: usize) {
        self.a.sized(a);
        self.b.sized(b);
    }
}

/// A matrix in a slice; element (i, j) is `data[i * row_stride + j * col_stride]`.
#[derive(Debug, Clone, Copy)]
pub struct Mat<'a, E> {
    /// The elements.
    pub data: &'a [E],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one column to the next.
    pub col_stride: usize,
}

impl<'a, E> Mat<'a, E> {
    /// A row-major matrix that fills its slice.
    pub fn new(data: &'a [E], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "a ({rows}, {cols}) matrix must fill its slice");
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// The transpose; nothing moves.
    pub fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    fn check(&self) {
        if self.rows > 0 && self.cols > 0 {
            let last = (self.rows - 1) * self.row_stride + (self.cols - 1) * self.col_stride;
            assert!(last < self.data.len(), "element {last} is outside of a slice of {}", self.data.len());
        }
    }
}

/// Whether a product replaces or is added to what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Replaces.
    Set,
    /// Adds.
    Add,
}

/// C (+)= A B; C is row-major (a.rows, b.cols) in f32.
pub fn gemm<A: Element, B: Element>(
    pool: &Pool,
    scratch: &mut Scratch,
    a: Mat<'_, A>,
    b: Mat<'_, B>,
    c: &mut [f32],
    write: Write,
) {
    let (m, n) = (a.rows, b.cols);
    assert_eq!(c.len(), m * n, "C must be ({m}, {n})");
    gemm_into(pool, scratch, a, b, &Plain { c: SharedMut::new(c), cols: n, write });
}

/// A B, each finished element going to `target`, whose size the caller has checked.
pub(crate) fn gemm_into<A: Element, B: Element, T: Target>(
    pool: &Pool,
    scratch: &mut Scratch,
    a: Mat<'_, A>,
    b: Mat<'_, B>,
    target: &T,
) {
    check_operands(&a, &b);
    if a.rows == 0 || b.cols == 0 {
        return;
    }
    if skinny::suits(&a, &b) {
        return skinny::product(pool, a, b, target);
    }
    driver::shared(pool, scratch, a, b, target);
}

fn check_operands<A, B>(a: &Mat<'_, A>, b: &Mat<'_, B>) {
    let (m, k, n) = (a.rows, a.cols, b.cols);
    assert_eq!(k, b.rows, "the inner sizes of ({m}, {k}) and ({}, {n}) must agree", b.rows);
    a.check();
    b.check();
}
