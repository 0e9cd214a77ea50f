//! Activation buffers that are reused instead of returned to the allocator.
//!
//! A step takes and drops the same matrices over and over; a fresh allocation would be zeroed and page-faulted each
//! time. A buffer has room for the most rows of its kind ever [expected](Recycler::expect), so that micro-batches of
//! every size share one set of buffers, and memory is what the largest of them needs: what a smaller one leaves
//! untouched is never resident. Contents of a taken buffer are whatever was left there: every kernel overwrites its
//! output.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use muster_kernels::memory;

/// What the rows of a matrix stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// Tokens of a micro-batch.
    Tokens,
    /// Sequences of a micro-batch.
    Sequences,
    /// Slots of the relative-position table that a micro-batch uses.
    Slots,
}

/// Rows of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    /// Of the micro-batch at hand.
    now: usize,
    /// Of the largest micro-batch known.
    most: usize,
}

#[derive(Debug)]
struct Inner<T> {
    extents: [Extent; 3],
    /// Free buffers by capacity.
    free: HashMap<usize, Vec<Vec<T>>>,
}

/// A shared list of free buffers of one element type.
#[derive(Debug, Clone)]
pub struct Recycler<T> {
    inner: Rc<RefCell<Inner<T>>>,
}

impl<T> Default for Recycler<T> {
    fn default() -> Self {
        Self { inner: Rc::new(RefCell::new(Inner { extents: [Extent::default(); 3], free: HashMap::new() })) }
    }
}

impl<T: bytemuck::Pod> Recycler<T> {
    /// Announces that matrices with `now` rows of a kind are about to be taken, and that none will have more than
    /// `most`, as far as is known.
    pub fn expect(&self, kind: Rows, now: usize, most: usize) {
        let mut inner = self.inner.borrow_mut();
        let extent = &mut inner.extents[kind as usize];
        extent.now = now;
        let most = most.max(now);
        if most > extent.most {
            extent.most = most;
            // No buffer of the old capacities will be asked for again.
            inner.free.clear();
        }
    }

    /// Takes a buffer of `rows x cols` elements with unspecified contents.
    pub fn take(&self, rows: usize, cols: usize) -> Buf<T> {
        let mut inner = self.inner.borrow_mut();
        // Kinds that happen to have equally many rows share the larger capacity.
        let most = inner.extents.iter().filter(|e| e.now == rows).map(|e| e.most).max().unwrap_or(rows);
        let capacity = most * cols;
        let data = inner.free.get_mut(&capacity).and_then(Vec::pop);
        Buf { data: data.unwrap_or_else(|| memory::zeroed(capacity)), len: rows * cols, home: self.clone() }
    }
}

/// A buffer that goes back to its recycler when dropped.
#[derive(Debug)]
pub struct Buf<T: bytemuck::Pod> {
    data: Vec<T>,
    len: usize,
    home: Recycler<T>,
}

impl<T: bytemuck::Pod> Deref for Buf<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.data[..self.len]
    }
}

impl<T: bytemuck::Pod> DerefMut for Buf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data[..self.len]
    }
}

impl<T: bytemuck::Pod> Drop for Buf<T> {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        self.home.inner.borrow_mut().free.entry(data.len()).or_default().push(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Recycler<f32> {
        /// Capacities of all free buffers.
        fn free(&self) -> Vec<usize> {
            let inner = self.inner.borrow();
            let mut all: Vec<usize> = inner.free.values().flatten().map(Vec::len).collect();
            all.sort_unstable();
            all
        }
    }

    #[test]
    fn smaller_micro_batches_use_the_buffers_of_larger_ones() {
        let recycler = Recycler::<f32>::default();
        recycler.expect(Rows::Tokens, 100, 0);
        let first = recycler.take(100, 8);
        let address = first.as_ptr();
        drop(first);
        recycler.expect(Rows::Tokens, 3, 0);
        let second = recycler.take(3, 8);
        assert_eq!((second.as_ptr(), second.len()), (address, 24));
        assert_eq!(recycler.take(3, 4).len(), 12, "of other columns there is none yet");
    }

    #[test]
    fn known_sizes_are_allocated_once_in_any_order() {
        let recycler = Recycler::<f32>::default();
        for tokens in [5, 80, 1, 64, 100] {
            recycler.expect(Rows::Tokens, tokens, 100);
            recycler.expect(Rows::Slots, 2 * tokens, 256);
            recycler.expect(Rows::Sequences, 1 + tokens / 50, 4);
            let set = [recycler.take(tokens, 8), recycler.take(tokens, 8), recycler.take(2 * tokens, 8)];
            drop(set);
        }
        assert_eq!(recycler.free(), [800, 800, 2048]);
    }

    #[test]
    fn growing_micro_batches_leave_nothing_behind() {
        let recycler = Recycler::<f32>::default();
        for tokens in [1000, 1300, 1700, 2100, 2900, 3900] {
            recycler.expect(Rows::Tokens, tokens, 0);
            drop([recycler.take(tokens, 1), recycler.take(tokens, 1)]);
        }
        assert_eq!(recycler.free(), [3900, 3900]);
    }
}
