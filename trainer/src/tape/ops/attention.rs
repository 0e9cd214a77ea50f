//! Self-attention over packed sequences, plain or with DeBERTa's relative-position terms.

use std::rc::Rc;

use muster_kernels::Element;
use muster_kernels::attention::{self, RelativeGrad, Shape, Terms};
use muster_kernels::elementwise;

use super::super::buffer::Buf;
use super::super::keys::{KeyKind, Site};
use super::super::{Backward, Tape, Var};
use super::Op;

/// Relative-position terms of the scores (disentangled attention).
#[derive(Debug)]
pub struct Relative<E: Element> {
    /// Keys of the table rows in use, `(P, heads * head_dim)`: content to position.
    pub keys: Option<Var<E>>,
    /// Queries of the table rows in use, `(P, heads * head_dim)`: position to content.
    pub queries: Option<Var<E>>,
    /// Row of `keys` and `queries` for each distance: index `d + (max_len - 1)`.
    pub slots: Rc<[u32]>,
}

/// Sizes and settings of one attention.
#[derive(Debug, Clone)]
pub struct Heads {
    /// Heads.
    pub count: usize,
    /// Columns of one head.
    pub dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Dropout rate of the probabilities.
    pub dropout: f32,
}

pub(in crate::tape) struct AttentionOp<E: Element> {
    qkv: Var<E>,
    relative: Option<Relative<E>>,
    heads: Heads,
    offsets: Rc<[u32]>,
    site: Option<Site>,
    out: Var<E>,
    lse: Buf<f32>,
}

impl<E: Element> Relative<E> {
    fn view(&self) -> attention::Relative<'_, E> {
        let (keys, queries) = (self.keys.as_ref(), self.queries.as_ref());
        let terms = match (keys, queries) {
            (Some(_), Some(_)) => Terms::Both,
            (Some(_), None) => Terms::C2p,
            (None, _) => Terms::P2c,
        };
        attention::Relative {
            keys: keys.map_or(&[], Var::data),
            queries: queries.map_or(&[], Var::data),
            row_stride: keys.or(queries).expect("relative attention has a term").cols,
            slots: &self.slots,
            terms,
        }
    }
}

impl<E: Element> Tape<'_, E> {
    /// Attention of every sequence to itself: fused queries, keys and values `(T, 3 H)` to `(T, H)`.
    pub fn attention(
        &mut self,
        qkv: Var<E>,
        relative: Option<Relative<E>>,
        heads: &Heads,
        offsets: &Rc<[u32]>,
    ) -> Var<E> {
        let (tokens, hidden) = (qkv.rows, heads.count * heads.dim);
        let site = self.site(heads.dropout, KeyKind::Token, tokens, 0);
        let mut out = self.env.activations.take(tokens, hidden);
        let mut lse = self.env.floats.take(tokens, heads.count);
        attention::forward(
            self.env.pool,
            attention::Forward {
                shape: Shape { offsets, heads: heads.count, head_dim: heads.dim },
                qkv: qkv.data(),
                relative: relative.as_ref().map(Relative::view),
                scale: heads.scale,
                dropout: site.as_ref().map(Site::view),
                out: &mut out,
                lse: &mut lse,
            },
        );
        let out = self.var(out, tokens, hidden);
        let (heads, offsets) = (heads.clone(), Rc::clone(offsets));
        let saved = AttentionOp { qkv, relative, heads, offsets, site, out: out.clone(), lse };
        self.record(out.node, Op::Attention(saved));
        out
    }
}

impl<E: Element> AttentionOp<E> {
    pub(super) fn backward(self, dout: Buf<E>, back: &mut Backward<'_, '_, E>) {
        let mut dqkv = back.env.activations.take(self.qkv.rows, self.qkv.cols);
        let sum = |var: Option<&Var<E>>| {
            let (rows, cols) = var.map_or((0, 0), |v| (v.rows, v.cols));
            let mut sum = back.env.floats.take(rows, cols);
            elementwise::zero(back.env.pool, &mut sum);
            sum
        };
        let mut drelative = self.relative.as_ref().map(|r| (sum(r.keys.as_ref()), sum(r.queries.as_ref())));
        attention::backward(
            back.env.pool,
            attention::Backward {
                shape: Shape { offsets: &self.offsets, heads: self.heads.count, head_dim: self.heads.dim },
                qkv: self.qkv.data(),
                relative: self.relative.as_ref().map(Relative::view),
                scale: self.heads.scale,
                dropout: self.site.as_ref().map(Site::view),
                out: self.out.data(),
                lse: &self.lse,
                dout: &dout,
                dqkv: &mut dqkv,
                drelative: drelative.as_mut().map(|(keys, queries)| RelativeGrad { keys, queries }),
            },
        );
        back.give(&self.qkv, dqkv);
        if let (Some(relative), Some((dkeys, dqueries))) = (&self.relative, drelative) {
            for (var, sum) in [(&relative.keys, dkeys), (&relative.queries, dqueries)] {
                if let Some(var) = var {
                    let mut grad = back.env.activations.take(var.rows, var.cols);
                    elementwise::cast(back.env.pool, &sum, &mut grad);
                    back.give(var, grad);
                }
            }
        }
    }
}
