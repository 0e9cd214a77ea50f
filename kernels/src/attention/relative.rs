//! The relative terms of one sequence: which slots it uses, and the move between (i, j) and (row, slot).
//!
//! Tables are copied in descending order of slots. Distance i - j falls as j grows, so a row of scores then reads
//! its (row, slot) tile forwards; where slots are consecutive (lengths up to 128 in DeBERTa-v3) the scores *are* a
//! skewed view of that tile, row i starting at (n - 1) + i * (m - 1), and nothing is gathered.

use super::softmax::Place;
use crate::isa::{Kernel, Simd};

/// The slots that sequences of one length use.
pub(super) struct Plan {
    /// Length of the sequence.
    pub(super) n: usize,
    /// Number of slots, `lowest ..= highest`.
    pub(super) m: usize,
    /// The highest slot; column p of a tile belongs to slot `highest - p`.
    pub(super) highest: usize,
    /// Column of each distance, at index n - 1 - i + j (2 n - 1).
    columns: Vec<u32>,
    /// Whether column = index, so that the skewed view works.
    pub(super) consecutive: bool,
}

impl Plan {
    pub(super) fn new(slots: &[u32], n: usize) -> Self {
        let zero = slots.len() / 2;
        let used = &slots[zero + 1 - n..zero + n];
        let highest = used.iter().max().map_or(0, |&s| s);
        let lowest = used.iter().min().map_or(0, |&s| s);
        let columns: Vec<u32> = used.iter().rev().map(|&s| highest - s).collect();
        let consecutive = columns.iter().zip(0..).all(|(&c, x)| c == x);
        Self { n, m: (highest - lowest) as usize + 1, highest: highest as usize, columns, consecutive }
    }

    /// The slots in the order of a tile's columns.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        (self.highest + 1 - self.m..=self.highest).rev()
    }

    /// Where the scores lie inside the c2p tile.
    pub(super) fn skewed(&self) -> Place {
        Place { base: self.n - 1, stride: self.m - 1, n: self.n }
    }

    /// The columns of row i for j = 0 .. n.
    #[inline(always)]
    fn columns_of_row(&self, i: usize) -> &[u32] {
        &self.columns[self.n - 1 - i..2 * self.n - 1 - i]
    }
}

/// Clears what lies outside of the skewed view, so that the tile is a gradient by (row, slot).
pub(super) fn clear_outside(plan: &Plan, tile: &mut [f32]) {
    for (i, row) in tile.chunks_mut(plan.m).enumerate() {
        let from = plan.n - 1 - i;
        row[..from].fill(0.0);
        row[from + plan.n..].fill(0.0);
    }
}

/// `scores[i, j] = c2p[i, slot(i - j)]`, for slots that are not consecutive.
pub(super) struct GatherRows<'a> {
    pub(super) plan: &'a Plan,
    pub(super) c2p: &'a [f32],
    pub(super) scores: &'a mut [f32],
}
impl Kernel for GatherRows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Plan { n, m, .. } = *self.plan;
        for (i, (scores, c2p)) in self.scores.chunks_mut(n).zip(self.c2p.chunks(m)).enumerate() {
            for (s, &c) in scores.iter_mut().zip(self.plan.columns_of_row(i)) {
                *s = c2p[c as usize];
            }
        }
    }
}

/// `dc2p[i, slot(i - j)] += dscores[i, j]`; the inverse of [`GatherRows`].
pub(super) struct ScatterRows<'a> {
    pub(super) plan: &'a Plan,
    pub(super) dscores: &'a [f32],
    pub(super) dc2p: &'a mut [f32],
}
impl Kernel for ScatterRows<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Plan { n, m, .. } = *self.plan;
        for (i, (dscores, dc2p)) in self.dscores.chunks(n).zip(self.dc2p.chunks_mut(m)).enumerate() {
            dc2p.fill(0.0);
            for (d, &c) in dscores.iter().zip(self.plan.columns_of_row(i)) {
                dc2p[c as usize] += d;
            }
        }
    }
}

/// Side of the squares in which a tile is read across its rows, so that the lines it touches stay in L1.
const SQUARE: usize = 16;

/// `scores[i, j] += p2c[j, slot(i - j)]`.
pub(super) struct AddColumns<'a> {
    pub(super) plan: &'a Plan,
    pub(super) p2c: &'a [f32],
    pub(super) scores: &'a mut [f32],
    pub(super) place: Place,
}
impl Kernel for AddColumns<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Plan { n, m, .. } = *self.plan;
        for j0 in (0..n).step_by(SQUARE) {
            let to = (j0 + SQUARE).min(n);
            for i in 0..n {
                let row = &mut self.scores[self.place.row(i)][j0..to];
                let columns = &self.plan.columns_of_row(i)[j0..to];
                for ((s, &c), j) in row.iter_mut().zip(columns).zip(j0..) {
                    *s += self.p2c[j * m + c as usize];
                }
            }
        }
    }
}

/// `dp2c[j, slot(i - j)] += dscores[i, j]`; the inverse of [`AddColumns`].
pub(super) struct ScatterColumns<'a> {
    pub(super) plan: &'a Plan,
    pub(super) dscores: &'a [f32],
    pub(super) place: Place,
    pub(super) dp2c: &'a mut [f32],
}
impl Kernel for ScatterColumns<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Plan { n, m, .. } = *self.plan;
        self.dp2c.fill(0.0);
        for j0 in (0..n).step_by(SQUARE) {
            let to = (j0 + SQUARE).min(n);
            for i in 0..n {
                let row = &self.dscores[self.place.row(i)][j0..to];
                let columns = &self.plan.columns_of_row(i)[j0..to];
                for ((d, &c), j) in row.iter().zip(columns).zip(j0..) {
                    self.dp2c[j * m + c as usize] += d;
                }
            }
        }
    }
}
