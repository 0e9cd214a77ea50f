//! Memory for sums.

use std::ops::{Deref, DerefMut};

use muster_kernels::memory;

use crate::shm::ArenaSlice;

/// f32 values that [`super::World::all_reduce`] sums in place; a slice for everybody else.
///
/// Those of [`super::World::buffers`] lie where the other ranks of the node can reduce them, and keep that memory
/// while they live, also beyond their world.
#[derive(Debug)]
pub struct SumBuffer(pub(super) Storage);

#[derive(Debug)]
pub(super) enum Storage {
    Private(Private),
    Shared(ArenaSlice),
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

const LINE: usize = 16;

/// Memory of this process that starts on a cache line.
pub(super) struct Private {
    lines: Vec<Line>,
    len: usize,
}

impl std::fmt::Debug for Private {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Private({} elements)", self.len)
    }
}

impl AsRef<[f32]> for Private {
    fn as_ref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl AsMut<[f32]> for Private {
    fn as_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl SumBuffer {
    /// Zeros in private memory: for a world of one, or to sum now and then.
    pub fn new(len: usize) -> Self {
        Self(Storage::Private(Private { lines: memory::zeroed(len.div_ceil(LINE)), len }))
    }
}

impl From<&[f32]> for SumBuffer {
    /// A copy in private memory.
    fn from(values: &[f32]) -> Self {
        let mut buffer = Self::new(values.len());
        buffer.copy_from_slice(values);
        buffer
    }
}

impl Deref for SumBuffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Storage::Private(values) => values.as_ref(),
            Storage::Shared(slice) => slice,
        }
    }
}

impl DerefMut for SumBuffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        match &mut self.0 {
            Storage::Private(values) => values.as_mut(),
            Storage::Shared(slice) => slice,
        }
    }
}

impl AsRef<[f32]> for SumBuffer {
    fn as_ref(&self) -> &[f32] {
        self
    }
}

impl AsMut<[f32]> for SumBuffer {
    fn as_mut(&mut self) -> &mut [f32] {
        self
    }
}
