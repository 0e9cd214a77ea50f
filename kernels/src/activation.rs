//! Activation functions and their derivatives, from the value before the activation.

use crate::element::Element;
use crate::isa::{Kernel, Simd, dispatch};
use crate::math;
use crate::pool::{BLOCK, Pool};

/// A function applied to each element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x * Phi(x), by the error function.
    Gelu,
    /// GELU by its tanh approximation (Hendrycks and Gimpel 2016, section 2).
    GeluTanh,
    /// max(x, 0).
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// x * sigmoid(x).
    Silu,
}

/// Value and derivative of a function, one type per function so that the loop contains no branch.
pub(crate) trait Function: Copy + Send + Sync {
    fn value<S: Simd>(self, s: S, x: f32) -> f32;
    fn slope<S: Simd>(self, s: S, x: f32) -> f32;
}

#[derive(Clone, Copy)]
pub(crate) struct Gelu;
impl Function for Gelu {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: f32) -> f32 {
        let y = x * math::gauss(s, x).cdf;
        // -inf * 0 is NaN, but the limit is 0.
        if x == f32::NEG_INFINITY { 0.0 } else { y }
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, x: f32) -> f32 {
        let g = math::gauss(s, x);
        let y = s.mul_add(x, g.pdf, g.cdf);
        if x.is_infinite() { g.cdf } else { y }
    }
}

const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

#[derive(Clone, Copy)]
pub(crate) struct GeluTanh;
impl GeluTanh {
    /// (1 + tanh(u)) / 2 as sigmoid(2 u), which keeps relative accuracy in the lower tail.
    #[inline(always)]
    fn gate<S: Simd>(s: S, x: f32) -> f32 {
        math::sigmoid(s, 2.0 * SQRT_2_OVER_PI * x * s.mul_add(CUBIC * x, x, 1.0))
    }
}
impl Function for GeluTanh {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: f32) -> f32 {
        let y = x * Self::gate(s, x);
        if x == f32::NEG_INFINITY { 0.0 } else { y }
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, x: f32) -> f32 {
        let g = Self::gate(s, x);
        // Beyond these limits the gate is exactly 0 or 1, and x^3 would overflow.
        let c = if x > 1e4 { 1e4 } else { x };
        let c = if c < -1e4 { -1e4 } else { c };
        let du = SQRT_2_OVER_PI * s.mul_add(3.0 * CUBIC * c, c, 1.0);
        g + 2.0 * c * du * g * (1.0 - g)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Relu;
impl Function for Relu {
    #[inline(always)]
    fn value<S: Simd>(self, _: S, x: f32) -> f32 {
        // Written so that a NaN passes through.
        if x < 0.0 { 0.0 } else { x }
    }
    #[inline(always)]
    fn slope<S: Simd>(self, _: S, x: f32) -> f32 {
        if x > 0.0 {
            1.0
        } else if x.is_nan() {
            x
        } else {
            0.0
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Tanh;
impl Function for Tanh {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: f32) -> f32 {
        math::tanh(s, x)
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, x: f32) -> f32 {
        let t = math::tanh(s, x);
        s.mul_add(-t, t, 1.0)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Silu;
impl Function for Silu {
    #[inline(always)]
    fn value<S: Simd>(self, s: S, x: f32) -> f32 {
        let y = x * math::sigmoid(s, x);
        if x == f32::NEG_INFINITY { 0.0 } else { y }
    }
    #[inline(always)]
    fn slope<S: Simd>(self, s: S, x: f32) -> f32 {
        let g = math::sigmoid(s, x);
        let c = if x > 1e3 { 1e3 } else { x };
        let c = if c < -1e3 { -1e3 } else { c };
        g * s.mul_add(c, 1.0 - g, 1.0)
    }
}

/// Evaluates an expression with `$f` bound to the function type's value.
macro_rules! with_function {
    ($act:expr, $f:ident => $body:expr) => {
        match $act {
            $crate::activation::Activation::Gelu => {
                let $f = $crate::activation::Gelu;
                $body
            }
            $crate::activation::Activation::GeluTanh => {
                let $f = $crate::activation::GeluTanh;
                $body
            }
            $crate::activation::Activation::Relu => {
                let $f = $crate::activation::Relu;
                $body
            }
            $crate::activation::Activation::Tanh => {
                let $f = $crate::activation::Tanh;
                $body
            }
            $crate::activation::Activation::Silu => {
                let $f = $crate::activation::Silu;
                $body
            }
        }
    };
}
pub(crate) use with_function;

struct Forward<'a, E, F> {
    x: &'a [E],
    y: &'a mut [E],
    function: F,
}
impl<E: Element, F: Function> Kernel for Forward<'_, E, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = E::from_f32(self.function.value(s, x.to_f32()));
        }
    }
}

struct Backward<'a, E, F> {
    x: &'a [E],
    dy: &'a [E],
    dx: &'a mut [E],
    function: F,
}
impl<E: Element, F: Function> Kernel for Backward<'_, E, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for ((dx, x), dy) in self.dx.iter_mut().zip(self.x).zip(self.dy) {
            *dx = E::from_f32(self.function.slope(s, x.to_f32()) * dy.to_f32());
        }
    }
}

/// y = act(x).
pub fn forward<E: Element>(pool: &Pool, act: Activation, x: &[E], y: &mut [E]) {
    assert_eq!(x.len(), y.len(), "y must be as long as x");
    let parts = x.chunks(BLOCK).zip(y.chunks_mut(BLOCK));
    with_function!(act, function => pool.each(parts, |(x, y)| dispatch(pool.isa(), Forward { x, y, function })));
}

/// dx = act'(x) * dy, with x the value before the activation.
pub fn backward<E: Element>(pool: &Pool, act: Activation, x: &[E], dy: &[E], dx: &mut [E]) {
    assert_eq!(x.len(), dy.len(), "dy must be as long as x");
    assert_eq!(x.len(), dx.len(), "dx must be as long as x");
    let parts = x.chunks(BLOCK).zip(dy.chunks(BLOCK)).zip(dx.chunks_mut(BLOCK));
    with_function!(act, function => pool.each(parts, |((x, dy), dx)| {
        dispatch(pool.isa(), Backward { x, dy, dx, function });
    }));
}
