//! Backward pass: probabilities are recomputed from the log-sum-exp. A task is some sequences and some heads.
//!
//! A task owns the gradients of its sequences. Those of the relative rows are sums over all sequences: each task
//! leaves its own sum, over the slots in use, and these are added in the order of the tasks.

use super::block::{Part, Source, Unit};
use super::gradients;
use super::product::{Product, View};
use super::relative::Span;
use super::rows::{self, Spot};
use super::scratch::{self, MARGIN, Scratch, padded, row_stride};
use super::softmax::{Place, SoftmaxGrad};
use super::table::{RelativeGrad, TableSums, most_groups, with_sums};
use super::tasks::{Task, blocks, runs, sequences, share, tasks};
use super::{Relative, Shape, check_common};
use crate::dropout::Dropout;
use crate::element::Element;
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

/// What a task reads beside the source, and writes.
struct Sinks<'a, E> {
    out: &'a [E],
    lse: &'a [f32],
    dout: &'a [E],
    dqkv: SharedMut<'a, E>,
    dqkv_spot: Spot,
}

/// Sets dqkv and adds to the gradients of the relative tables.
pub fn backward<E: Element>(pool: &Pool, b: Backward<'_, E>) {
    check_common(&b.shape, b.qkv, b.relative.as_ref(), b.dropout.as_ref());
    let (shape, tokens, hidden) = (b.shape, b.shape.tokens(), b.shape.hidden());
    assert_eq!(b.dqkv.len(), b.qkv.len(), "dqkv must be as long as qkv");
    assert_eq!(b.out.len(), tokens * hidden, "out must be (T, H) = ({tokens}, {hidden})");
    assert_eq!(b.dout.len(), tokens * hidden, "dout must be (T, H) = ({tokens}, {hidden})");
    assert_eq!(b.lse.len(), shape.heads * tokens, "lse must be (heads, T) = ({}, {tokens})", shape.heads);
    let source = Source {
        isa: pool.isa(),
        shape,
        qkv: b.qkv,
        relative: b.relative.as_ref(),
        scale: b.scale,
        dropout: b.dropout.as_ref(),
    };
    let all = sequences(&shape);
    let longest = all.iter().map(|s| s.1).max().unwrap_or(0);
    let most = source.relative.map_or(usize::MAX, |r| most_groups(r, &shape, longest));
    let tasks = tasks(&all, |s| (s.1, s.1), shape.heads, source.relative.is_some(), most);
    let groups = tasks.last().map_or(0, |t| t.group + 1);
    let sinks = Sinks {
        out: b.out,
        lse: b.lse,
        dout: b.dout,
        dqkv_spot: Spot::of(b.dqkv),
        dqkv: SharedMut::new(b.dqkv),
    };
    let size = source.relative.map_or(0, |r| TableSums::group_len(r, &shape, longest));
    with_sums(groups, size, |buffer| {
        let sums = source.relative.map(|r| TableSums::new(r, (&shape, longest), b.drelative, groups, buffer));
        pool.run(tasks.len(), |task| {
            scratch::with(|t| run_task(&source, &sinks, t, (&tasks, task, &all), sums.as_ref()));
        });
        if let Some(sums) = &sums {
            sums.finish(pool);
        }
    });
}

/// Some sequences of some heads, of one with relative terms.
fn run_task<E: Element>(
    source: &Source<'_, E>,
    sinks: &Sinks<'_, E>,
    t: &mut Scratch,
    (tasks, task, sequences): (&[Task], usize, &[(usize, usize)]),
    sums: Option<&TableSums<'_, E>>,
) {
    let turns = runs(tasks, task, sequences, |_, _| false);
    let task = &tasks[task];
    let span = Span::of(sequences[task.units.clone()].iter().map(|s| s.1).max().unwrap_or(0));
    if let Some(r) = source.relative {
        for (table, head) in t.tables.iter_mut().zip(task.heads.clone()) {
            span.load(source.isa, table, r, (&source.shape, head), source.scale);
            span.clear(table, r, source.shape.head_dim);
        }
    }
    for ((sequence, head), next) in turns {
        let next = next.map(|(next, head)| (next[0], head));
        let table = head - task.heads.start;
        differentiate(source, sinks, t, (sequence[0], next), (head, table, span));
    }
    if let Some(sums) = sums {
        for (table, head) in t.tables.iter().zip(task.heads.clone()) {
            sums.collect(table, span, (task.group, head), source.scale);
        }
    }
}

