//! What happens to finished elements of a product.

use super::Write;
use crate::activation::Function;
use crate::element::Element;
use crate::isa::Simd;
use crate::pool::SharedMut;

/// Takes finished elements. Implementations are `#[inline(always)]`: they run inside a function compiled for the
/// instruction set.
pub(crate) trait Target: Sync {
    /// Takes elements `(row, col .. col + values.len())` of the product.
    ///
    /// # Safety
    /// Of all calls that run at the same time, no two name the same element.
    unsafe fn put<S: Simd>(&self, simd: S, row: usize, col: usize, values: &[f32]);
}

/// C = A B or C += A B in f32; C is row-major (rows, cols).
pub(crate) struct Plain<'a> {
    pub(super) c: SharedMut<'a, f32>,
    pub(super) cols: usize,
    pub(super) write: Write,
}

impl Target for Plain<'_> {
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, _: S, row: usize, col: usize, values: &[f32]) {
        let at = row * self.cols + col;
        // SAFETY: the caller's promise.
        let c = unsafe { self.c.range(at..at + values.len()) };
        match self.write {
            Write::Set => c.copy_from_slice(values),
            Write::Add => c.iter_mut().zip(values).for_each(|(c, v)| *c += v),
        }
    }
}

/// y = x + bias, rounded to the storage type; y is row-major (rows, cols).
pub(crate) struct Bias<'a, B, E> {
    pub(crate) y: SharedMut<'a, E>,
    pub(crate) cols: usize,
    pub(crate) bias: Option<&'a [B]>,
}

impl<B: Element, E: Element> Target for Bias<'_, B, E> {
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, _: S, row: usize, col: usize, values: &[f32]) {
        let at = row * self.cols + col;
        // SAFETY: the caller's promise.
        let y = unsafe { self.y.range(at..at + values.len()) };
        let pairs = y.iter_mut().zip(values);
        match self.bias {
            None => pairs.for_each(|(y, x)| *y = E::from_f32(*x)),
            Some(bias) => {
                let bias = &bias[col..col + values.len()];
                pairs.zip(bias).for_each(|((y, x), b)| *y = E::from_f32(*x + b.to_f32()));
            }
        }
    }
}

/// u = x + bias and y = f(u), both kept: backward needs u.
pub(crate) struct BiasActivation<'a, E, F> {
    pub(crate) u: SharedMut<'a, E>,
    pub(crate) y: SharedMut<'a, E>,
    pub(crate) cols: usize,
    pub(crate) bias: Option<&'a [E]>,
    pub(crate) function: F,
}

impl<E: Element, F: Function + Sync> Target for BiasActivation<'_, E, F> {
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, simd: S, row: usize, col: usize, values: &[f32]) {
        let range = row * self.cols + col..row * self.cols + col + values.len();
        // SAFETY: the caller's promise.
        let (u, y) = unsafe { (self.u.range(range.clone()), self.y.range(range)) };
        match self.bias {
            None => u.iter_mut().zip(values).for_each(|(u, x)| *u = E::from_f32(*x)),
            Some(bias) => {
                let bias = &bias[col..col + values.len()];
                let pairs = u.iter_mut().zip(values).zip(bias);
                pairs.for_each(|((u, x), b)| *u = E::from_f32(*x + b.to_f32()));
            }
        }
        // From the rounded value, as if the activation were a pass of its own: backward sees the same u.
        y.iter_mut().zip(&*u).for_each(|(y, u)| *y = E::from_f32(self.function.value(simd, u.to_f32())));
    }
}

/// dx = x * f'(u): the gradient goes through an activation on its way out.
pub(crate) struct Slope<'a, E, F> {
    pub(crate) dx: SharedMut<'a, E>,
    pub(crate) u: &'a [E],
    pub(crate) cols: usize,
    pub(crate) function: F,
}

impl<E: Element, F: Function + Sync> Target for Slope<'_, E, F> {
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, simd: S, row: usize, col: usize, values: &[f32]) {
        let range = row * self.cols + col..row * self.cols + col + values.len();
        let u = &self.u[range.clone()];
        // SAFETY: the caller's promise.
        let dx = unsafe { self.dx.range(range) };
        let pairs = dx.iter_mut().zip(values).zip(u);
        pairs.for_each(|((dx, x), u)| *dx = E::from_f32(self.function.slope(simd, u.to_f32()) * x));
    }
}
