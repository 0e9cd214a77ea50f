//! Memory for sums.

use std::ops::{Deref, DerefMut};

use muster_kernels::memory;

/// f32 values that [`super::World::all_reduce`] sums in place; a slice for everybody else.
#[derive(Debug)]
pub struct SumBuffer(Vec<f32>);

impl SumBuffer {
    /// Zeros in private memory: for a world of one.
    pub fn new(len: usize) -> Self {
        Self(memory::zeroed(len))
    }
}

impl Deref for SumBuffer {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for SumBuffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
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
