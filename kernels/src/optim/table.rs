//! The optimizer on a table few of whose rows ever have a gradient, such as the word embeddings in fine-tuning.
//!
//! A row whose moments are zero and whose gradient is zero only decays, which AdamW writes as `w = w * keep - 0`: the
//! same bits come from `w * keep` alone. Most of a large vocabulary is such rows, and few of them are read in a step. So
//! an update only notes its `keep`, and a row is multiplied by all that it owes, one after the other, before it is read:
//! the same bits again, without a pass over the table in every step.

use super::{AdamW, Arenas, Derived, SumSquares, Update};
use crate::element::Element;
use crate::isa::{Isa, Kernel, Simd, dispatch};
use crate::pool::{BLOCK, Pool};

/// Rows of a table that have had a gradient since the start of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRows {
    words: Vec<u64>,
    rows: usize,
}

impl LiveRows {
    /// None of `rows` rows.
    pub fn none(rows: usize) -> Self {
        Self { words: vec![0; rows.div_ceil(64)], rows }
    }

    /// The rows whose moments are not all zero; `(rows, width)` each.
    pub fn of_moments(pool: &Pool, width: usize, first: &[f32], second: &[f32]) -> Self {
        let mut live = Self::none(first.len() / width);
        let parts = live.words.iter_mut().zip(first.chunks(64 * width).zip(second.chunks(64 * width)));
        pool.each(parts, |(word, (first, second))| {
            let rows = first.chunks_exact(width).zip(second.chunks_exact(width)).enumerate();
            for (i, (first, second)) in rows {
                let zero = |row: &[f32]| row.iter().all(|x| x.to_bits() << 1 == 0);
                *word |= u64::from(!(zero(first) && zero(second))) << i;
            }
        });
        live
    }

    /// Adds rows.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn insert(&mut self, ids: &[u32]) {
        for &id in ids {
            assert!((id as usize) < self.rows, "row {id} of {}", self.rows);
            self.words[id as usize / 64] |= 1 << (id % 64);
        }
    }

    /// Whether a row is among them.
    pub fn contains(&self, row: usize) -> bool {
        self.words[row / 64] >> (row % 64) & 1 == 1
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.rows).filter(|&row| self.contains(row))
    }
}

/// Decays noted before all rows are brought up to date, so that none owes more multiplications than this.
const MOST_OWED: usize = 256;

/// Which rows of a table AdamW moves, and the decay that the others owe.
#[derive(Debug, Clone)]
pub struct LazyRows {
    live: LiveRows,
    /// What each update left of a weight, since all rows were up to date.
    owed: Vec<f32>,
    /// How many of `owed` each row has had; of no meaning for live rows, which owe nothing.
    paid: Vec<u16>,
}

/// The weights of a table: `(rows, width)` in f32, and the rounded copy where forward reads one.
pub struct TableWeights<'a, E> {
    /// f32 weights.
    pub master: &'a mut [f32],
    /// The rounded weights.
    pub compute: Option<&'a mut [E]>,
    /// Columns.
    pub width: usize,
}

impl LazyRows {
    /// A table that is up to date and whose `live` rows have moments.
    pub fn new(live: LiveRows) -> Self {
        Self { owed: Vec::new(), paid: vec![0; live.rows], live }
    }

    /// The rows that have moments.
    pub fn live(&self) -> &LiveRows {
        &self.live
    }

    /// Brings some rows up to date, for instance those that forward is about to read; `ids` in any order.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn settle<E: Element>(&mut self, pool: &Pool, ids: &[u32], weights: TableWeights<'_, E>) {
        if self.owed.is_empty() {
            return;
        }
        let owes = |&id: &usize| !self.live.contains(id) && usize::from(self.paid[id]) < self.owed.len();
        let mut ids: Vec<usize> = ids.iter().map(|&id| id as usize).filter(owes).collect();
        ids.sort_unstable();
        ids.dedup();
        let rows = rows_of(&ids, weights).zip(&ids);
        let (paid, owed) = (&self.paid, &self.owed);
        pool.each(rows, |((master, compute), &id)| {
            let factors = &owed[usize::from(paid[id])..];
            dispatch(pool.isa(), Decay { factors, master, compute });
        });
        for id in ids {
            self.paid[id] = self.owed.len() as u16;
        }
    }

    /// Brings all rows up to date, before the table is read as a whole.
    pub fn settle_all<E: Element>(&mut self, pool: &Pool, weights: TableWeights<'_, E>) {
        if self.owed.is_empty() {
            return;
        }
        let width = weights.width;
        let (size, per_block) = (64 * width, 64);
        let mut copies = weights.compute.map(|c| c.chunks_mut(size));
        let blocks = weights.master.chunks_mut(size).zip(self.paid.chunks_mut(per_block)).enumerate();
        let blocks =
            blocks.map(|(b, (master, paid))| (b, master, paid, copies.as_mut().and_then(Iterator::next)));
        let (live, owed) = (&self.live, &self.owed);
        pool.each(blocks, |(b, master, paid, copy)| {
            let mut copies = copy.map(|c| c.chunks_mut(width));
            for (i, (master, paid)) in master.chunks_mut(width).zip(paid).enumerate() {
                let compute = copies.as_mut().and_then(Iterator::next);
                let factors = &owed[usize::from(std::mem::take(paid))..];
                if !live.contains(b * per_block + i) && !factors.is_empty() {
                    dispatch(pool.isa(), Decay { factors, master, compute });
                }
            }
        });
        self.owed.clear();
    }
}

