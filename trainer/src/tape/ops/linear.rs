//! Linear layers, activations between them, and the last layer, whose output is f32.

use muster_kernels::Element;
use muster_kernels::activation::{self, Activation};
use muster_kernels::linear::{self, Shape};

use super::super::buffer::Buf;
use super::super::{Backward, Tape, Var};
use super::Op;
use crate::gradients::Gradients;
use crate::params::Linear;

pub(in crate::tape) struct LinearOp<E: Element> {
    x: Var<E>,
    layer: Linear,
}

pub(in crate::tape) struct ActivationOp<E: Element> {
    x: Var<E>,
    activation: Activation,
}

/// Outputs of the last layer in f32, `(rows, outputs)`, and what their backward needs.
pub struct Logits<E: Element> {
    /// The numbers, row-major.
    pub values: Vec<f32>,
    x: Var<E>,
    layer: Linear,
}

pub(super) fn shape<E: Element>(x: &Var<E>, layer: &Linear) -> Shape {
    assert_eq!(x.cols, layer.inputs, "a linear layer of {} inputs got {} columns", layer.inputs, x.cols);
    shape_of(x.rows, layer)
}

pub(super) fn shape_of(rows: usize, layer: &Linear) -> Shape {
    Shape { rows, inputs: layer.inputs, outputs: layer.outputs }
}

impl<E: Element> Tape<'_, E> {
    /// `x Wᵀ + b`: `(rows, inputs)` to `(rows, outputs)`.
    pub fn linear(&mut self, x: &Var<E>, layer: &Linear) -> Var<E> {
        let shape = shape(x, layer);
        let mut y = self.env.activations.take(x.rows, layer.outputs);
        let (weight, bias) = weights(self.env.params, layer);
        linear::forward(&mut self.env.cx(), shape, x.data(), weight, bias, &mut y);
        let y = self.var(y, x.rows, layer.outputs);
        self.record(y.node, Op::Linear(LinearOp { x: x.clone(), layer: layer.clone() }));
        y
    }

    /// An elementwise activation; keeps its input for the derivative.
    pub fn activation(&mut self, x: Var<E>, activation: Activation) -> Var<E> {
        let mut y = self.env.activations.take(x.rows, x.cols);
        activation::forward(self.env.pool, activation, x.data(), &mut y);
        let y = self.var(y, x.rows, x.cols);
        self.record(y.node, Op::Activation(ActivationOp { x, activation }));
        y
    }

    /// The last linear layer: its output stays f32, for the loss.
    pub fn logits(&mut self, x: Var<E>, layer: &Linear) -> Logits<E> {
        let shape = shape(&x, layer);
        let mut values = vec![0.0; x.rows * layer.outputs];
        let (weight, bias) = weights(self.env.params, layer);
        linear::forward(&mut self.env.cx(), shape, x.data(), weight, bias, &mut values);
        Logits { values, x, layer: layer.clone() }
    }
}

pub(super) fn weights<'p, E>(params: &'p [E], layer: &Linear) -> (&'p [E], Option<&'p [E]>) {
    (&params[layer.weight.clone()], layer.bias.clone().map(|range| &params[range]))
}

/// The gradient slices of a layer's weight and bias.
pub(super) fn gradients<'g>(
    grads: &'g mut Gradients,
    layer: &Linear,
) -> (&'g mut [f32], Option<&'g mut [f32]>) {
    match layer.bias.clone() {
        None => (grads.slice_mut(layer.weight.clone()), None),
        Some(bias) => {
            let (dweight, dbias) = grads.pair_mut(layer.weight.clone(), bias);
            (dweight, Some(dbias))
        }
    }
}

impl<E: Element> LinearOp<E> {
    pub(super) fn params_end(&self) -> usize {
        self.layer.end()
    }

    pub(super) fn backward(self, dy: Buf<E>, back: &mut Backward<'_, '_, E>) {
        let shape = shape(&self.x, &self.layer);
        let (dweight, dbias) = gradients(back.grads, &self.layer);
        linear::backward_weight(&mut back.env.cx(), shape, self.x.data(), &dy, dweight, dbias);
        let mut dx = back.env.activations.take(self.x.rows, self.x.cols);
        let weight = &back.env.params[self.layer.weight.clone()];
        linear::backward_input(&mut back.env.cx(), shape, &dy, weight, &mut dx);
        back.give(&self.x, dx);
    }
}

impl<E: Element> ActivationOp<E> {
    pub(super) fn backward(self, dy: Buf<E>, back: &mut Backward<'_, '_, E>) {
        let mut dx = back.env.activations.take(self.x.rows, self.x.cols);
        activation::backward(back.env.pool, self.activation, self.x.data(), &dy, &mut dx);
        back.give(&self.x, dx);
    }
}

impl<E: Element> Logits<E> {
    pub(in crate::tape) fn backward(self, dlogits: &[f32], back: &mut Backward<'_, '_, E>) {
        let shape = shape(&self.x, &self.layer);
        let (dweight, dbias) = gradients(back.grads, &self.layer);
        linear::backward_weight(&mut back.env.cx(), shape, self.x.data(), dlogits, dweight, dbias);
        let mut dx = back.env.activations.take(self.x.rows, self.x.cols);
        let weight = &back.env.params[self.layer.weight.clone()];
        linear::backward_input(&mut back.env.cx(), shape, dlogits, weight, &mut dx);
        back.give(&self.x, dx);
    }
}
