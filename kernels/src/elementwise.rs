//! Operations on single elements.

use crate::element::Element;
use crate::isa::{Kernel, Simd, dispatch};
use crate::pool::{BLOCK, Pool};

struct Zip<'a, A, B, F> {
    a: &'a [A],
    b: &'a mut [B],
    f: F,
}

/// A function of one input element and the present output element.
trait Map {
    fn map<S: Simd>(&self, s: S, a: f32, b: f32) -> f32;
}

impl<A: Element, B: Element, F: Map> Kernel for Zip<'_, A, B, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (b, a) in self.b.iter_mut().zip(self.a) {
            *b = B::from_f32(self.f.map(s, a.to_f32(), b.to_f32()));
        }
    }
}

fn zip<A: Element, B: Element>(pool: &Pool, a: &[A], b: &mut [B], f: impl Map + Copy + Sync) {
    assert_eq!(a.len(), b.len(), "both slices must have the same length");
    pool.each(a.chunks(BLOCK).zip(b.chunks_mut(BLOCK)), |(a, b)| dispatch(pool.isa(), Zip { a, b, f }));
}

#[derive(Clone, Copy)]
struct Add;
impl Map for Add {
    #[inline(always)]
    fn map<S: Simd>(&self, _: S, a: f32, b: f32) -> f32 {
        b + a
    }
}

#[derive(Clone, Copy)]
struct Copied;
impl Map for Copied {
    #[inline(always)]
    fn map<S: Simd>(&self, _: S, a: f32, _: f32) -> f32 {
        a
    }
}

#[derive(Clone, Copy)]
struct Scale(f32);
impl Map for Scale {
    #[inline(always)]
    fn map<S: Simd>(&self, _: S, a: f32, _: f32) -> f32 {
        a * self.0
    }
}

/// acc += x.
pub fn add_assign<A: Element, B: Element>(pool: &Pool, acc: &mut [A], x: &[B]) {
    zip(pool, x, acc, Add);
}

/// b = a, converted; narrowing rounds to nearest even.
pub fn cast<A: Element, B: Element>(pool: &Pool, a: &[A], b: &mut [B]) {
    zip(pool, a, b, Copied);
}

/// Elements from which a copy is worth more than one thread: 256 KiB of f32.
const COPY_BLOCK: usize = 4 * BLOCK;

/// b = a.
pub fn copy<E: Element>(pool: &Pool, a: &[E], b: &mut [E]) {
    assert_eq!(a.len(), b.len(), "both slices must have the same length");
    pool.each(a.chunks(COPY_BLOCK).zip(b.chunks_mut(COPY_BLOCK)), |(a, b)| b.copy_from_slice(a));
}

/// x = 0.
pub fn zero<E: Element>(pool: &Pool, x: &mut [E]) {
    pool.each(x.chunks_mut(COPY_BLOCK), |x| x.fill(E::zeroed()));
}

/// y = factor * x.
pub fn scale<A: Element, B: Element>(pool: &Pool, factor: f32, x: &[A], y: &mut [B]) {
    zip(pool, x, y, Scale(factor));
}

struct ScaleInPlace<'a, E> {
    factor: f32,
    x: &'a mut [E],
}
impl<E: Element> Kernel for ScaleInPlace<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for x in self.x {
            *x = E::from_f32(x.to_f32() * self.factor);
        }
    }
}

/// x *= factor.
pub fn scale_assign<E: Element>(pool: &Pool, factor: f32, x: &mut [E]) {
    pool.each(x.chunks_mut(BLOCK), |x| dispatch(pool.isa(), ScaleInPlace { factor, x }));
}
