//! Scratch of one thread: the f32 tiles of one sequence and head.

use std::cell::RefCell;

use crate::element::Element;
use crate::isa::{Kernel, Simd, dispatch};
use crate::pool::Pool;

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
pub(super) struct Block<'a, E> {
    pub(super) data: &'a [E],
    pub(super) row_stride: usize,
    /// Index of the block's first element.
    pub(super) from: usize,
    pub(super) cols: usize,
}

struct Widen<'a, E> {
    x: &'a [E],
    factor: f32,
    y: &'a mut [f32],
}
impl<E: Element> Kernel for Widen<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.y.iter_mut().zip(self.x).for_each(|(y, x)| *y = x.to_f32() * self.factor);
    }
}

/// Copies the rows of a block, times a factor, into a dense f32 tile.
pub(super) fn load<E: Element>(
    pool: &Pool,
    block: Block<'_, E>,
    rows: impl Iterator<Item = usize>,
    factor: f32,
    tile: &mut [f32],
) {
    for (r, y) in rows.zip(tile.chunks_mut(block.cols)) {
        let at = block.from + r * block.row_stride;
        dispatch(pool.isa(), Widen { x: &block.data[at..at + block.cols], factor, y });
    }
}

pub(super) struct NarrowRow<'a, E> {
    pub(super) x: &'a [f32],
    pub(super) factor: f32,
    pub(super) y: &'a mut [E],
}
impl<E: Element> Kernel for NarrowRow<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.y.iter_mut().zip(self.x).for_each(|(y, x)| *y = E::from_f32(*x * self.factor));
    }
}
