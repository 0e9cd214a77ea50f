//! Scratch memory that starts on a cache line, so that vector loads never straddle two.

use bytemuck::{Pod, Zeroable};

use crate::memory;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A buffer that only grows; its content is unspecified between uses.
#[derive(Default)]
pub(crate) struct Buffer(Vec<Line>);

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes())
    }
}

impl Buffer {
    /// Its first `len` numbers, after growing where needed.
    pub(crate) fn sized(&mut self, len: usize) -> &mut [f32] {
        self.typed(len)
    }

    /// As [`Buffer::sized`], of any element type. (Not the same function: what a literal 0.0 is filled into would
    /// be f64.)
    pub(crate) fn typed<T: Pod>(&mut self, len: usize) -> &mut [T] {
        let lines = (len * size_of::<T>()).div_ceil(64);
        if self.0.len() < lines {
            // Nothing of the old content is of use, so that it goes before the new one comes.
            self.0 = Vec::new();
            self.0 = memory::zeroed(lines);
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..len]
    }

    /// What was filled before.
    pub(crate) fn all(&self) -> &[f32] {
        bytemuck::cast_slice(&self.0)
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len() * size_of::<Line>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_at_a_cache_line_and_keep_their_size() {
        let mut b = Buffer::default();
        assert_eq!(b.sized(100).as_ptr() as usize % 64, 0);
        b.sized(100)[99] = 1.0;
        assert_eq!(b.sized(17).len(), 17);
        assert_eq!(b.all()[99], 1.0);
    }
}
