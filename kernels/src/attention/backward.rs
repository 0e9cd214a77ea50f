//! Backward pass: probabilities are recomputed from the log-sum-exp.
//!
//! Plain attention has one task per (sequence, head). With relative terms there is one task per head, which owns the
//! head's columns of the table gradients and walks the sequences in order: deterministic without atomics.

use super::forward::{Scores, Source, plans};
use super::relative::{Plan, ScatterColumns, ScatterRows, clear_outside};
use super::softmax::SoftmaxGrad;
use super::tile::{self, Block, Tiles};
use super::{Relative, Shape, check_common};
use crate::dropout::Dropout;
use crate::element::Element;
use crate::gemm::{Mat, MatMut, Store, Write, sized, tile as product};
use crate::isa::dispatch;
use crate::pool::{Pool, SharedMut};

/// Arguments of [`backward`]; the first five as in forward.
pub struct Backward<'a, E> {
    /// Sequences and heads.
    pub shape: Shape<'a>,
    /// Queries, keys and values as column blocks (T, 3 H).
    pub qkv: &'a [E],
    /// DeBERTa's relative terms.
    pub relative: Option<Relative<'a, E>>,
    /// Factor of every score.
    pub scale: f32,
    /// Dropout of the probabilities.
    pub dropout: Option<Dropout<'a>>,
    /// Result of forward (T, H).
    pub out: &'a [E],
    /// Log-sum-exp of forward (heads, T).
    pub lse: &'a [f32],
    /// Gradient of the result (T, H).
    pub dout: &'a [E],
    /// Set to the gradient of qkv (T, 3 H).
    pub dqkv: &'a mut [E],
    /// Gradients of the tables are added here; needed where `relative` is given.
    pub drelative: Option<RelativeGrad<'a>>,
}

/// Gradients of the relative tables, in f32, rows H apart. A table whose term is absent may be empty.
pub struct RelativeGrad<'a> {
    /// Gradient of `Relative::keys` (P, H).
    pub keys: &'a mut [f32],
    /// Gradient of `Relative::queries` (P, H).
    pub queries: &'a mut [f32],
}

/// The outputs that tasks share by columns.
struct Sinks<'a, E> {
    out: &'a [E],
    lse: &'a [f32],
    dout: &'a [E],
    dqkv: SharedMut<'a, E>,
    keys: SharedMut<'a, f32>,
    queries: SharedMut<'a, f32>,
}

/// Sets dqkv and adds to the gradients of the relative tables.
pub fn backward<E: Element>(pool: &Pool, b: Backward<'_, E>) {
    check_common(&b.shape, b.qkv, b.relative.as_ref(), b.dropout.as_ref());
    let (shape, tokens, hidden) = (b.shape, b.shape.tokens(), b.shape.hidden());
    assert_eq!(b.dqkv.len(), b.qkv.len(), "dqkv must be as long as qkv");
    assert_eq!(b.out.len(), tokens * hidden, "out must be (T, H) = ({tokens}, {hidden})");
    assert_eq!(b.dout.len(), tokens * hidden, "dout must be (T, H) = ({tokens}, {hidden})");
    assert_eq!(b.lse.len(), shape.heads * tokens, "lse must be (heads, T) = ({}, {tokens})", shape.heads);
    let (keys, queries): (&mut [f32], &mut [f32]) = match b.drelative {
        Some(g) => (g.keys, g.queries),
        None => (&mut [], &mut []),
    };
    check_tables(b.relative.as_ref(), hidden, keys.len(), queries.len());
    let plans = plans(&shape, b.relative.as_ref());
    let source = Source {
        pool,
        shape,
        qkv: b.qkv,
        relative: b.relative.as_ref(),
        scale: b.scale,
        dropout: b.dropout.as_ref(),
    };
    let sinks = Sinks {
        out: b.out,
        lse: b.lse,
        dout: b.dout,
        dqkv: SharedMut::new(b.dqkv),
        keys: SharedMut::new(keys),
        queries: SharedMut::new(queries),
    };
    let one = |row: usize, head: usize| {
        let at = shape.row(row);
        if at.1 > 0 {
            tile::with(|t| differentiate(&source, &sinks, t, plans[at.1].as_ref(), at, head));
        }
    };
    if source.relative.is_some() {
        pool.run(shape.heads, |head| (0..shape.rows()).for_each(|row| one(row, head)));
    } else {
        pool.run(shape.rows() * shape.heads, |task| one(task / shape.heads, task % shape.heads));
    }
}

