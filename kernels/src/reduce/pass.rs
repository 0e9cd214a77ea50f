//! One pass over all inputs, block by block: a block of sums stays in the nearest cache until it is stored.
//!
//! A block is read from every input before anything of it is stored, so outputs may be the inputs themselves,
//! and the loops need no proof that they are not: the compiler sees that the sums are nobody else's memory.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::number::{Accumulator, Number};
use super::stores::{fence, store};
use super::tree::{Step, Tree};
use super::{Divide, Stores};
use crate::isa::{Kernel, Simd};

/// Elements of a block: 4 KiB of f32. Long enough for the prefetchers of streams, short enough to stay in the
/// nearest cache.
pub(super) const BLOCK: usize = 1024;
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
        // Every comparison with a NaN is false: a second one wins here, a first one below.
        let less = if a < b { a } else { b };
        if a.is_nan() { a } else { less }
    }
}

/// Larger of two, or the NaN among them; of zeros of both signs, the second.
pub(super) struct Greatest;
impl Combine for Greatest {
    #[inline(always)]
    fn combine<A: Accumulator>(a: A, b: A) -> A {
        let more = if a > b { a } else { b };
        if a.is_nan() { a } else { more }
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
        // One level more: while the second numbers of pairs are summed, the sums of the first lie below.
        let levels = self.tree.depth + 1;
        let stack = if levels <= SHALLOW {
            &mut shallow[..]
        } else {
            deep.resize(levels * BLOCK, MaybeUninit::uninit());
            &mut deep[..]
        };
        let mut from = 0;
        if I::PAIRED && I::TYPE == O::TYPE {
            from = self.len / 2 * 2;
            for at in (0..from).step_by(2 * BLOCK) {
                self.pairs(at, (from - at).min(2 * BLOCK) / 2, stack);
            }
        }
        for at in (from..self.len).step_by(BLOCK) {
            self.singles(at, (self.len - at).min(BLOCK), stack);
        }
        if self.stores == Stores::Streaming {
            fence();
        }
    }
}

