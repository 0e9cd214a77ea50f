//! Rows of a table by index, and the gradient of that.

use crate::element::Element;
use crate::gemm::Write;
use crate::isa::{Kernel, Simd, dispatch};
use crate::pool::{BLOCK, Pool, row_block};

struct Row<'a, A, B> {
    x: &'a [A],
    y: &'a mut [B],
    write: Write,
}
impl<A: Element, B: Element> Kernel for Row<'_, A, B> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let pairs = self.y.iter_mut().zip(self.x);
        match self.write {
            Write::Set => pairs.for_each(|(y, x)| *y = B::from_f32(x.to_f32())),
            Write::Add => pairs.for_each(|(y, x)| *y = B::from_f32(y.to_f32() + x.to_f32())),
        }
    }
}

/// `y[t] (+)= table[ids[t]]`; table (rows, cols), y (T, cols).
///
/// # Panics
/// If an id is outside of the table.
pub fn gather_add<E: Element>(pool: &Pool, cols: usize, table: &[E], ids: &[u32], write: Write, y: &mut [E]) {
    assert_eq!(y.len(), ids.len() * cols, "y must be (T, cols) = ({}, {cols})", ids.len());
    if y.is_empty() {
        return;
    }
    assert_eq!(table.len() % cols, 0, "table must be (rows, {cols})");
    let block = row_block(cols);
    pool.each(ids.chunks(block).zip(y.chunks_mut(block * cols)), |(ids, y)| {
        for (&id, y) in ids.iter().zip(y.chunks_mut(cols)) {
            let at = id as usize * cols;
            assert!(at < table.len(), "id {id} is outside of a table of {} rows", table.len() / cols);
            dispatch(pool.isa(), Row { x: &table[at..at + cols], y, write });
        }
    });
}

/// One row of the gradient, or some columns of it, and all that is added to it.
struct Part<'a> {
    /// (id, token), all of one id, in the order of tokens.
    tokens: &'a [(u32, u32)],
    /// First column.
    column: usize,
    target: &'a mut [f32],
}

impl Part<'_> {
    /// Elements of dy that it reads.
    fn cost(&self) -> usize {
        self.tokens.len() * self.target.len()
    }
}

/// Columns of a part whose id is very common: a line of bf16, two of f32.
const NARROW: usize = 32;
/// Columns summed in registers while the tokens go by.
const STRIPE: usize = 64;

struct Sum<'p, 'a, E> {
    part: &'p mut Part<'a>,
    cols: usize,
    dy: &'p [E],
}
impl<E: Element> Kernel for Sum<'_, '_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Part { tokens, column, target } = self.part;
        let rows = tokens.iter().map(|&(_, t)| t as usize * self.cols + *column);
        let mut stripes = target.chunks_exact_mut(STRIPE);
        let mut at = 0;
        for stripe in &mut stripes {
            let mut sums = [0.0_f32; STRIPE];
            sums.copy_from_slice(stripe);
            for row in rows.clone() {
                let dy = &self.dy[row + at..][..STRIPE];
                for (sum, x) in sums.iter_mut().zip(dy) {
                    *sum += x.to_f32();
                }
            }
            stripe.copy_from_slice(&sums);
            at += STRIPE;
        }
        let rest = stripes.into_remainder();
        for row in rows {
            let dy = &self.dy[row + at..][..rest.len()];
            for (sum, x) in rest.iter_mut().zip(dy) {
                *sum += x.to_f32();
            }
        }
    }
}

/// Cuts the gradient into parts of which each is one task's alone. A row with many tokens is cut by columns, so that a
/// table of few ids (token types, or the token that begins every row) is still spread over threads.
fn parts<'a>(cols: usize, order: &'a [(u32, u32)], dtable: &'a mut [f32]) -> Vec<Part<'a>> {
    let mut parts = Vec::with_capacity(order.len());
    let mut rest = dtable;
    let mut next_row = 0;
    for tokens in order.chunk_by(|a, b| a.0 == b.0) {
        let row = tokens[0].0 as usize;
        let (target, tail) = rest[(row - next_row) * cols..].split_at_mut(cols);
        (rest, next_row) = (tail, row + 1);
        let width = (BLOCK / tokens.len()).next_multiple_of(NARROW);
        let columns = (0..).step_by(width).zip(target.chunks_mut(width));
        parts.extend(columns.map(|(column, target)| Part { tokens, column, target }));
    }
    parts
}

/// Joins small parts: one hand-over per row would cost more than the row.
fn bundles<'p, 'a>(mut parts: &'p mut [Part<'a>]) -> Vec<&'p mut [Part<'a>]> {
    let mut bundles = Vec::new();
    while !parts.is_empty() {
        let mut cost = 0;
        let enough = parts.iter().position(|part| {
            cost += part.cost();
            cost >= BLOCK
        });
        let (bundle, tail) = parts.split_at_mut(enough.map_or(parts.len(), |last| last + 1));
        bundles.push(bundle);
        parts = tail;
    }
    bundles
}

/// `dtable[ids[t]] += dy[t]`; dtable (rows, cols) in f32, dy (T, cols).
///
/// Each row's sum runs in the order of t, whatever the number of threads. Rows without a token are not touched.
///
/// # Panics
/// If an id is outside of the table.
pub fn scatter_add<E: Element>(pool: &Pool, cols: usize, ids: &[u32], dy: &[E], dtable: &mut [f32]) {
    assert_eq!(dy.len(), ids.len() * cols, "dy must be (T, cols) = ({}, {cols})", ids.len());
    if dy.is_empty() {
        return;
    }
    assert_eq!(dtable.len() % cols, 0, "dtable must be (rows, {cols})");
    let mut order: Vec<(u32, u32)> = ids.iter().zip(0..).map(|(&id, t)| (id, t)).collect();
    order.sort_unstable();
    let last = order[order.len() - 1].0 as usize;
    assert!(last * cols < dtable.len(), "id {last} is outside of a table of {} rows", dtable.len() / cols);
    let mut parts = parts(cols, &order, dtable);
    pool.each(bundles(&mut parts).into_iter(), |bundle| {
        for part in bundle {
            dispatch(pool.isa(), Sum { part, cols, dy });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(cols: usize, rows: usize, ids: &[u32]) -> Vec<usize> {
        let mut order: Vec<(u32, u32)> = ids.iter().zip(0..).map(|(&id, t)| (id, t)).collect();
        order.sort_unstable();
        let mut table = vec![0.0; rows * cols];
        let mut parts = parts(cols, &order, &mut table);
        bundles(&mut parts).iter().map(|b| b.iter().map(Part::cost).sum()).collect()
    }

    #[test]
    fn a_common_id_does_not_make_one_long_task() {
        let (tokens, cols) = (4096, 1024);
        let types = tasks(cols, 2, &vec![0; tokens]);
        assert_eq!(types, vec![tokens * NARROW; cols / NARROW], "every token has the same type");
        let mut ids: Vec<u32> = (0..tokens as u32).collect();
        ids[1000..3000].fill(7);
        let costs = tasks(cols, tokens, &ids);
        assert_eq!(costs.iter().sum::<usize>(), tokens * cols);
        assert!(*costs.iter().max().expect("tasks") <= 2000 * NARROW + BLOCK, "{costs:?}");
        assert!(costs.len() <= tokens * cols / BLOCK + 1, "{} tasks", costs.len());
    }
}
