//! Activation buffers that are reused instead of returned to the allocator.
//!
//! A step takes and drops the same few sizes over and over; a fresh allocation would be zeroed and page-faulted
//! each time. Contents of a taken buffer are whatever was left there: every kernel overwrites its output.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Free buffers by capacity.
type Free<T> = BTreeMap<usize, Vec<Vec<T>>>;

/// A shared list of free buffers of one element type.
#[derive(Debug, Clone)]
pub struct Recycler<T> {
    free: Rc<RefCell<Free<T>>>,
}

impl<T> Default for Recycler<T> {
    fn default() -> Self {
        Self { free: Rc::default() }
    }
}

/// Buffers smaller than this are all alike; keeps tiny ones from making a size class each.
const SMALLEST: usize = 256;
/// How many times larger than needed a reused buffer may be.
const REUSE: usize = 4;

/// Rounds up to one of four sizes per power of two, so that random lengths settle on few buffers.
fn size_class(len: usize) -> usize {
    let len = len.max(SMALLEST);
    let quarter = (len.next_power_of_two() / 8).max(1);
    len.next_multiple_of(quarter)
}

/// Takes a buffer off the list of a capacity that is there.
fn remove<T>(free: &mut Free<T>, capacity: usize) -> Vec<T> {
    let list = free.get_mut(&capacity).expect("the capacity was found among the free ones");
    let data = list.pop().expect("empty lists are removed");
    if list.is_empty() {
        free.remove(&capacity);
    }
    data
}

impl<T: bytemuck::Pod> Recycler<T> {
    /// Takes a buffer of `len` elements with unspecified contents.
    pub fn take(&self, len: usize) -> Buf<T> {
        let class = size_class(len);
        let mut free = self.free.borrow_mut();
        // A buffer of up to four times the size is good enough: the same buffers serve the last, smaller micro-batch of
        // a step too, and the list stays short.
        let fit = free.range(class..=REUSE * class).next().map(|(&capacity, _)| capacity);
        let data = match fit {
            Some(capacity) => remove(&mut free, capacity),
            None => {
                // A free buffer that is somewhat too small served a shorter micro-batch, which this one's buffers can
                // serve as well: it makes room. Otherwise every longer step would leave a whole set of buffers behind.
                let outgrown = free.range(class / REUSE..class).next_back().map(|(&capacity, _)| capacity);
                if let Some(capacity) = outgrown {
                    drop(remove(&mut free, capacity));
                }
                vec![T::zeroed(); class]
            }
        };
        drop(free);
        Buf { data, len, home: self.clone() }
    }

    /// Bytes of all free buffers.
    #[cfg(test)]
    fn free_bytes(&self) -> usize {
        self.free.borrow().iter().map(|(&capacity, list)| capacity * list.len() * size_of::<T>()).sum()
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
        self.home.free.borrow_mut().entry(data.len()).or_default().push(data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_taken_again() {
        let recycler = Recycler::<f32>::default();
        let first = recycler.take(1000);
        let address = first.as_ptr();
        drop(first);
        assert_eq!(recycler.take(900).as_ptr(), address, "900 fits where 1000 was");
        assert_eq!(recycler.take(900).len(), 900);
    }

    #[test]
    fn random_lengths_settle() {
        let recycler = Recycler::<f32>::default();
        let mut bytes = Vec::new();
        for i in 0..10_000u64 {
            let a = recycler.take((i * 7919 % 5000) as usize + 1);
            let b = recycler.take((i * 104_729 % 5000) as usize + 1);
            drop((a, b));
            bytes.push(recycler.free_bytes());
        }
        assert_eq!(bytes[1000], bytes[9999], "no growth after the first lengths were seen");
    }

    #[test]
    fn growing_lengths_do_not_leave_a_set_of_buffers_each() {
        let recycler = Recycler::<f32>::default();
        for len in [1000, 1300, 1700, 2100, 2900, 3900] {
            let set: Vec<_> = (0..10).map(|_| recycler.take(len)).collect();
            drop(set);
        }
        let last = 10 * 4 * size_class(3900);
        assert!(recycler.free_bytes() <= last, "{} for a need of {last}", recycler.free_bytes());
    }

    #[test]
    fn the_class_wastes_at_most_a_quarter() {
        for len in SMALLEST..10_000 {
            let class = size_class(len);
            assert!(class >= len && class * 4 <= len * 5 + 4, "{len} -> {class}");
            assert_eq!(size_class(class), class, "a class is its own class");
        }
    }
}