/// What a loop reads: numbers, or one of two that share a word.
trait Load: Copy {
    type Acc;
    fn load(self) -> Self::Acc;
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Single<I>(I);
impl<I: Number> Load for Single<I> {
    type Acc = I::Acc;
    #[inline(always)]
    fn load(self) -> I::Acc {
        self.0.widen()
    }
}

/// Two neighbours as they lie in memory, at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Word(u32);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct First<I>(Word, PhantomData<I>);
impl<I: Number> Load for First<I> {
    type Acc = I::Acc;
    #[inline(always)]
    fn load(self) -> I::Acc {
        I::first(self.0.0)
    }
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Second<I>(Word, PhantomData<I>);
impl<I: Number> Load for Second<I> {
    type Acc = I::Acc;
    #[inline(always)]
    fn load(self) -> I::Acc {
        I::second(self.0.0)
    }
}

impl<I, O, C, const WEIGHTED: bool> Pass<'_, I, O, C, WEIGHTED>
where
    I: Number,
    O: Number<Acc = I::Acc>,
    C: Combine,
{
    /// Reduces elements `at..at + m`.
    #[inline(always)]
    fn singles(&self, at: usize, m: usize, stack: &mut [MaybeUninit<I::Acc>]) {
        self.evaluate::<Single<I>>(at, m, stack);
        let sums = &*filled(stack, 0, m);
        let mut staged = [const { MaybeUninit::<O>::uninit() }; BLOCK];
        let both = self.target(at, &mut staged[..m]).iter_mut().zip(sums);
        match self.divide {
            Divide::No => both.for_each(|(o, &x)| *o = MaybeUninit::new(O::narrow(x))),
            Divide::Times(f) => both.for_each(|(o, &x)| *o = MaybeUninit::new(O::narrow(x.times(f)))),
            Divide::By(d) => both.for_each(|(o, &x)| *o = MaybeUninit::new(O::narrow(x.over(d)))),
        }
        self.spread(at, &staged[..m]);
    }

    /// Reduces m pairs from element `at` on.
    #[inline(always)]
    fn pairs(&self, at: usize, m: usize, stack: &mut [MaybeUninit<I::Acc>]) {
        match (&self.tree.steps[..], self.divide) {
            (&[Step::Two(i, j)], Divide::No) => return self.few::<2, false>(at, m, [i, j], 1.0),
            (&[Step::Two(i, j)], Divide::Times(f)) => return self.few::<2, true>(at, m, [i, j], f),
            (&[Step::Four(all)], Divide::No) => return self.few::<4, false>(at, m, all, 1.0),
            (&[Step::Four(all)], Divide::Times(f)) => return self.few::<4, true>(at, m, all, f),
            _ => {}
        }
        self.evaluate::<First<I>>(at, m, stack);
        let (firsts, rest) = stack.split_at_mut(BLOCK);
        self.evaluate::<Second<I>>(at, m, rest);
        let (firsts, seconds) = (&*filled(firsts, 0, m), &*filled(rest, 0, m));
        let mut staged = [const { MaybeUninit::<Word>::uninit() }; BLOCK];
        let all = self.target(at, &mut staged[..m]).iter_mut().zip(firsts).zip(seconds);
        match self.divide {
            Divide::No => all.for_each(|((o, &x), &y)| *o = MaybeUninit::new(Word(O::pack(x, y)))),
            Divide::Times(f) => {
                all.for_each(|((o, &x), &y)| *o = MaybeUninit::new(Word(O::pack(x.times(f), y.times(f)))));
            }
            Divide::By(d) => {
                all.for_each(|((o, &x), &y)| *o = MaybeUninit::new(Word(O::pack(x.over(d), y.over(d)))));
            }
        }
        self.spread(at, &staged[..m]);
    }

    /// Reduces m pairs of two or four contributions, which stay in registers.
    #[inline(always)]
    fn few<const K: usize, const SCALED: bool>(&self, at: usize, m: usize, which: [usize; K], factor: f32) {
        // SAFETY: as in `evaluate`.
        let word = |i: usize| unsafe { std::slice::from_raw_parts(self.inputs[i].add(at).cast::<Word>(), m) };
        let words = which.map(word);
        let weights = which.map(|i| if WEIGHTED { self.weights[i] } else { 1.0 });
        // Never straight to the output: it may be an input, and then the loop would not be vector code.
        let mut staged = [const { MaybeUninit::<Word>::uninit() }; BLOCK];
        for (i, to) in staged[..m].iter_mut().enumerate() {
            let mut firsts = [I::Acc::ZERO; K];
            let mut seconds = firsts;
            for k in 0..K {
                let word = words[k][i].0;
                firsts[k] = if WEIGHTED { I::first(word).weighted(weights[k]) } else { I::first(word) };
                seconds[k] = if WEIGHTED { I::second(word).weighted(weights[k]) } else { I::second(word) };
            }
            let (first, second) = (balanced::<C, _, K>(firsts), balanced::<C, _, K>(seconds));
            *to = MaybeUninit::new(Word(if SCALED {
                O::pack(first.times(factor), second.times(factor))
            } else {
                O::pack(first, second)
            }));
        }
        for &out in self.outs {
            // SAFETY: outputs hold `len` elements; the stage is full, and our own memory.
            unsafe { store(self.stores, staged.as_ptr().cast(), out.add(at).cast::<Word>(), m) };
        }
    }

    /// Whether results go straight to the output, without a stage.
    #[inline(always)]
    fn direct(&self) -> Option<*mut O> {
        if let (&[out], Stores::Cached) = (self.outs, self.stores) { Some(out) } else { None }
    }

    /// Where results are written that begin at element `at`.
    #[inline(always)]
    fn target<'s, T>(&self, at: usize, staged: &'s mut [MaybeUninit<T>]) -> &'s mut [MaybeUninit<T>] {
        match self.direct() {
            // SAFETY: outputs hold `len` elements, and no other reference to them lives now. T is O or a pair
            // of O.
            Some(out) => unsafe { std::slice::from_raw_parts_mut(out.add(at).cast(), staged.len()) },
            None => staged,
        }
    }

    /// Copies what was staged to every output.
    #[inline(always)]
    fn spread<T>(&self, at: usize, staged: &[MaybeUninit<T>]) {
        if self.direct().is_none() {
            for &out in self.outs {
                // SAFETY: as for `target`; the stage is full, and our own memory.
                unsafe { store(self.stores, staged.as_ptr().cast(), out.add(at).cast::<T>(), staged.len()) };
            }
        }
    }

