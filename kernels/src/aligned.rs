//! Scratch memory that starts on a cache line, so that vector loads never straddle two.

use bytemuck::{Pod, Zeroable};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A buffer that only grows; its content is unspecified between uses.
#[derive(Default)]
pub(crate) struct Lines(Vec<Line>);

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lines({} bytes)", self.0.len() * 64)
    }
}

impl Lines {
    /// Lends the first `len` elements, growing the buffer where needed.
    pub(crate) fn sized<T: Pod>(&mut self, len: usize) -> &mut [T] {
        let lines = (len * size_of::<T>()).div_ceil(64);
        if self.0.len() < lines {
            self.0.resize(lines, Line::zeroed());
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..len]
    }
}
