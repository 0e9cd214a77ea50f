//! The linear layer y = x Wᵀ + b and its gradients; W is (outputs, inputs) as PyTorch stores it.

use crate::activation::{Activation, with_function};
use crate::element::Element;
use crate::gemm::{Bias, BiasActivation, Mat, Scratch, Slope, Write, gemm, gemm_into};
use crate::isa::{Kernel, Simd, dispatch};
use crate::pool::{Pool, SharedMut};

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

    fn check_bias<E>(&self, bias: Option<&[E]>) {
        let outputs = self.outputs;
        assert!(bias.is_none_or(|b| b.len() == outputs), "bias must be (outputs) = ({outputs})");
    }
}

/// y = x Wᵀ + bias; x (rows, inputs), W (outputs, inputs), y (rows, outputs), in the storage type or f32 (logits).
pub fn forward<E: Element, Y: Element>(
    cx: &mut Cx<'_>,
    shape: Shape,
    x: &[E],
    weight: &[E],
    bias: Option<&[E]>,
    y: &mut [Y],
) {
    shape.check(x.len(), weight.len(), y.len());
    shape.check_bias(bias);
    let Shape { rows, inputs, outputs } = shape;
    let (a, b) = (Mat::new(x, rows, inputs), Mat::new(weight, outputs, inputs).t());
    gemm_into(cx.pool, cx.scratch, a, b, &Bias { y: SharedMut::new(y), cols: outputs, bias });
}

/// The two results of [`forward_activation`], both (rows, outputs).
pub struct Activated<'a, E> {
    /// x Wᵀ + bias, for backward.
    pub before: &'a mut [E],
    /// act(x Wᵀ + bias).
    pub after: &'a mut [E],
}

/// A linear layer and the activation behind it, while the products are in cache.
pub fn forward_activation<E: Element>(
    cx: &mut Cx<'_>,
    shape: Shape,
    x: &[E],
    (weight, bias): (&[E], Option<&[E]>),
    act: Activation,
    out: Activated<'_, E>,
) {
    shape.check(x.len(), weight.len(), out.before.len());
    shape.check_bias(bias);
    let Shape { rows, inputs, outputs } = shape;
    assert_eq!(out.after.len(), rows * outputs, "after must be (rows, outputs) = ({rows}, {outputs})");
    let (a, b) = (Mat::new(x, rows, inputs), Mat::new(weight, outputs, inputs).t());
    let (u, y) = (SharedMut::new(out.before), SharedMut::new(out.after));
    with_function!(act, function => {
        gemm_into(cx.pool, cx.scratch, a, b, &BiasActivation { u, y, cols: outputs, bias, function });
    });
}

/// dx = dy W; sets dx (rows, inputs). dy (rows, outputs) is in the storage type or f32 (logits).
pub fn backward_input<E: Element, D: Element>(
    cx: &mut Cx<'_>,
    shape: Shape,
    dy: &[D],
    weight: &[E],
    dx: &mut [E],
) {
    shape.check(dx.len(), weight.len(), dy.len());
    let Shape { rows, inputs, outputs } = shape;
    let (a, b) = (Mat::new(dy, rows, outputs), Mat::new(weight, outputs, inputs));
    let target = Bias { y: SharedMut::new(dx), cols: inputs, bias: None::<&[E]> };
    gemm_into(cx.pool, cx.scratch, a, b, &target);
}

/// du = act'(u) * (dy W): the layer's input was act(u), u (rows, inputs).
pub fn backward_input_activation<E: Element>(
    cx: &mut Cx<'_>,
    shape: Shape,
    dy: &[E],
    weight: &[E],
    (act, u): (Activation, &[E]),
    du: &mut [E],
) {
    shape.check(du.len(), weight.len(), dy.len());
    let Shape { rows, inputs, outputs } = shape;
    assert_eq!(u.len(), rows * inputs, "u must be (rows, inputs) = ({rows}, {inputs})");
    let (a, b) = (Mat::new(dy, rows, outputs), Mat::new(weight, outputs, inputs));
    let dx = SharedMut::new(du);
    with_function!(act, function => {
        gemm_into(cx.pool, cx.scratch, a, b, &Slope { dx, u, cols: inputs, function });
    });
}

/// dweight += dyᵀ x and dbias += column sums of dy, straight into the f32 gradient arena.
pub fn backward_weight<E: Element, D: Element>(
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
