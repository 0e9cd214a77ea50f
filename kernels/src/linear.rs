//! The linear layer y = x Wᵀ + b and its gradients; W is (outputs, inputs) as PyTorch stores it.

use crate::element::Element;
use crate::gemm::{Mat, Scratch, Write, gemm, sized};
use crate::isa::{Kernel, Simd, dispatch};
use crate::pool::{Pool, row_block};

/// What an operation runs on: the threads, and buffers to reuse.
pub struct Cx<'a> {
    /// The threads.
    pub pool: &'a Pool,
    /// The buffers.
    pub scratch: &'a mut Scratch,
}

/// Sizes of a linear layer applied to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows of the input (T).
    pub rows: usize,
    /// Columns of the input.
    pub inputs: usize,
    /// Columns of the output.
    pub outputs: usize,
}

impl Shape {
    fn check(&self, x: usize, weight: usize, y: usize) {
        let Self { rows, inputs, outputs } = *self;
        assert_eq!(x, rows * inputs, "x and dx must be (rows, inputs) = ({rows}, {inputs})");
        assert_eq!(
            weight,
            outputs * inputs,
            "weight and dweight must be (outputs, inputs) = ({outputs}, {inputs})"
        );
        assert_eq!(y, rows * outputs, "y and dy must be (rows, outputs) = ({rows}, {outputs})");
    }
}

/// y = x + bias for each row, from f32 products to the storage type.
struct Narrow<'a, B, E> {
    x: &'a [f32],
    bias: Option<&'a [B]>,
    y: &'a mut [E],
}
impl<B: Element, E: Element> Kernel for Narrow<'_, B, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let pairs = self.y.iter_mut().zip(self.x);
        match self.bias {
            None => pairs.for_each(|(y, x)| *y = E::from_f32(*x)),
            Some(bias) => pairs.zip(bias).for_each(|((y, x), b)| *y = E::from_f32(*x + b.to_f32())),
        }
    }
}

struct AddBias<'a, B> {
    bias: &'a [B],
    y: &'a mut [f32],
}
impl<B: Element> Kernel for AddBias<'_, B> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.y.iter_mut().zip(self.bias).for_each(|(y, b)| *y += b.to_f32());
    }
}

fn narrow<B: Element, E: Element>(pool: &Pool, cols: usize, x: &[f32], bias: Option<&[B]>, y: &mut [E]) {
    let block = row_block(cols) * cols;
    pool.each(x.chunks(block).zip(y.chunks_mut(block)), |(x, y)| {
        for (x, y) in x.chunks(cols).zip(y.chunks_mut(cols)) {
            dispatch(pool.isa(), Narrow { x, bias, y });
        }
    });
}

fn add_bias<B: Element>(pool: &Pool, bias: &[B], y: &mut [f32]) {
    let block = row_block(bias.len()) * bias.len();
    pool.each(y.chunks_mut(block), |y| {
        y.chunks_mut(bias.len()).for_each(|y| dispatch(pool.isa(), AddBias { bias, y }));
    });
}

/// y = x Wᵀ + bias; x (rows, inputs), W (outputs, inputs), y (rows, outputs).
pub fn forward<E: Element>(
    cx: &mut Cx<'_>,
    shape: Shape,
    x: &[E],
    weight: &[E],
    bias: Option<&[E]>,
    y: &mut [E],
) {
    if let Some(y) = E::as_f32_mut(y) {
        return forward_f32(cx, shape, x, weight, bias, y);
    }
    let mut products = std::mem::take(&mut cx.scratch.c);
    let wide = sized(&mut products, shape.rows * shape.outputs);
    forward_f32::<E>(cx, shape, x, weight, None, wide);
    check_bias(shape, bias);
    if !y.is_empty() {
        assert_eq!(y.len(), wide.len(), "y must be (rows, outputs)");
        narrow(cx.pool, shape.outputs, wide, bias, y);
    }
    cx.scratch.c = products;
}

fn check_bias<E>(shape: Shape, bias: Option<&[E]>) {
    assert!(bias.is_none_or(|b| b.len() == shape.outputs), "bias must be (outputs) = ({})", shape.outputs);
}

/// As [`forward`], with the result left in f32 (logits).
pub fn forward_f32<E: Element>(
    cx: &mut Cx<'_>,
    shape: Shape,
    x: &[E],
    weight: &[E],
    bias: Option<&[E]>,
    y: &mut [f32],
) {
    shape.check(x.len(), weight.len(), y.len());
    check_bias(shape, bias);
    let Shape { rows, inputs, outputs } = shape;
    let (a, b) = (Mat::new(x, rows, inputs), Mat::new(weight, outputs, inputs).t());
    gemm(cx.pool, cx.scratch, a, b, y, Write::Set);
    if let Some(bias) = bias.filter(|b| !b.is_empty()) {
        add_bias(cx.pool, bias, y);
    }
}

