//! Scratch of one thread: the f32 tiles of one sequence and head.

use std::cell::RefCell;

use crate::element::Element;
use crate::isa::{Kernel, Simd, dispatch};
use crate::pool::{Pool, SharedMut};

/// Buffers that only grow; content is unspecified between uses.
#[derive(Default)]
pub(super) struct Tiles {
    /// (n, d) each.
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) o: Vec<f32>,
    pub(super) dq: Vec<f32>,
    pub(super) dk: Vec<f32>,
    /// (n, n): scores where they are not inside `c2p`.
    pub(super) scores: Vec<f32>,
    /// (n, n): gradient of the probabilities, then the dropped probabilities.
    pub(super) dp: Vec<f32>,
    /// (m, d) each, in descending order of slots.
    pub(super) kr: Vec<f32>,
    pub(super) qr: Vec<f32>,
    pub(super) dr: Vec<f32>,
    /// (n, m) each.
    pub(super) c2p: Vec<f32>,
    pub(super) p2c: Vec<f32>,
}

thread_local! {
    static TILES: RefCell<Tiles> = RefCell::new(Tiles::default());
}

/// Lends this thread's buffers. The tasks of this module start no work on other threads, so a thread never enters
/// twice.
pub(super) fn with<R>(f: impl FnOnce(&mut Tiles) -> R) -> R {
    TILES.with(|t| f(&mut t.borrow_mut()))
}

/// A column block of a row-major matrix.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) row_stride: usize,
    /// Index of the block's first element.
    pub(super) from: usize,
    pub(super) cols: usize,
}

impl Block {
    #[inline(always)]
    fn row(self, r: usize) -> std::ops::Range<usize> {
        let at = self.from + r * self.row_stride;
        at..at + self.cols
    }
}

/// One dispatch per tile, not per row: rows are as short as a head.
struct Load<'a, E, R> {
    data: &'a [E],
    block: Block,
    rows: R,
    factor: f32,
    tile: &'a mut [f32],
}
impl<E: Element, R: Iterator<Item = usize>> Kernel for Load<'_, E, R> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (r, y) in self.rows.zip(self.tile.chunks_exact_mut(self.block.cols)) {
            y.iter_mut().zip(&self.data[self.block.row(r)]).for_each(|(y, x)| *y = x.to_f32() * self.factor);
        }
    }
}

/// Copies rows of a block, times a factor, into a dense f32 tile.
pub(super) fn load<E: Element>(
    pool: &Pool,
    data: &[E],
    block: Block,
    rows: impl Iterator<Item = usize>,
    factor: f32,
    tile: &mut [f32],
) {
    dispatch(pool.isa(), Load { data, block, rows, factor, tile });
}

struct StoreRows<'a, 'b, E> {
    tile: &'a [f32],
    factor: f32,
    out: &'a SharedMut<'b, E>,
    block: Block,
}
impl<E: Element> Kernel for StoreRows<'_, '_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (r, x) in self.tile.chunks_exact(self.block.cols).enumerate() {
            // SAFETY: the caller of `store` promises that the block is its own.
            let y = unsafe { self.out.range(self.block.row(r)) };
            y.iter_mut().zip(x).for_each(|(y, x)| *y = E::from_f32(*x * self.factor));
        }
    }
}

/// Writes a dense tile, times a factor, to a block of a shared matrix.
///
/// # Safety
/// No other task reads or writes the block meanwhile.
pub(super) unsafe fn store<E: Element>(
    pool: &Pool,
    tile: &[f32],
    factor: f32,
    out: &SharedMut<'_, E>,
    block: Block,
) {
    dispatch(pool.isa(), StoreRows { tile, factor, out, block });
}
