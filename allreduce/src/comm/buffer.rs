//! Buffers that callers lend to operations.

use std::any::Any;
use std::marker::PhantomData;

use crate::element::Element;
use crate::engine::memory::Memory;

/// A buffer of elements that an operation may own for a while: `Vec<T>`, `Box<[T]>`, a range of an arena, ..
///
/// It moves into the operation and comes back from [`crate::Handle::wait`]; no element is copied for that.
pub trait Buffer<T>: AsRef<[T]> + AsMut<[T]> + Send + 'static {}

impl<T, B: AsRef<[T]> + AsMut<[T]> + Send + 'static> Buffer<T> for B {}

pub(super) struct Typed<T, B>(B, PhantomData<fn() -> T>);

impl<T: Element, B: Buffer<T>> Memory for Typed<T, B> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.0.as_ref())
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self.0.as_mut())
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        Box::new(self.0)
    }
}

pub(super) fn wrap<T: Element, B: Buffer<T>>(buffer: B) -> Box<dyn Memory> {
    Box::new(Typed::<T, B>(buffer, PhantomData))
}

/// The caller's buffer again.
///
/// # Panics
/// If the buffer is of another type: the crate itself remembers which type each operation took.
pub(super) fn unwrap<B: 'static>(memory: Box<dyn Memory>) -> B {
    *memory.into_any().downcast::<B>().expect("an operation gives back the buffers that it took")
}