/// dx = dy W; sets dx (rows, inputs).
pub fn backward_input<E: Element>(cx: &mut Cx<'_>, shape: Shape, dy: &[E], weight: &[E], dx: &mut [E]) {
    input_gradient(cx, shape, dy, weight, dx);
}

/// As [`backward_input`], with dy in f32 (logits).
pub fn backward_input_f32<E: Element>(cx: &mut Cx<'_>, shape: Shape, dy: &[f32], weight: &[E], dx: &mut [E]) {
    input_gradient(cx, shape, dy, weight, dx);
}

fn input_gradient<D: Element, E: Element>(
    cx: &mut Cx<'_>,
    shape: Shape,
    dy: &[D],
    weight: &[E],
    dx: &mut [E],
) {
    shape.check(dx.len(), weight.len(), dy.len());
    let Shape { rows, inputs, outputs } = shape;
    let (a, b) = (Mat::new(dy, rows, outputs), Mat::new(weight, outputs, inputs));
    if let Some(dx) = E::as_f32_mut(dx) {
        return gemm(cx.pool, cx.scratch, a, b, dx, Write::Set);
    }
    let mut products = std::mem::take(&mut cx.scratch.c);
    let wide = sized(&mut products, rows * inputs);
    gemm(cx.pool, cx.scratch, a, b, wide, Write::Set);
    if !dx.is_empty() {
        narrow::<E, E>(cx.pool, inputs, wide, None, dx);
    }
    cx.scratch.c = products;
}

/// dweight += dyᵀ x and dbias += column sums of dy, straight into the f32 gradient arena.
pub fn backward_weight<E: Element>(
    cx: &mut Cx<'_>,
    shape: Shape,
    x: &[E],
    dy: &[E],
    dweight: &mut [f32],
    dbias: Option<&mut [f32]>,
) {
    weight_gradient(cx, shape, x, dy, dweight, dbias);
}

/// As [`backward_weight`], with dy in f32 (logits).
pub fn backward_weight_f32<E: Element>(
    cx: &mut Cx<'_>,
    shape: Shape,
    x: &[E],
    dy: &[f32],
    dweight: &mut [f32],
    dbias: Option<&mut [f32]>,
) {
    weight_gradient(cx, shape, x, dy, dweight, dbias);
}

fn weight_gradient<E: Element, D: Element>(
    cx: &mut Cx<'_>,
    shape: Shape,
    x: &[E],
    dy: &[D],
    dweight: &mut [f32],
    dbias: Option<&mut [f32]>,
) {
    shape.check(x.len(), dweight.len(), dy.len());
    let Shape { rows, inputs, outputs } = shape;
    let (a, b) = (Mat::new(dy, rows, outputs).t(), Mat::new(x, rows, inputs));
    gemm(cx.pool, cx.scratch, a, b, dweight, Write::Add);
    if let Some(dbias) = dbias {
        assert_eq!(dbias.len(), outputs, "dbias must be (outputs) = ({outputs})");
        add_column_sums(cx.pool, dy, dbias);
    }
}

struct ColumnSums<'a, E> {
    x: &'a [E],
    sums: &'a mut [f32],
}
impl<E: Element> Kernel for ColumnSums<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for row in self.x.chunks_exact(self.sums.len()) {
            self.sums.iter_mut().zip(row).for_each(|(s, x)| *s += x.to_f32());
        }
    }
}

/// Rows of one partial sum; fixed, so that the sums are the same on any number of threads.
const REDUCE_ROWS: usize = 64;

/// Adds the sum of each column of x to `sums`.
fn add_column_sums<E: Element>(pool: &Pool, x: &[E], sums: &mut [f32]) {
    let cols = sums.len();
    if cols == 0 {
        return;
    }
    let mut partial = vec![0.0_f32; (x.len() / cols).div_ceil(REDUCE_ROWS) * cols];
    let parts = x.chunks(REDUCE_ROWS * cols).zip(partial.chunks_mut(cols));
    pool.each(parts, |(x, sums)| dispatch(pool.isa(), ColumnSums { x, sums }));
    for block in partial.chunks(cols) {
        sums.iter_mut().zip(block).for_each(|(s, b)| *s += b);
    }
}
