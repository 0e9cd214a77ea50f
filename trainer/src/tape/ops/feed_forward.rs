//! The feed-forward block: linear, activation, linear, as one operation.
//!
//! As one operation the activation runs on tiles that are still in cache, forward behind the first product and
//! backward behind the second one's gradient.

use muster_kernels::Element;
use muster_kernels::activation::Activation;
use muster_kernels::linear;

use super::super::buffer::Buf;
use super::super::{Backward, Tape, Var};
use super::Op;
use super::linear::{gradients, shape, shape_of, weights};
use crate::params::Linear;

pub(in crate::tape) struct FeedForwardOp<E: Element> {
    x: Var<E>,
    up: Linear,
    activation: Activation,
    /// Before and after the activation, `(T, up.outputs)`.
    before: Buf<E>,
    after: Buf<E>,
    down: Linear,
}

impl<E: Element> Tape<'_, E> {
    /// `act(x Uᵀ + b) Dᵀ + c`: `(T, up.inputs)` to `(T, down.outputs)`.
    pub fn feed_forward(&mut self, x: &Var<E>, up: &Linear, activation: Activation, down: &Linear) -> Var<E> {
        let rows = x.rows;
        let mut before = self.env.activations.take(rows, up.outputs);
        let mut after = self.env.activations.take(rows, up.outputs);
        let mut y = self.env.activations.take(rows, down.outputs);
        let out = linear::Activated { before: &mut before, after: &mut after };
        let params = self.env.params;
        linear::forward_activation(
            &mut self.env.cx(),
            shape(x, up),
            x.data(),
            weights(params, up),
            activation,
            out,
        );
        let (weight, bias) = weights(params, down);
        linear::forward(&mut self.env.cx(), shape_of(rows, down), &after, weight, bias, &mut y);
        let y = self.var(y, rows, down.outputs);
        let (up, down) = (up.clone(), down.clone());
        let saved = FeedForwardOp { x: x.clone(), up, activation, before, after, down };
        self.record(y.node, Op::FeedForward(saved));
        y
    }
}

impl<E: Element> FeedForwardOp<E> {
    pub(super) fn params_end(&self) -> usize {
        self.up.end().max(self.down.end())
    }

    pub(super) fn backward(self, dy: Buf<E>, back: &mut Backward<'_, '_, E>) {
        let Self { x, up, activation, before, after, down } = self;
        let (down_shape, up_shape) = (shape_of(x.rows, &down), shape(&x, &up));
        let (dweight, dbias) = gradients(back.grads, &down);
        linear::backward_weight(&mut back.env.cx(), down_shape, &after, &dy, dweight, dbias);
        drop(after);
        let mut dbefore = back.env.activations.take(x.rows, up.outputs);
        let weight = &back.env.params[down.weight.clone()];
        let through = (activation, &before[..]);
        linear::backward_input_activation(&mut back.env.cx(), down_shape, &dy, weight, through, &mut dbefore);
        drop((dy, before));
        let (dweight, dbias) = gradients(back.grads, &up);
        linear::backward_weight(&mut back.env.cx(), up_shape, x.data(), &dbefore, dweight, dbias);
        let mut dx = back.env.activations.take(x.rows, x.cols);
        let weight = &back.env.params[up.weight.clone()];
        linear::backward_input(&mut back.env.cx(), up_shape, &dbefore, weight, &mut dx);
        back.give(&x, dx);
    }
}