fn check_tables<E>(relative: Option<&Relative<'_, E>>, hidden: usize, keys: usize, queries: usize) {
    if let Some(r) = relative {
        let last = (r.slots.iter().max().map_or(0, |&s| s as usize) + 1) * hidden;
        assert!(!r.terms.c2p() || keys >= last, "drelative.keys ends before the highest slot");
        assert!(!r.terms.p2c() || queries >= last, "drelative.queries ends before the highest slot");
    }
}

/// All gradients of one sequence and head.
fn differentiate<E: Element>(
    source: &Source<'_, E>,
    sinks: &Sinks<'_, E>,
    t: &mut Tiles,
    plan: Option<&Plan>,
    (first, n): (usize, usize),
    head: usize,
) {
    let (d, isa) = (source.shape.head_dim, source.pool.isa());
    source.load(t, (first, n), head);
    let at = source.scores(t, plan, n, head);
    score_gradient(source, sinks, t, at, first, head);
    let Tiles { q, k, v, dq, dk, scores, c2p, .. } = &mut *t;
    let (q, k) = (Mat::new(&q[..n * d], n, d), Mat::new(&k[..n * d], n, d));
    // dV was left in `v`.
    store_rows(source, sinks, &v[..n * d], 2, (first, n), head, 1.0);
    let buffer = if at.in_c2p { &*c2p } else { &*scores };
    let place = at.place;
    let ds = Mat { data: &buffer[place.base..], rows: n, cols: n, row_stride: place.stride, col_stride: 1 };
    product(isa, ds, k, MatMut { data: sized(dq, n * d), row_stride: d }, Store::SET);
    product(isa, ds.t(), q, MatMut { data: sized(dk, n * d), row_stride: d }, Store::SET);
    if let (Some(r), Some(plan)) = (source.relative, plan) {
        // p2c first: it reads the gradient of the scores that c2p clears around.
        if r.terms.p2c() {
            position_to_content(source, sinks, t, plan, at, head);
        }
        if r.terms.c2p() {
            content_to_position(source, sinks, t, plan, at, head);
        }
    }
    store_rows(source, sinks, &t.dq[..n * d], 0, (first, n), head, source.scale);
    store_rows(source, sinks, &t.dk[..n * d], 1, (first, n), head, 1.0);
}

/// Scores become their gradient in place; dV replaces V.
fn score_gradient<E: Element>(
    source: &Source<'_, E>,
    sinks: &Sinks<'_, E>,
    t: &mut Tiles,
    at: Scores,
    first: usize,
    head: usize,
) {
    let (n, d, hidden) = (at.place.n, source.shape.head_dim, source.shape.hidden());
    let isa = source.pool.isa();
    let columns = Block { row_stride: hidden, from: first * hidden + head * d, cols: d };
    let dout = sized(&mut t.dq, n * d);
    tile::load(source.pool, sinks.dout, columns, 0..n, 1.0, dout);
    let out = sized(&mut t.o, n * d);
    tile::load(source.pool, sinks.out, columns, 0..n, 1.0, out);
    let dp = sized(&mut t.dp, n * n);
    let dout_mat = Mat::new(&*dout, n, d);
    product(
        isa,
        dout_mat,
        Mat::new(&t.v[..n * d], n, d).t(),
        MatMut { data: &mut *dp, row_stride: n },
        Store::SET,
    );
    let from = head * source.shape.tokens() + first;
    let step = SoftmaxGrad {
        scores: if at.in_c2p { &mut t.c2p } else { &mut t.scores },
        place: at.place,
        dp: &mut *dp,
        masks: source.masks(first, head),
        lse: &sinks.lse[from..from + n],
        dout,
        out,
    };
    dispatch(isa, step);
    let probs = Mat::new(&*dp, n, n);
    product(
        isa,
        probs.t(),
        Mat::new(&*dout, n, d),
        MatMut { data: &mut t.v[..n * d], row_stride: d },
        Store::SET,
    );
}

