//! The unfolding that turns a 1-D convolution over each sequence into a linear layer.

use std::rc::Rc;

use muster_kernels::Element;
use muster_kernels::conv;

use super::super::buffer::Buf;
use super::super::{Backward, Tape, Var};
use super::Op;

pub(in crate::tape) struct UnfoldOp<E: Element> {
    x: Var<E>,
    kernel: usize,
    offsets: Rc<[u32]>,
}

impl<E: Element> Tape<'_, E> {
    /// The `kernel` neighbours of each token inside its sequence, zeros outside: `(T, cols)` to
    /// `(T, cols * kernel)`, in the order of a PyTorch `Conv1d` weight.
    pub fn unfold(&mut self, x: &Var<E>, kernel: usize, offsets: &Rc<[u32]>) -> Var<E> {
        let mut y = self.env.activations.take(x.rows, x.cols * kernel);
        conv::unfold(self.env.pool, x.cols, kernel, offsets, x.data(), &mut y);
        let y = self.var(y, x.rows, x.cols * kernel);
        self.record(y.node, Op::Unfold(UnfoldOp { x: x.clone(), kernel, offsets: Rc::clone(offsets) }));
        y
    }
}

impl<E: Element> UnfoldOp<E> {
    pub(super) fn backward(self, dy: Buf<E>, back: &mut Backward<'_, '_, E>) {
        let mut dx = back.env.activations.take(self.x.rows, self.x.cols);
        conv::fold(back.env.pool, self.x.cols, self.kernel, &self.offsets, &dy, &mut dx);
        back.give(&self.x, dx);
    }
}
