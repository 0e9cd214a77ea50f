//! Forward pass: tasks are (sequence, head).

use super::relative::{AddColumns, GatherRows, Plan};
use super::softmax::{Masks, Place, Softmax};
use super::tile::{self, Block, Tiles};
use super::{Relative, Shape, check_common};
use crate::dropout::Dropout;
use crate::element::Element;
use crate::gemm::{Mat, MatMut, Store, sized, tile as product};
use crate::isa::dispatch;
use crate::pool::{Pool, SharedMut};

/// Arguments of [`forward`].
pub struct Forward<'a, E> {
    /// Sequences and heads.
    pub shape: Shape<'a>,
    /// Queries, keys and values as column blocks (T, 3 H).
    pub qkv: &'a [E],
    /// DeBERTa's relative terms.
    pub relative: Option<Relative<'a, E>>,
    /// Factor of every score: 1 / sqrt(head_dim * number of terms).
    pub scale: f32,
    /// Dropout of the probabilities, keyed by (row key of token i, head, j).
    pub dropout: Option<Dropout<'a>>,
    /// Result (T, H).
    pub out: &'a mut [E],
    /// Log-sum-exp of each row of scores (heads, T), for backward.
    pub lse: &'a mut [f32],
}

/// What a tile is computed from, the same in both passes.
pub(super) struct Source<'a, E> {
    pub(super) pool: &'a Pool,
    pub(super) shape: Shape<'a>,
    pub(super) qkv: &'a [E],
    pub(super) relative: Option<&'a Relative<'a, E>>,
    pub(super) scale: f32,
    pub(super) dropout: Option<&'a Dropout<'a>>,
}

impl<'a, E: Element> Source<'a, E> {
    /// A column block of qkv (0 queries, 1 keys, 2 values) for one sequence and head.
    fn block(&self, which: usize, first: usize, head: usize) -> Block {
        let (hidden, cols) = (self.shape.hidden(), self.shape.head_dim);
        Block { row_stride: 3 * hidden, from: (first * 3 + which) * hidden + head * cols, cols }
    }

    pub(super) fn masks(&self, first_token: usize, head: usize) -> Masks<'a> {
        Masks { dropout: self.dropout.filter(|d| d.rate > 0.0), first_token, head }
    }

    /// Loads scaled queries, keys and values of one sequence and head.
    pub(super) fn load(&self, t: &mut Tiles, (first, n): (usize, usize), head: usize) {
        let size = n * self.shape.head_dim;
        tile::load(self.pool, self.qkv, self.block(0, first, head), 0..n, self.scale, sized(&mut t.q, size));
        tile::load(self.pool, self.qkv, self.block(1, first, head), 0..n, 1.0, sized(&mut t.k, size));
        tile::load(self.pool, self.qkv, self.block(2, first, head), 0..n, 1.0, sized(&mut t.v, size));
    }

    /// Fills the scores of the loaded sequence; says where they lie and, with a plan, whether inside `c2p`.
    pub(super) fn scores(&self, t: &mut Tiles, plan: Option<&Plan>, n: usize, head: usize) -> Scores {
        let (d, isa) = (self.shape.head_dim, self.pool.isa());
        let (q, k) = (&t.q[..n * d], &t.k[..n * d]);
        let (q, k) = (Mat::new(q, n, d), Mat::new(k, n, d));
        let dense = Scores { place: Place { base: 0, stride: n, n }, in_c2p: false };
        let (Some(r), Some(plan)) = (self.relative, plan) else {
            product(isa, q, k.t(), MatMut { data: sized(&mut t.scores, n * n), row_stride: n }, Store::SET);
            return dense;
        };
        let m = plan.m;
        let table = Block { row_stride: r.row_stride, from: head * d, cols: d };
        let mut at = dense;
        if r.terms.c2p() {
            let kr = sized(&mut t.kr, m * d);
            tile::load(self.pool, r.keys, table, plan.slots(), 1.0, kr);
            let c2p = sized(&mut t.c2p, n * m);
            product(isa, q, Mat::new(&*kr, m, d).t(), MatMut { data: &mut *c2p, row_stride: m }, Store::SET);
            if plan.consecutive {
                at = Scores { place: plan.skewed(), in_c2p: true };
            } else {
                dispatch(isa, GatherRows { plan, c2p, scores: sized(&mut t.scores, n * n) });
            }
        }
        let store = if r.terms.c2p() { Store::ADD } else { Store::SET };
        let buffer = if at.in_c2p { &mut t.c2p[..n * m] } else { sized(&mut t.scores, n * n) };
        let target = MatMut { data: &mut buffer[at.place.base..], row_stride: at.place.stride };
        product(isa, q, k.t(), target, store);
        if r.terms.p2c() {
            let qr = sized(&mut t.qr, m * d);
            tile::load(self.pool, r.queries, table, plan.slots(), self.scale, qr);
            let p2c = sized(&mut t.p2c, n * m);
            product(isa, k, Mat::new(&*qr, m, d).t(), MatMut { data: &mut *p2c, row_stride: m }, Store::SET);
            dispatch(isa, AddColumns { plan, p2c, scores: buffer, place: at.place });
        }
        at
    }
}

