//! One pass over all inputs, block by block: a block of sums stays in the nearest cache until it is stored.
//!
//! A block is read from every input before anything of it is stored, so outputs may be the inputs themselves, and
//! the loops need no proof that they are not: the compiler sees that the sums are nobody else's memory.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::number::{Accumulator, Number};
use super::tree::{Step, Tree};
use super::{Divide, Stores};
use crate::isa::{Kernel, Simd};

/// Elements of a block: 2 KiB of f32. Few enough for some levels of the tree beside the inputs' lines in 32 KiB.
pub(super) const BLOCK: usize = 512;
/// Blocks of the stack that need no allocation; enough for up to eight ranks.
const SHALLOW: usize = 2;

/// How two numbers are combined.
pub(super) trait Combine {
    fn combine<A: Accumulator>(a: A, b: A) -> A;
}

pub(super) struct Plus;
impl Combine for Plus {
    #[inline(always)]
    fn combine<A: Accumulator>(a: A, b: A) -> A {
        a.plus(b)
    }
}

/// Smaller of two, or the NaN among them; of zeros of both signs, the second.
pub(super) struct Least;
impl Combine for Least {
    #[inline(always)]
    fn combine<A: Accumulator>(a: A, b: A) -> A {
        // Written so that a NaN on either side wins: every comparison with one is false.
        let less = if a < b { a } else { b };
        if a == a { less } else { a }
    }
}

/// Larger of two, or the NaN among them; of zeros of both signs, the second.
pub(super) struct Greatest;
impl Combine for Greatest {
    #[inline(always)]
    fn combine<A: Accumulator>(a: A, b: A) -> A {
        let more = if a > b { a } else { b };
        if a == a { more } else { a }
    }
}

/// A pass; `WEIGHTED` tells whether any weight is not 1.
pub(super) struct Pass<'a, I, O, C, const WEIGHTED: bool> {
    pub(super) tree: &'a Tree,
    pub(super) inputs: &'a [*const I],
    pub(super) weights: &'a [f32],
    pub(super) divide: Divide,
    pub(super) outs: &'a [*mut O],
    pub(super) len: usize,
    pub(super) stores: Stores,
    pub(super) combine: PhantomData<C>,
}

impl<I, O, C, const WEIGHTED: bool> Kernel for Pass<'_, I, O, C, WEIGHTED>
where
    I: Number,
    O: Number<Acc = I::Acc>,
    C: Combine,
{
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let mut shallow = [const { MaybeUninit::<I::Acc>::uninit() }; SHALLOW * BLOCK];
        let mut deep = Vec::new();
        let stack = if self.tree.depth <= SHALLOW {
            &mut shallow[..]
        } else {
            deep.resize(self.tree.depth * BLOCK, MaybeUninit::uninit());
            &mut deep[..]
        };
        let mut staged = [const { MaybeUninit::<O>::uninit() }; BLOCK];
        for at in (0..self.len).step_by(BLOCK) {
            let m = (self.len - at).min(BLOCK);
            self.evaluate(at, m, stack);
            // SAFETY: every evaluation writes the first m numbers of the lowest block.
            let sums = unsafe { stack[..m].assume_init_ref() };
            match (self.outs, self.stores) {
                (&[out], Stores::Cached) => {
                    // SAFETY: outputs hold `len` elements, and no other reference to them lives now.
                    let out = unsafe { std::slice::from_raw_parts_mut(out.add(at).cast(), m) };
                    finish::<_, O>(sums, self.divide, out);
                }
                (outs, stores) => {
                    finish(sums, self.divide, &mut staged[..m]);
                    for &out in outs {
                        // SAFETY: outputs hold `len` elements; `staged` is filled up to m and is our own.
                        unsafe { store(stores, staged.as_ptr().cast(), out.add(at), m) };
                    }
                }
            }
        }
        if self.stores == Stores::Streaming {
            fence();
        }
    }
}

