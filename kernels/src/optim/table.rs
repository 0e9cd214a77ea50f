//! The optimizer on a table few of whose rows ever have a gradient, such as the word embeddings in fine-tuning.
//!
//! A row whose moments are zero and whose gradient is zero only decays, which AdamW writes as `w = w * keep - 0`: the
//! same bits come from `w * keep` alone, and a quarter of the memory traffic. Most of a large vocabulary is such rows.

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
}

/// What AdamW leaves of a row without gradient and moments.
struct Decay<'a, E> {
    keep: f32,
    master: &'a mut [f32],
    compute: Option<&'a mut [E]>,
}

impl<E: Element> Kernel for Decay<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for w in self.master.iter_mut() {
            *w *= self.keep;
        }
        if let Some(copy) = self.compute {
            for (c, w) in copy.iter_mut().zip(&*self.master) {
                *c = E::from_f32(*w);
            }
        }
    }
}

/// As [`super::adamw`] on a table of rows of `width`, all of which decay; gradients and moments of rows that are not
/// `live` must be zero.
///
/// Cost: 32 bytes per element of a live row, 8 of another one (none without decay), plus the copy.
pub fn adamw_table<E: Element>(
    pool: &Pool,
    hyper: &AdamW,
    live: &LiveRows,
    width: usize,
    arenas: Arenas<'_, E>,
) {
    arenas.check();
    assert_eq!(arenas.grad.len(), live.rows * width, "a table of {} rows of {width}", live.rows);
    let hyper = &hyper.derive();
    let rows = (BLOCK / width).max(1);
    let size = rows * width;
    let mut copies = arenas.compute.map(|c| c.chunks_mut(size));
    let parts = (arenas.grad.chunks_mut(size).zip(arenas.master.chunks_mut(size)))
        .zip(arenas.first_moment.chunks_mut(size).zip(arenas.second_moment.chunks_mut(size)))
        .map(|((grad, master), (first_moment, second_moment))| {
            let compute = copies.as_mut().and_then(Iterator::next);
            Arenas { grad, master, first_moment, second_moment, compute }
        })
        .enumerate();
    pool.each(parts, |(b, block)| update_rows(pool.isa(), hyper, (live, b * rows), width, block));
}

/// Updates a block whose first row is `first`, run by run of rows that are all live or all not.
fn update_rows<E: Element>(
    isa: Isa,
    hyper: &Derived,
    (live, first): (&LiveRows, usize),
    width: usize,
    mut block: Arenas<'_, E>,
) {
    let rows = block.grad.len() / width;
    let mut from = 0;
    while from < rows {
        let is_live = live.contains(first + from);
        let to = (from + 1..rows).find(|&row| live.contains(first + row) != is_live).unwrap_or(rows);
        let arenas = block.range(from * width..to * width);
        let keep = hyper.keep_decayed;
        if is_live {
            dispatch(isa, Update { hyper, keep, arenas });
        } else if keep != 1.0 {
            dispatch(isa, Decay { keep, master: arenas.master, compute: arenas.compute });
        }
        from = to;
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
