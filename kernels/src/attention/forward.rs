//! Forward pass: a task is some blocks of queries and some heads.

use super::block::{Part, Source, Unit};
use super::product::{Product, View};
use super::relative::Span;
use super::rows::{self, Spot};
use super::scratch::{self, Scratch, padded};
use super::softmax::Softmax;
use super::tasks::{Queries, Task, blocks, runs, sequences, share, tasks};
use super::{Relative, Shape, check_common};
use crate::dropout::Dropout;
use crate::element::Element;
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

/// out = dropout(softmax(scores)) V for every sequence and head.
pub fn forward<E: Element>(pool: &Pool, f: Forward<'_, E>) {
    check_common(&f.shape, f.qkv, f.relative.as_ref(), f.dropout.as_ref());
    let (shape, tokens, hidden) = (f.shape, f.shape.tokens(), f.shape.hidden());
    assert_eq!(f.out.len(), tokens * hidden, "out must be (T, H) = ({tokens}, {hidden})");
    assert_eq!(f.lse.len(), shape.heads * tokens, "lse must be (heads, T) = ({}, {tokens})", shape.heads);
    let source = Source {
        isa: pool.isa(),
        shape,
        qkv: f.qkv,
        relative: f.relative.as_ref(),
        scale: f.scale,
        dropout: f.dropout.as_ref(),
    };
    let units: Vec<Queries> = sequences(&shape).into_iter().flat_map(blocks).collect();
    let tasks = tasks(&units, |u| (u.rows, u.n), shape.heads, source.relative.is_some(), usize::MAX);
    let sinks = Sinks { out_spot: Spot::of(f.out), out: SharedMut::new(f.out), lse: SharedMut::new(f.lse) };
    pool.run(tasks.len(), |task| scratch::with(|t| run_task(&source, &sinks, t, (&tasks, task, &units))));
}

/// What a task writes.
struct Sinks<'a, E> {
    out: SharedMut<'a, E>,
    out_spot: Spot,
    lse: SharedMut<'a, f32>,
}

/// Some blocks of some heads, of one with relative terms.
fn run_task<E: Element>(
    source: &Source<'_, E>,
    sinks: &Sinks<'_, E>,
    t: &mut Scratch,
    (tasks, task, units): (&[Task], usize, &[Queries]),
) {
    let turns = runs(tasks, task, units, |a, b| a.first == b.first);
    let task = &tasks[task];
    let span = Span::of(units[task.units.clone()].iter().map(|u| u.n).max().unwrap_or(0));
    if let Some(r) = source.relative {
        for (table, head) in t.tables.iter_mut().zip(task.heads.clone()) {
            span.load(source.isa, table, r, (&source.shape, head), source.scale);
        }
    }
    for ((blocks, head), next) in turns {
        let Queries { first, n, .. } = blocks[0];
        load(source, t, (first, n), head);
        for (i, &u) in blocks.iter().enumerate() {
            if let Some((next, head)) = next {
                let rows = share((next[0].first, next[0].n), i, blocks.len());
                source.prefetch_parts(Spot::of(source.qkv), rows, head);
                sinks.out_spot.prefetch::<E>(source.head(rows.0, head), rows.1);
            }
            let token = first + u.from;
            let at = head * source.shape.tokens() + token;
            let unit = Unit { queries: u, head, span, table: head - task.heads.start };
            // SAFETY: these queries of this head belong to this task alone, and so does their range of lse.
            attend(source, t, unit, unsafe { sinks.lse.range(at..at + u.rows) });
            let o = (&t.o.all()[..u.rows * source.stride()], source.stride());
            // SAFETY: the columns of this head in the rows of these queries belong to this task alone.
            unsafe { rows::store(source.isa, o, 1.0, &sinks.out, source.head(token, head)) };
        }
    }
}

/// Loads keys and values of a sequence.
fn load<E: Element>(source: &Source<'_, E>, t: &mut Scratch, (first, n): (usize, usize), head: usize) {
    source.load_keys(t, (first, n), head);
    let v = t.v.sized(padded(n) * source.stride());
    source.load(source.qkv, source.part(Part::Values, first, head), (n, 1.0), v);
}

/// Leaves the output of a block of queries in `t.o`.
fn attend<E: Element>(source: &Source<'_, E>, t: &mut Scratch, unit: Unit, lse: &mut [f32]) {
    let (u, place) = (unit.queries, source.scores(t, unit));
    let masks = source.masks(u.first + u.from, unit.head);
    let scores = t.scores.sized((u.rows + 2 * scratch::MARGIN) * place.stride);
    dispatch(source.isa, Softmax { scores: &mut *scores, place, masks, lse });
    let stride = source.stride();
    let product = Product {
        a: View::rows(&scores[place.base..], place.stride),
        band: None,
        b: t.v.all(),
        b_stride: stride,
        c: t.o.sized(u.rows * stride),
        c_stride: stride,
        size: (u.rows, u.n, stride),
        add: false,
    };
    dispatch(source.isa, product);
}
