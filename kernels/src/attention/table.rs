//! Gradients of the relative tables: sums over all sequences, made of one sum per task.
//!
//! With one group of sequences a task adds to its head's columns of the tables; with more, each leaves its sum in a
//! buffer of a bounded size, and the buffers are added in the order of the groups, whatever thread made them.

use std::cell::Cell;

use super::relative::Span;
use super::scratch::Table;
use super::{Relative, Shape};
use crate::pool::{Pool, SharedMut};

/// Gradients of the relative tables, in f32, rows H apart. A table whose term is absent may be empty.
pub struct RelativeGrad<'a> {
    /// Gradient of `Relative::keys` (P, H).
    pub keys: &'a mut [f32],
    /// Gradient of `Relative::queries` (P, H).
    pub queries: &'a mut [f32],
}

/// Most bytes of all sums of tasks together.
const SUMS_BYTES: usize = 12 << 20;

thread_local! {
    /// The sums of the last call from this thread, for the next: fresh pages would cost more than the additions.
    static SUMS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Sizes of the sums.
#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    head_dim: usize,
    /// Slots in use: the lowest and how many.
    lowest: usize,
    count: usize,
}

impl Sizes {
    fn new<E>(r: &Relative<'_, E>, shape: &Shape<'_>, longest: usize) -> Self {
        let middle = r.slots.len() / 2;
        let used = &r.slots[middle + 1 - longest.max(1)..middle + longest.max(1)];
        let lowest = used.iter().min().map_or(0, |&s| s as usize);
        let highest = used.iter().max().map_or(0, |&s| s as usize);
        Self { heads: shape.heads, head_dim: shape.head_dim, lowest, count: highest + 1 - lowest }
    }

    /// Elements of one table's sum for one task.
    fn one(self) -> usize {
        self.count * self.head_dim
    }

    /// Elements of the sums of a group: all heads, both tables.
    fn group(self) -> usize {
        2 * self.heads * self.one()
    }
}

/// How many groups of sequences a call may have, for the sums of all tasks to stay within their bound.
pub(super) fn most_groups<E>(r: &Relative<'_, E>, shape: &Shape<'_>, longest: usize) -> usize {
    (SUMS_BYTES / size_of::<f32>() / Sizes::new(r, shape, longest).group()).max(1)
}

/// Lends a buffer for the sums of `groups`; none is needed for one.
pub(super) fn with_sums<R>(groups: usize, size: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let len = if groups > 1 { groups * size } else { 0 };
    let mut buffer = SUMS.take();
    if buffer.len() < len {
        buffer = vec![0.0; len];
    }
    let result = f(&mut buffer[..len]);
    SUMS.set(buffer);
    result
}

/// The tables and the sums on their way to them.
pub(super) struct TableSums<'a, E> {
    relative: &'a Relative<'a, E>,
    sizes: Sizes,
    groups: usize,
    tables: [SharedMut<'a, f32>; 2],
    sums: SharedMut<'a, f32>,
}

impl<'a, E: Sync> TableSums<'a, E> {
    /// Elements of the sums of a group.
    pub(super) fn group_len(r: &Relative<'_, E>, shape: &Shape<'_>, longest: usize) -> usize {
        Sizes::new(r, shape, longest).group()
    }

    /// Checks the tables; `sums` is what [`with_sums`] lends for these groups.
    pub(super) fn new(
        relative: &'a Relative<'a, E>,
        (shape, longest): (&Shape<'_>, usize),
        gradient: Option<RelativeGrad<'a>>,
        groups: usize,
        sums: &'a mut [f32],
    ) -> Self {
        let (keys, queries): (&mut [f32], &mut [f32]) = match gradient {
            Some(g) => (g.keys, g.queries),
            None => (&mut [], &mut []),
        };
        let last = (relative.slots.iter().max().map_or(0, |&s| s as usize) + 1) * shape.hidden();
        let terms = relative.terms;
        assert!(!terms.c2p() || keys.len() >= last, "drelative.keys ends before the highest slot");
        assert!(!terms.p2c() || queries.len() >= last, "drelative.queries ends before the highest slot");
        let sizes = Sizes::new(relative, shape, longest);
        let tables = [SharedMut::new(keys), SharedMut::new(queries)];
        Self { relative, sizes, groups, tables, sums: SharedMut::new(sums) }
    }

    fn has(&self, table: usize) -> bool {
        if table == 0 { self.relative.terms.c2p() } else { self.relative.terms.p2c() }
    }

    /// Index of a row of a table.
    fn row(&self, slot: usize, head: usize) -> std::ops::Range<usize> {
        let Sizes { heads, head_dim, .. } = self.sizes;
        let at = (slot * heads + head) * head_dim;
        at..at + head_dim
    }

    /// Index of a task's sum for a table.
    fn sum(&self, group: usize, head: usize, table: usize) -> std::ops::Range<usize> {
        let at = ((group * self.sizes.heads + head) * 2 + table) * self.sizes.one();
        at..at + self.sizes.one()
    }

    /// Takes the gradients by distance of a task, which calls this once.
    pub(super) fn collect(&self, t: &Table, span: Span, (group, head): (usize, usize), scale: f32) {
        let d = self.sizes.head_dim;
        for (table, gradient, factor) in [(0, &t.dkr, 1.0), (1, &t.dqr, scale)] {
            if !self.has(table) {
                continue;
            }
            let add = |y: &mut [f32], x: &[f32]| y.iter_mut().zip(x).for_each(|(y, x)| *y += x * factor);
            if self.groups == 1 {
                span.by_slot(self.relative, gradient.all(), d, |slot, x| {
                    // SAFETY: with one group a head's columns belong to the one task of that head.
                    add(unsafe { self.tables[table].range(self.row(slot, head)) }, x);
                });
            } else {
                // SAFETY: the range belongs to this group and head, that is to this task.
                let sum = unsafe { self.sums.range(self.sum(group, head, table)) };
                sum.fill(0.0);
                span.by_slot(self.relative, gradient.all(), d, |slot, x| {
                    add(&mut sum[(slot - self.sizes.lowest) * d..][..d], x);
                });
            }
        }
    }

    /// Adds the sums of all groups to the tables, after all tasks.
    pub(super) fn finish(&self, pool: &Pool) {
        if self.groups == 1 {
            return;
        }
        let d = self.sizes.head_dim;
        pool.run(2 * self.sizes.heads, |task| {
            let (head, table) = (task / 2, task % 2);
            if !self.has(table) {
                return;
            }
            for group in 0..self.groups {
                // SAFETY: the tasks that wrote the sums have ended, and this one alone reads this head's of this table.
                let sum = unsafe { self.sums.range(self.sum(group, head, table)) };
                for (slot, x) in (self.sizes.lowest..).zip(sum.chunks_exact(d)) {
                    // SAFETY: this head's columns of this table belong to this task.
                    let y = unsafe { self.tables[table].range(self.row(slot, head)) };
                    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
                }
            }
        });
    }
}