/// dQ += dC2P Kr, and the gradient of Kr.
fn content_to_position<E: Element>(
    source: &Source<'_, E>,
    sinks: &Sinks<'_, E>,
    t: &mut Tiles,
    plan: &Plan,
    at: Scores,
    head: usize,
) {
    let (n, m, d) = (plan.n, plan.m, source.shape.head_dim);
    let isa = source.pool.isa();
    let dc2p = sized(&mut t.c2p, n * m);
    if at.in_c2p {
        clear_outside(plan, dc2p);
    } else {
        dispatch(isa, ScatterRows { plan, dscores: &t.scores[..n * n], dc2p: &mut *dc2p });
    }
    let dc2p = Mat::new(&*dc2p, n, m);
    let kr = Mat::new(&t.kr[..m * d], m, d);
    product(isa, dc2p, kr, MatMut { data: &mut t.dq[..n * d], row_stride: d }, Store::ADD);
    let dr = sized(&mut t.dr, m * d);
    product(
        isa,
        dc2p.t(),
        Mat::new(&t.q[..n * d], n, d),
        MatMut { data: &mut *dr, row_stride: d },
        Store::SET,
    );
    add_to_table(source, &sinks.keys, plan, dr, head);
}

/// dK += dP2C Qr, and the gradient of Qr.
fn position_to_content<E: Element>(
    source: &Source<'_, E>,
    sinks: &Sinks<'_, E>,
    t: &mut Tiles,
    plan: &Plan,
    at: Scores,
    head: usize,
) {
    let (n, m, d) = (plan.n, plan.m, source.shape.head_dim);
    let isa = source.pool.isa();
    let dscores = if at.in_c2p { &t.c2p } else { &t.scores };
    let dp2c = sized(&mut t.p2c, n * m);
    dispatch(isa, ScatterColumns { plan, dscores, place: at.place, dp2c: &mut *dp2c });
    let dp2c = Mat::new(&*dp2c, n, m);
    let qr = Mat::new(&t.qr[..m * d], m, d);
    product(isa, dp2c, qr, MatMut { data: &mut t.dk[..n * d], row_stride: d }, Store::ADD);
    let dr = sized(&mut t.dr, m * d);
    let store = Store { write: Write::Set, factor: source.scale };
    product(isa, dp2c.t(), Mat::new(&t.k[..n * d], n, d), MatMut { data: &mut *dr, row_stride: d }, store);
    add_to_table(source, &sinks.queries, plan, dr, head);
}

/// Adds the gradient of the used slots to this head's columns of a table.
fn add_to_table<E>(source: &Source<'_, E>, table: &SharedMut<'_, f32>, plan: &Plan, dr: &[f32], head: usize) {
    let (d, hidden) = (source.shape.head_dim, source.shape.heads * source.shape.head_dim);
    for (slot, dr) in plan.slots().zip(dr.chunks(d)) {
        let at = slot * hidden + head * d;
        // SAFETY: with relative terms a head's columns belong to the one task of that head.
        let row = unsafe { table.range(at..at + d) };
        row.iter_mut().zip(dr).for_each(|(r, x)| *r += x);
    }
}

/// Writes a tile to a column block (0 queries, 1 keys, 2 values) of dqkv.
fn store_rows<E: Element>(
    source: &Source<'_, E>,
    sinks: &Sinks<'_, E>,
    tile: &[f32],
    which: usize,
    (first, n): (usize, usize),
    head: usize,
    factor: f32,
) {
    let (d, hidden) = (source.shape.head_dim, source.shape.hidden());
    let target =
        Block { from: first * 3 * hidden + which * hidden + head * d, row_stride: 3 * hidden, cols: d };
    // SAFETY: the columns of this head in the rows of this sequence belong to this task alone.
    unsafe { tile::store(source.pool, &tile[..n * d], factor, &sinks.dqkv, target) };
}