impl<I, O, C, const WEIGHTED: bool> Pass<'_, I, O, C, WEIGHTED>
where
    I: Number,
    O: Number<Acc = I::Acc>,
    C: Combine,
{
    /// Leaves the combination of elements `at..at + m` in the lowest block of the stack.
    #[inline(always)]
    fn evaluate(&self, at: usize, m: usize, stack: &mut [MaybeUninit<I::Acc>]) {
        let input = |i: usize| {
            // SAFETY: inputs hold `len` elements, and nobody writes them until this block is stored.
            let x = unsafe { std::slice::from_raw_parts(self.inputs[i].add(at), m) };
            (x, if WEIGHTED { self.weights[i] } else { 1.0 })
        };
        let mut top = 0;
        for step in &self.tree.steps {
            match *step {
                Step::One(i) => {
                    let (x, p) = input(i);
                    let to = block(stack, top, m);
                    to.iter_mut().zip(x).for_each(|(t, &x)| {
                        t.write(value::<I, WEIGHTED>(x, p));
                    });
                    top += 1;
                }
                Step::Two(i, j) => {
                    let ((x, p), (y, q)) = (input(i), input(j));
                    let to = block(stack, top, m);
                    for ((t, &x), &y) in to.iter_mut().zip(x).zip(y) {
                        t.write(C::combine(value::<I, WEIGHTED>(x, p), value::<I, WEIGHTED>(y, q)));
                    }
                    top += 1;
                }
                Step::Three(i, j, k) => {
                    let ((x, p), (y, q), (z, r)) = (input(i), input(j), input(k));
                    let to = block(stack, top, m);
                    for (((t, &x), &y), &z) in to.iter_mut().zip(x).zip(y).zip(z) {
                        let pair = C::combine(value::<I, WEIGHTED>(x, p), value::<I, WEIGHTED>(y, q));
                        t.write(C::combine(pair, value::<I, WEIGHTED>(z, r)));
                    }
                    top += 1;
                }
                Step::Four([i, j, k, l]) => {
                    let ((x, p), (y, q), (z, r), (w, s)) = (input(i), input(j), input(k), input(l));
                    let to = block(stack, top, m);
                    for ((((t, &x), &y), &z), &w) in to.iter_mut().zip(x).zip(y).zip(z).zip(w) {
                        let left = C::combine(value::<I, WEIGHTED>(x, p), value::<I, WEIGHTED>(y, q));
                        let right = C::combine(value::<I, WEIGHTED>(z, r), value::<I, WEIGHTED>(w, s));
                        t.write(C::combine(left, right));
                    }
                    top += 1;
                }
                Step::Right(i) => {
                    let (x, p) = input(i);
                    for (t, &x) in filled(stack, top - 1, m).iter_mut().zip(x) {
                        *t = C::combine(*t, value::<I, WEIGHTED>(x, p));
                    }
                }
                Step::Left(i) => {
                    let (x, p) = input(i);
                    for (t, &x) in filled(stack, top - 1, m).iter_mut().zip(x) {
                        *t = C::combine(value::<I, WEIGHTED>(x, p), *t);
                    }
                }
                Step::Fold => {
                    let (below, above) = stack.split_at_mut((top - 1) * BLOCK);
                    let to = filled(below, top - 2, m);
                    for (t, &x) in to.iter_mut().zip(&*filled(above, 0, m)) {
                        *t = C::combine(*t, x);
                    }
                    top -= 1;
                }
            }
        }
    }
}

#[inline(always)]
fn value<I: Number, const WEIGHTED: bool>(x: I, weight: f32) -> I::Acc {
    if WEIGHTED { x.widen().weighted(weight) } else { x.widen() }
}

#[inline(always)]
fn block<A>(stack: &mut [MaybeUninit<A>], i: usize, m: usize) -> &mut [MaybeUninit<A>] {
    &mut stack[i * BLOCK..i * BLOCK + m]
}

/// A block that a step before has pushed.
#[inline(always)]
fn filled<A>(stack: &mut [MaybeUninit<A>], i: usize, m: usize) -> &mut [A] {
    // SAFETY: steps come in the order of a stack machine, so whatever they read was pushed, with the same m.
    unsafe { block(stack, i, m).assume_init_mut() }
}

#[inline(always)]
fn finish<A: Accumulator, O: Number<Acc = A>>(sums: &[A], divide: Divide, out: &mut [MaybeUninit<O>]) {
    match divide {
        Divide::No => out.iter_mut().zip(sums).for_each(|(o, &x)| {
            o.write(O::narrow(x));
        }),
        Divide::Times(inverse) => out.iter_mut().zip(sums).for_each(|(o, &x)| {
            o.write(O::narrow(x.times(inverse)));
        }),
        Divide::By(divisor) => out.iter_mut().zip(sums).for_each(|(o, &x)| {
            o.write(O::narrow(x.over(divisor)));
        }),
    }
}

/// Copies m elements.
///
/// # Safety
/// `from` and `to` are m elements each that do not overlap, and `to` is referred to by nobody else now.
#[inline(always)]
unsafe fn store<O: Number>(stores: Stores, from: *const O, to: *mut O, m: usize) {
    match stores {
        // SAFETY: the caller's promise.
        Stores::Cached => unsafe { std::ptr::copy_nonoverlapping(from, to, m) },
        // SAFETY: the caller's promise; elements are plain bytes.
        Stores::Streaming => unsafe { stream(from.cast(), to.cast(), m * size_of::<O>()) },
    }
}

/// Copies bytes past the caches.
///
/// # Safety
/// As for [`store`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    // Whole lines only: a line written in part past the caches costs several times a whole one.
    let head = to.align_offset(64).min(bytes);
    let body = (bytes - head) / 64 * 64;
    // SAFETY: the three parts lie inside both ranges; stores of the middle are aligned to 64 bytes. SSE2 is part of
    // x86-64.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let (mut source, mut target) = (from.add(head), to.add(head));
        let end = source.add(body);
        while source < end {
            let line = source.cast::<__m128i>();
            let (a, b) = (_mm_loadu_si128(line), _mm_loadu_si128(line.add(1)));
            let (c, d) = (_mm_loadu_si128(line.add(2)), _mm_loadu_si128(line.add(3)));
            let line = target.cast::<__m128i>();
            _mm_stream_si128(line, a);
            _mm_stream_si128(line.add(1), b);
            _mm_stream_si128(line.add(2), c);
            _mm_stream_si128(line.add(3), d);
            (source, target) = (source.add(64), target.add(64));
        }
        std::ptr::copy_nonoverlapping(source, target, bytes - head - body);
    }
}

/// Streaming stores are ordered with nothing else; whoever is told of the result must see it.
#[cfg(target_arch = "x86_64")]
fn fence() {
    // SAFETY: part of x86-64.
    unsafe { std::arch::x86_64::_mm_sfence() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

#[cfg(not(target_arch = "x86_64"))]
fn fence() {}
