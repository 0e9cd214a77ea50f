//! Buffers of callers, and scratch memory that is used again.

use std::any::Any;

use bytemuck::{Pod, Zeroable};

/// A caller's buffer while an operation has it.
pub(crate) trait Memory: Send {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
    /// The caller's own type again.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Scratch memory that starts on a cache line.
pub(crate) struct Slab {
    lines: Vec<Line>,
    len: usize,
}

impl Slab {
    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl std::fmt::Debug for Slab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slab({} bytes)", self.len)
    }
}

/// Slabs of each power of two that are kept for use.
const KEPT: usize = 32;

/// Free slabs. The one that was freed last is taken first: it is still in the cache.
#[derive(Default)]
pub(crate) struct Pool {
    /// By the power of two of their lines.
    free: Vec<Vec<Vec<Line>>>,
}

impl Pool {
    /// A slab of `len` bytes; its content is unspecified.
    pub(crate) fn take(&mut self, len: usize) -> Slab {
        let lines = len.div_ceil(64).next_power_of_two();
        let class = lines.ilog2() as usize;
        let free = self.free.get_mut(class).and_then(Vec::pop);
        Slab { lines: free.unwrap_or_else(|| vec![Line::zeroed(); lines]), len }
    }

    pub(crate) fn give(&mut self, slab: Slab) {
        let class = slab.lines.len().ilog2() as usize;
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        if self.free[class].len() < KEPT {
            self.free[class].push(slab.lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_aligned_and_used_again() {
        let mut pool = Pool::default();
        let mut slab = pool.take(100);
        assert_eq!((slab.bytes().len(), slab.bytes().as_ptr() as usize % 64), (100, 0));
        slab.bytes_mut()[99] = 7;
        pool.give(slab);
        assert_eq!(pool.take(65).bytes()[64..].len(), 1);
        assert_eq!(pool.take(0).bytes(), []);
    }
}