    /// Leaves the combination of m items that begin at element `at` in the lowest block of the stack.
    #[inline(always)]
    fn evaluate<L: Load<Acc = I::Acc>>(&self, at: usize, m: usize, stack: &mut [MaybeUninit<I::Acc>]) {
        let input = |i: usize| {
            // SAFETY: inputs hold `len` elements, and nobody writes them until this block is stored. L is an
            // element or a pair of them.
            let x = unsafe { std::slice::from_raw_parts(self.inputs[i].add(at).cast::<L>(), m) };
            (x, if WEIGHTED { self.weights[i] } else { 1.0 })
        };
        let mut top = 0;
        for step in &self.tree.steps {
            match *step {
                Step::One(i) => {
                    let (x, p) = input(i);
                    let to = block(stack, top, m);
                    to.iter_mut()
                        .zip(x)
                        .for_each(|(t, &x)| *t = MaybeUninit::new(value::<_, WEIGHTED>(x, p)));
                    top += 1;
                }
                Step::Two(i, j) => {
                    let ((x, p), (y, q)) = (input(i), input(j));
                    for ((t, &x), &y) in block(stack, top, m).iter_mut().zip(x).zip(y) {
                        let (x, y) = (value::<_, WEIGHTED>(x, p), value::<_, WEIGHTED>(y, q));
                        *t = MaybeUninit::new(C::combine(x, y));
                    }
                    top += 1;
                }
                Step::Three(i, j, k) => {
                    let ((x, p), (y, q), (z, r)) = (input(i), input(j), input(k));
                    for (((t, &x), &y), &z) in block(stack, top, m).iter_mut().zip(x).zip(y).zip(z) {
                        let (x, y) = (value::<_, WEIGHTED>(x, p), value::<_, WEIGHTED>(y, q));
                        *t = MaybeUninit::new(C::combine(C::combine(x, y), value::<_, WEIGHTED>(z, r)));
                    }
                    top += 1;
                }
                Step::Four([i, j, k, l]) => {
                    let ((x, p), (y, q), (z, r), (w, s)) = (input(i), input(j), input(k), input(l));
                    for ((((t, &x), &y), &z), &w) in
                        block(stack, top, m).iter_mut().zip(x).zip(y).zip(z).zip(w)
                    {
                        let (x, y) = (value::<_, WEIGHTED>(x, p), value::<_, WEIGHTED>(y, q));
                        let (z, w) = (value::<_, WEIGHTED>(z, r), value::<_, WEIGHTED>(w, s));
                        *t = MaybeUninit::new(C::combine(C::combine(x, y), C::combine(z, w)));
                    }
                    top += 1;
                }
                Step::Right(i) => {
                    let (x, p) = input(i);
                    let to = filled(stack, top - 1, m);
                    to.iter_mut().zip(x).for_each(|(t, &x)| *t = C::combine(*t, value::<_, WEIGHTED>(x, p)));
                }
                Step::Left(i) => {
                    let (x, p) = input(i);
                    let to = filled(stack, top - 1, m);
                    to.iter_mut().zip(x).for_each(|(t, &x)| *t = C::combine(value::<_, WEIGHTED>(x, p), *t));
                }
                Step::Fold => {
                    let (below, above) = stack.split_at_mut((top - 1) * BLOCK);
                    let to = filled(below, top - 2, m);
                    to.iter_mut().zip(&*filled(above, 0, m)).for_each(|(t, &x)| *t = C::combine(*t, x));
                    top -= 1;
                }
            }
        }
    }
}

/// Combines two or four numbers.
#[inline(always)]
fn balanced<C: Combine, A: Accumulator, const K: usize>(x: [A; K]) -> A {
    if K == 2 { C::combine(x[0], x[1]) } else { C::combine(C::combine(x[0], x[1]), C::combine(x[2], x[3])) }
}

#[inline(always)]
fn value<L: Load, const WEIGHTED: bool>(x: L, weight: f32) -> L::Acc
where
    L::Acc: Accumulator,
{
    if WEIGHTED { x.load().weighted(weight) } else { x.load() }
}

#[inline(always)]
fn block<A>(stack: &mut [MaybeUninit<A>], i: usize, m: usize) -> &mut [MaybeUninit<A>] {
    &mut stack[i * BLOCK..i * BLOCK + m]
}

/// A block that a step before has pushed.
#[inline(always)]
fn filled<A>(stack: &mut [MaybeUninit<A>], i: usize, m: usize) -> &mut [A] {
    // SAFETY: steps come in the order of a stack machine and leave one block, so whatever is read was written,
    // up to the same m.
    unsafe { block(stack, i, m).assume_init_mut() }
}
