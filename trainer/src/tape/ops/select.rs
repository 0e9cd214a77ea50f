//! The first token of every sequence, which the classification heads read. Its rows are few and copied by one thread.

use std::rc::Rc;

use muster_kernels::{Element, elementwise};

use super::super::buffer::Buf;
use super::super::{Backward, Tape, Var};
use super::Op;

pub(in crate::tape) struct FirstOp<E: Element> {
    x: Var<E>,
    offsets: Rc<[u32]>,
}

impl<E: Element> Tape<'_, E> {
    /// Row `offsets[r]` of `x` for each sequence `r`: `(T, cols)` to `(R, cols)`.
    pub fn first_tokens(&mut self, x: Var<E>, offsets: &Rc<[u32]>) -> Var<E> {
        let (rows, cols) = (offsets.len() - 1, x.cols);
        let mut y = self.env.activations.take(rows, cols);
        for (out, &at) in y.chunks_exact_mut(cols).zip(offsets.iter()) {
            out.copy_from_slice(&x.data()[at as usize * cols..][..cols]);
        }
        let y = self.var(y, rows, cols);
        self.record(y.node, Op::First(FirstOp { x, offsets: Rc::clone(offsets) }));
        y
    }
}

impl<E: Element> FirstOp<E> {
    pub(super) fn backward(self, dy: Buf<E>, back: &mut Backward<'_, '_, E>) {
        let cols = self.x.cols;
        let mut dx = back.env.activations.take(self.x.rows, cols);
        elementwise::zero(back.env.pool, &mut dx);
        for (grad, &at) in dy.chunks_exact(cols).zip(self.offsets.iter()) {
            dx[at as usize * cols..][..cols].copy_from_slice(grad);
        }
        back.give(&self.x, dx);
    }
}