/// These rows, ascending and each once, to write.
fn rows_of<'a, E>(
    ids: &'a [usize],
    weights: TableWeights<'a, E>,
) -> impl Iterator<Item = (&'a mut [f32], Option<&'a mut [E]>)> {
    let width = weights.width;
    let (mut master, mut compute, mut at) = (weights.master, weights.compute, 0);
    ids.iter().map(move |&id| {
        let skipped = (id - at) * width;
        at = id + 1;
        let row = master.split_off_mut(skipped..).expect("ids ascend and are rows of the table");
        let (row, rest) = row.split_at_mut(width);
        master = rest;
        let copy = compute.take().map(|all| {
            let (row, rest) = all[skipped..].split_at_mut(width);
            (row, compute.insert(rest)).0
        });
        (row, copy)
    })
}

/// Elements that are multiplied by everything they owe while they are in registers.
const GROUP: usize = 64;

/// What some updates of AdamW leave of weights without gradient and moments.
struct Decay<'a, E> {
    factors: &'a [f32],
    master: &'a mut [f32],
    compute: Option<&'a mut [E]>,
}

impl<E: Element> Kernel for Decay<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let mut groups = self.master.chunks_exact_mut(GROUP);
        for group in &mut groups {
            let mut held = [0.0_f32; GROUP];
            held.copy_from_slice(group);
            for keep in self.factors {
                held.iter_mut().for_each(|w| *w *= keep);
            }
            group.copy_from_slice(&held);
        }
        for w in groups.into_remainder() {
            *w = self.factors.iter().fold(*w, |w, keep| w * keep);
        }
        if let Some(copy) = self.compute {
            for (c, w) in copy.iter_mut().zip(&*self.master) {
                *c = E::from_f32(*w);
            }
        }
    }
}

/// As [`super::adamw`] on a table of rows of `width`, all of which decay; gradients of rows that are not `touched` must
/// be zero. Afterwards the rows that have never been touched owe a decay ([`LazyRows::settle`]).
///
/// Cost: 32 bytes per element of a live row, plus the copy.
///
/// # Panics
/// If there is no such row.
pub fn adamw_table<E: Element>(
    pool: &Pool,
    hyper: &AdamW,
    rows: &mut LazyRows,
    touched: &[u32],
    width: usize,
    mut arenas: Arenas<'_, E>,
) {
    arenas.check();
    assert_eq!(arenas.grad.len(), rows.live.rows * width, "a table of {} rows of {width}", rows.live.rows);
    rows.settle(pool, touched, arenas.weights(width));
    rows.live.insert(touched);
    let hyper = &hyper.derive();
    if hyper.keep_decayed != 1.0 {
        rows.owed.push(hyper.keep_decayed);
        if rows.owed.len() >= MOST_OWED {
            rows.settle_all(pool, arenas.weights(width));
        }
    }
    let per_block = (BLOCK / width).max(1);
    let size = per_block * width;
    let mut copies = arenas.compute.map(|c| c.chunks_mut(size));
    let parts = (arenas.grad.chunks_mut(size).zip(arenas.master.chunks_mut(size)))
        .zip(arenas.first_moment.chunks_mut(size).zip(arenas.second_moment.chunks_mut(size)))
        .map(|((grad, master), (first_moment, second_moment))| {
            let compute = copies.as_mut().and_then(Iterator::next);
            Arenas { grad, master, first_moment, second_moment, compute }
        })
        .enumerate();
    let live = &rows.live;
    pool.each(parts, |(b, block)| update_rows(pool.isa(), hyper, (live, b * per_block), width, block));
}

impl<E> Arenas<'_, E> {
    fn weights(&mut self, width: usize) -> TableWeights<'_, E> {
        TableWeights { master: self.master, compute: self.compute.as_deref_mut(), width }
    }
}

/// Updates the live rows of a block whose first row is `first`, run by run.
fn update_rows<E: Element>(
    isa: Isa,
    hyper: &Derived,
    (live, first): (&LiveRows, usize),
    width: usize,
    mut block: Arenas<'_, E>,
) {
    let rows = block.grad.len() / width;
    let mut from = 0;
    while let Some(start) = (from..rows).find(|&row| live.contains(first + row)) {
        let end = (start + 1..rows).find(|&row| !live.contains(first + row)).unwrap_or(rows);
        let arenas = block.range(start * width..end * width);
        dispatch(isa, Update { hyper, keep: hyper.keep_decayed, arenas });
        from = end;
    }
}

/// Sum of squares of some rows of a table, accumulated in f64 in their order.
pub fn sum_squares_rows(pool: &Pool, table: &[f32], width: usize, ids: &[u32]) -> f64 {
    let mut partial = vec![0.0_f64; ids.len()];
    pool.each(ids.chunks(64).zip(partial.chunks_mut(64)), |(ids, sums)| {
        for (&id, sum) in ids.iter().zip(sums) {
            *sum = dispatch(pool.isa(), SumSquares(&table[id as usize * width..][..width]));
        }
    });
    partial.iter().sum()
}
