//! A mutable slice that tasks cut up by themselves.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice from which tasks take disjoint ranges that no `chunks_mut` describes (column blocks of a matrix).
pub(crate) struct SharedMut<'a, T> {
    ptr: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` cut into pieces that may go to other threads, hence T: Send; the pieces' disjointness
// is promised by the caller of `range`.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { ptr: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// Takes a range as a mutable slice; out of bounds panics.
    ///
    /// # Safety
    /// While the returned slice lives, no other slice taken from `self` may overlap it.
    #[allow(clippy::mut_from_ref, reason = "the point of the type; see Safety")]
    #[inline(always)]
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "range {range:?} outside of {}", self.len);
        // SAFETY: inside the slice by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.end - range.start) }
    }
}
