//! Residual + dropout + LayerNorm in one pass, and dropout alone.

use muster_kernels::Element;
use muster_kernels::{dropout, elementwise, norm};

use super::super::buffer::Buf;
use super::super::keys::{KeyKind, Site};
use super::super::{Backward, Tape, Var};
use super::Op;
use crate::params::LayerNorm;

pub(in crate::tape) struct AddNormOp<E: Element> {
    /// The value that became the sum; its gradient is that of the summand `x`.
    sum: Var<E>,
    residual: Option<Var<E>>,
    norm: LayerNorm,
    dropout_in: Option<Site>,
    dropout_out: Option<Site>,
    mean: Buf<f32>,
    rstd: Buf<f32>,
}

pub(in crate::tape) struct DropoutOp<E: Element> {
    x: Var<E>,
    site: Site,
}

/// Dropout rates around a LayerNorm.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Of the input, before the residual is added.
    pub before: f32,
    /// Of the output.
    pub after: f32,
}

impl<E: Element> Tape<'_, E> {
    /// Counts one more dropout of the model; every tape of a model counts the same ones in the same order, whatever
    /// the rates, so that changing one rate leaves the other streams as they are.
    pub(super) fn site(&mut self, rate: f32, kind: KeyKind, rows: usize, first_slot: usize) -> Option<Site> {
        self.site_count += 1;
        let keys = self.keys.as_ref().filter(|_| rate > 0.0)?;
        Some(Site { rate, key: keys.site(self.site_count), rows: keys.rows(kind, rows, first_slot) })
    }

    /// `dropout(LayerNorm(residual + dropout(x)))`, all of shape `(tokens, cols)`.
    pub fn add_norm(
        &mut self,
        x: Var<E>,
        residual: Option<&Var<E>>,
        norm: &LayerNorm,
        rates: Rates,
    ) -> Var<E> {
        let (rows, cols) = (x.rows, x.cols);
        let dropout_in = self.site(rates.before, KeyKind::Token, rows, 0);
        let dropout_out = self.site(rates.after, KeyKind::Token, rows, 0);
        let mut sum = self.owned(x);
        let mut y = self.env.activations.take(rows, cols);
        let (mut mean, mut rstd) = (self.env.floats.take(rows, 1), self.env.floats.take(rows, 1));
        let params = self.env.params;
        norm::forward(
            self.env.pool,
            norm::Forward {
                cols,
                eps: norm.eps,
                x: exclusive(&mut sum),
                residual: residual.map(Var::data),
                dropout_in: dropout_in.as_ref().map(Site::view),
                dropout_out: dropout_out.as_ref().map(Site::view),
                gamma: &params[norm.gain.clone()],
                beta: &params[norm.shift.clone()],
                y: &mut y,
                mean: &mut mean,
                rstd: &mut rstd,
            },
        );
        let y = self.var(y, rows, cols);
        let residual = residual.cloned();
        let norm = norm.clone();
        self.record(
            y.node,
            Op::AddNorm(AddNormOp { sum, residual, norm, dropout_in, dropout_out, mean, rstd }),
        );
        y
    }

    /// Dropout alone, where no LayerNorm follows.
    pub fn dropout(&mut self, x: Var<E>, rate: f32, kind: KeyKind) -> Var<E> {
        self.dropout_slots(x, rate, kind, 0)
    }

    /// Dropout of rows of the relative-position table, the first of which is table row `first_slot`.
    pub fn dropout_slots(&mut self, x: Var<E>, rate: f32, kind: KeyKind, first_slot: usize) -> Var<E> {
        let Some(site) = self.site(rate, kind, x.rows, first_slot) else { return x };
        let mut y = self.env.activations.take(x.rows, x.cols);
        dropout::apply(self.env.pool, &site.view(), x.cols, x.data(), &mut y);
        let y = self.var(y, x.rows, x.cols);
        self.record(y.node, Op::Dropout(DropoutOp { x, site }));
        y
    }

    /// The value alone in its buffer, ready to be overwritten: a copy only if someone else still holds it.
    fn owned(&mut self, mut x: Var<E>) -> Var<E> {
        if std::rc::Rc::get_mut(&mut x.data).is_none() {
            let mut copy = self.env.activations.take(x.rows, x.cols);
            elementwise::copy(self.env.pool, &x.data, &mut copy);
            x.data = std::rc::Rc::new(copy);
        }
        x
    }
}

fn exclusive<E: Element>(x: &mut Var<E>) -> &mut [E] {
    std::rc::Rc::get_mut(&mut x.data).expect("owned() left one holder")
}

impl<E: Element> AddNormOp<E> {
    pub(super) fn params_end(&self) -> usize {
        self.norm.shift.end
    }

    pub(super) fn backward(self, dy: Buf<E>, back: &mut Backward<'_, '_, E>) {
        let like_sum = || back.env.activations.take(self.sum.rows, self.sum.cols);
        let (mut dx, mut dresidual) = (like_sum(), self.residual.as_ref().map(|_| like_sum()));
        let (gain, shift) = (self.norm.gain, self.norm.shift);
        let (dgamma, dbeta) = back.grads.pair_mut(gain.clone(), shift);
        norm::backward(
            back.env.pool,
            norm::Backward {
                cols: self.sum.cols,
                s: self.sum.data(),
                mean: &self.mean,
                rstd: &self.rstd,
                gamma: &back.env.params[gain],
                dropout_in: self.dropout_in.as_ref().map(Site::view),
                dropout_out: self.dropout_out.as_ref().map(Site::view),
                dy: &dy,
                dx: &mut dx,
                dresidual: dresidual.as_deref_mut(),
                dgamma,
                dbeta,
            },
        );
        back.give(&self.sum, dx);
        if let (Some(residual), Some(grad)) = (&self.residual, dresidual) {
            back.give(residual, grad);
        }
    }
}

impl<E: Element> DropoutOp<E> {
    pub(super) fn backward(self, dy: Buf<E>, back: &mut Backward<'_, '_, E>) {
        let mut dx = back.env.activations.take(self.x.rows, self.x.cols);
        dropout::apply(back.env.pool, &self.site.view(), self.x.cols, &dy, &mut dx);
        back.give(&self.x, dx);
    }
}
