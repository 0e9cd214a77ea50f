//! Matrix products, behind one function of ours.
//!
//! Today the products themselves come from the `gemm` crate in f32; bf16 operands are widened into scratch first.
//! Accumulation is f32. The order of every sum depends on the shape alone.

mod backend;

use self::backend::{How, product};
use crate::element::Element;
use crate::elementwise;
use crate::isa::Isa;
use crate::pool::Pool;

/// Buffers reused from call to call: widened operands, and products on their way to bf16.
#[derive(Debug, Default)]
pub struct Scratch {
    a: Vec<f32>,
    b: Vec<f32>,
    pub(crate) c: Vec<f32>,
}

/// Grows a buffer where needed and returns its first `len` elements (with unspecified content).
pub(crate) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
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

/// A matrix to write to: element (i, j) is `data[i * row_stride + j]`; rows must not overlap.
pub(crate) struct MatMut<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) row_stride: usize,
}

/// Where and with which factor a product is written.
#[derive(Clone, Copy)]
pub(crate) struct Store {
    pub(crate) write: Write,
    pub(crate) factor: f32,
}

impl Store {
    pub(crate) const SET: Self = Self { write: Write::Set, factor: 1.0 };
    pub(crate) const ADD: Self = Self { write: Write::Add, factor: 1.0 };
}

/// A product on the calling thread, for tiles.
pub(crate) fn tile(isa: Isa, a: Mat<'_, f32>, b: Mat<'_, f32>, c: MatMut<'_>, store: Store) {
    product(How { isa, parallelism: gemm::Parallelism::None }, a, b, c, store);
}

/// The elements as f32: the slice itself, or widened into a buffer.
fn widened<'s, E: Element>(pool: &Pool, data: &'s [E], buffer: &'s mut Vec<f32>) -> &'s [f32] {
    match E::as_f32(data) {
        Some(same) => same,
        None => {
            let wide = sized(buffer, data.len());
            elementwise::cast(pool, data, wide);
            wide
        }
    }
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
    let Scratch { a: wide_a, b: wide_b, .. } = scratch;
    let a = Mat { data: widened(pool, a.data, wide_a), ..retyped(a) };
    let b = Mat { data: widened(pool, b.data, wide_b), ..retyped(b) };
    let parallelism = match pool.threads() {
        1 => gemm::Parallelism::None,
        threads => gemm::Parallelism::Rayon(threads),
    };
    let store = Store { write, factor: 1.0 };
    let how = How { isa: pool.isa(), parallelism };
    pool.install(|| product(how, a, b, MatMut { data: c, row_stride: n }, store));
}

/// The same geometry without data.
fn retyped<'a, E>(m: Mat<'_, E>) -> Mat<'a, f32> {
    Mat { data: &[], rows: m.rows, cols: m.cols, row_stride: m.row_stride, col_stride: m.col_stride }
}