/// Asks for what some rows of a head read and write.
fn prefetch<E: Element>(source: &Source<'_, E>, sinks: &Sinks<'_, E>, rows: (usize, usize), head: usize) {
    source.prefetch_parts(Spot::of(source.qkv), rows, head);
    source.prefetch_parts(sinks.dqkv_spot, rows, head);
    Spot::of(sinks.dout).prefetch::<E>(source.head(rows.0, head), rows.1);
    Spot::of(sinks.out).prefetch::<E>(source.head(rows.0, head), rows.1);
}

/// A sequence, and the one that comes next with its head.
type Turn = ((usize, usize), Option<((usize, usize), usize)>);

/// All gradients of one sequence and head.
fn differentiate<E: Element>(
    source: &Source<'_, E>,
    sinks: &Sinks<'_, E>,
    t: &mut Scratch,
    ((first, n), next): Turn,
    (head, table, span): (usize, usize, Span),
) {
    let stride = source.stride();
    source.load_keys(t, (first, n), head);
    let v = t.v.sized(padded(n) * stride);
    source.load(source.qkv, source.part(Part::Values, first, head), (n, 1.0), v);
    source.transpose(v, n, t.vt.sized(stride * row_stride(n)));
    for (i, queries) in blocks((first, n)).enumerate() {
        if let Some((next, head)) = next {
            prefetch(source, sinks, share(next, i, n.div_ceil(scratch::BLOCK)), head);
        }
        let unit = Unit { queries, head, span, table };
        let place = score_gradient(source, sinks, t, unit);
        gradients::spread(source, t, unit, place);
        let dq = &t.dq.all()[..queries.rows * stride];
        let block = source.part(Part::Queries, first + queries.from, head);
        // SAFETY: the columns of this head in the rows of this sequence belong to this task alone.
        unsafe { rows::store(source.isa, (dq, stride), source.scale, &sinks.dqkv, block) };
    }
    for (part, tile) in [(Part::Keys, &t.dk), (Part::Values, &t.dv)] {
        let block = source.part(part, first, head);
        // SAFETY: as for the queries.
        unsafe { rows::store(source.isa, (&tile.all()[..n * stride], stride), 1.0, &sinks.dqkv, block) };
    }
}

/// Scores of a block become their gradient; `t.dp` receives the dropped probabilities.
fn score_gradient<E: Element>(
    source: &Source<'_, E>,
    sinks: &Sinks<'_, E>,
    t: &mut Scratch,
    unit: Unit,
) -> Place {
    let Unit { queries: u, head, .. } = unit;
    let place = source.scores(t, unit);
    let (stride, token) = (source.stride(), u.first + u.from);
    let dout = t.dout.sized(u.rows * stride);
    source.load(sinks.dout, source.head(token, head), (u.rows, 1.0), dout);
    let out = t.o.sized(u.rows * stride);
    source.load(sinks.out, source.head(token, head), (u.rows, 1.0), out);
    let dp = t.dp.sized(u.rows * place.stride);
    let product = Product {
        a: View::rows(dout, stride),
        band: None,
        b: t.vt.all(),
        b_stride: row_stride(u.n),
        c: &mut *dp,
        c_stride: place.stride,
        size: (u.rows, source.shape.head_dim, padded(u.n)),
        add: false,
    };
    dispatch(source.isa, product);
    let from = head * source.shape.tokens() + token;
    let step = SoftmaxGrad {
        scores: t.scores.sized((u.rows + 2 * MARGIN) * place.stride),
        place,
        dp,
        masks: source.masks(token, head),
        lse: &sinks.lse[from..from + u.rows],
        dout,
        out,
        columns: (source.shape.head_dim, stride),
    };
    dispatch(source.isa, step);
    place
}