/// Where a tile of scores lies.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub(super) place: Place,
    /// Inside `Tiles::c2p` as a skewed view; otherwise dense in `Tiles::scores`.
    pub(super) in_c2p: bool,
}

/// One plan per distinct length, since all heads and layers of a length share it.
pub(super) fn plans<E>(shape: &Shape<'_>, relative: Option<&Relative<'_, E>>) -> Vec<Option<Plan>> {
    let longest = (0..shape.rows()).map(|r| shape.row(r).1).max().unwrap_or(0);
    let mut plans: Vec<Option<Plan>> = (0..=longest).map(|_| None).collect();
    if let Some(rel) = relative {
        for n in (0..shape.rows()).map(|r| shape.row(r).1).filter(|&n| n > 0) {
            plans[n].get_or_insert_with(|| Plan::new(rel.slots, n));
        }
    }
    plans
}

/// out = dropout(softmax(scores)) V for every sequence and head.
pub fn forward<E: Element>(pool: &Pool, f: Forward<'_, E>) {
    check_common(&f.shape, f.qkv, f.relative.as_ref(), f.dropout.as_ref());
    let (shape, tokens, hidden) = (f.shape, f.shape.tokens(), f.shape.hidden());
    assert_eq!(f.out.len(), tokens * hidden, "out must be (T, H) = ({tokens}, {hidden})");
    assert_eq!(f.lse.len(), shape.heads * tokens, "lse must be (heads, T) = ({}, {tokens})", shape.heads);
    let plans = plans(&shape, f.relative.as_ref());
    let source = Source {
        pool,
        shape,
        qkv: f.qkv,
        relative: f.relative.as_ref(),
        scale: f.scale,
        dropout: f.dropout.as_ref(),
    };
    let (out, lse) = (SharedMut::new(f.out), SharedMut::new(f.lse));
    pool.run(shape.rows() * shape.heads, |task| {
        let (row, head) = (task / shape.heads, task % shape.heads);
        let (first, n) = shape.row(row);
        if n == 0 {
            return;
        }
        let at = head * tokens + first;
        // SAFETY: (sequence, head) belongs to this task alone, and so does its range of lse.
        let lse = unsafe { lse.range(at..at + n) };
        tile::with(|t| {
            attend(&source, t, plans[n].as_ref(), (first, n), head, lse);
            let d = shape.head_dim;
            let target = Block { from: first * hidden + head * d, row_stride: hidden, cols: d };
            // SAFETY: the columns of this head in the rows of this sequence belong to this task alone.
            unsafe { tile::store(pool, &t.o[..n * d], 1.0, &out, target) };
        });
    });
}

/// Leaves the output of one sequence and head in `t.o`.
fn attend<E: Element>(
    source: &Source<'_, E>,
    t: &mut Tiles,
    plan: Option<&Plan>,
    (first, n): (usize, usize),
    head: usize,
    lse: &mut [f32],
) {
    let d = source.shape.head_dim;
    source.load(t, (first, n), head);
    let Scores { place, in_c2p } = source.scores(t, plan, n, head);
    let scores = if in_c2p { &mut t.c2p } else { &mut t.scores };
    let masks = source.masks(first, head);
    dispatch(source.pool.isa(), Softmax { scores: &mut *scores, place, masks, lse });
    let probs =
        Mat { data: &scores[place.base..], rows: n, cols: n, row_stride: place.stride, col_stride: 1 };
    let v = Mat::new(&t.v[..n * d], n, d);
    product(source.pool.isa(), probs, v, MatMut { data: sized(&mut t.o, n * d), row_stride: d }, Store::SET);
}
