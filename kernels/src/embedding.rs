//! Rows of a table by index, and the gradient of that.

use crate::element::Element;
use crate::gemm::Write;
use crate::isa::{Kernel, Simd, dispatch};
use crate::pool::{Pool, row_block};

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

/// Columns of one task: a table with few distinct ids (token types) is still spread over threads.
const COLUMN_BLOCK: usize = 256;

/// `dtable[ids[t]] += dy[t]`; dtable (rows, cols) in f32, dy (T, cols).
///
/// Each row's sum runs in the order of t, whatever the number of threads.
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
    let mut parts = Vec::with_capacity(order.len());
    let mut rest = dtable;
    let mut next_row = 0;
    for group in order.chunk_by(|a, b| a.0 == b.0) {
        let row = group[0].0 as usize;
        let (_, tail) = rest.split_at_mut((row - next_row) * cols);
        let (target, tail) = tail.split_at_mut(cols);
        (rest, next_row) = (tail, row + 1);
        for (b, target) in target.chunks_mut(COLUMN_BLOCK).enumerate() {
            parts.push((group, b * COLUMN_BLOCK, target));
        }
    }
    // Several ids per task: one hand-over per row would cost more than the row.
    let mut bundles = parts.chunks_mut(16);
    pool.each(&mut bundles, |bundle| {
        for (group, column, target) in bundle {
            for &(_, t) in group.iter() {
                let at = t as usize * cols + *column;
                let x = &dy[at..at + target.len()];
                dispatch(pool.isa(), Row { x, y: target, write: Write::Add });
            }
        }
    });
}
