//! Reductions of k contributions in one pass: the arithmetic of the all-reduce.
//!
//! The value is `sum(w_i x_i) / divisor`, or the least or greatest contribution, evaluated in the canonical
//! order ([`Tree`]) and rounded once, to nearest even. Small floats are accumulated in f32. Where inputs and
//! output are of different types (bf16 on the wire, f32 partial sums) they share the accumulator.
//!
//! Invariants
//! * The same contributions give the same bits on every instruction set, at every length and alignment.
//! * A contribution that is absent or has weight 0 is never read; with none at all the result is the
//!   operation's identity, not divided.
//! * NaN wins over everything, in minima and maxima too, and every NaN that is stored is the same one.
//!
//! Nothing here knows of ranks, sockets or shared memory.

mod number;
mod pass;
mod stores;
mod tree;

use std::marker::PhantomData;

pub use number::{Accumulator, Number, NumberType};
pub use tree::{Tree, fold};

use crate::isa::{Isa, dispatch};
use pass::{Greatest, Least, Pass, Plus};

/// How contributions are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Weighted sum; integers wrap.
    Sum,
    /// The least; weights only tell who takes part.
    Min,
    /// The greatest; weights only tell who takes part.
    Max,
}

/// How results are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stores {
    /// As usual, through the caches.
    Cached,
    /// Past the caches, without reading what is overwritten: for outputs of more than half the last-level
    /// cache.
    Streaming,
}

/// How sums become means.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Divide {
    No,
    /// By a power of two: the product with the inverse has the same bits and is several times faster.
    Times(f32),
    By(f32),
}

impl Divide {
    fn new(divisor: Option<f32>) -> Self {
        match divisor {
            None => Self::No,
            // Mantissa zero, and an inverse that is normal too.
            Some(d) if d.to_bits() & 0x007f_ffff == 0 && d.is_normal() && (1.0 / d).is_normal() => {
                Self::Times(1.0 / d)
            }
            Some(d) => Self::By(d),
        }
    }
}

/// Copies elements, bit by bit, for readers on another core.
///
/// # Safety
/// `from` and `to` hold `len` elements each and do not overlap; until this returns nobody else uses `to`, and
/// nobody writes `from`.
pub unsafe fn copy_raw<T: bytemuck::Pod>(from: *const T, to: *mut T, len: usize, how: Stores) {
    let bytes = len * size_of::<T>();
    // SAFETY: the caller's promise.
    unsafe {
        match how {
            Stores::Cached => stores::copy(from.cast(), to.cast(), bytes),
            Stores::Streaming => {
                stores::stream(from.cast(), to.cast(), bytes);
                stores::fence();
            }
        }
    }
}

/// A reduction that is applied to one range after the other.
#[derive(Debug, Clone, Copy)]
pub struct Reduction<'a> {
    /// Instruction set.
    pub isa: Isa,
    /// How contributions are combined.
    pub op: ReduceOp,
    /// The order; it names the contributions that take part.
    pub tree: &'a Tree,
    /// One per contribution; only sums of floats use them.
    pub weights: &'a [f32],
    /// Divides sums of floats in the end.
    pub divisor: Option<f32>,
    /// How results are stored.
    pub stores: Stores,
}

impl Reduction<'_> {
    /// Reduces ranges of `len` elements into every output at once.
    ///
    /// # Panics
    /// If the counts of inputs, weights and the tree's contributions differ.
    ///
    /// # Safety
    /// * Every input that takes part is valid for reads of `len` elements, every output for writes.
    /// * Until this returns nobody else writes any of them, or reads an output.
    /// * An output may be an input (the same address), but they do not overlap otherwise, and outputs never do.
    pub unsafe fn run_raw<I, O>(&self, inputs: &[*const I], outs: &[*mut O], len: usize)
    where
        I: Number,
        O: Number<Acc = I::Acc>,
    {
        let k = self.tree.inputs();
        assert_eq!((inputs.len(), self.weights.len()), (k, k), "one input and one weight per contribution");
        if self.tree.steps.is_empty() {
            for &out in outs {
                let identity = O::narrow(identity::<I::Acc>(self.op));
                // SAFETY: the caller's promise.
                unsafe { std::slice::from_raw_parts_mut(out, len) }.fill(identity);
            }
            return;
        }
        let floats = !I::TYPE.is_integer();
        let weighted = floats && self.weights.iter().any(|&w| w != 1.0 && w != 0.0);
        match self.op {
            ReduceOp::Sum if weighted => self.pass::<I, O, Plus, true>(inputs, outs, len),
            ReduceOp::Sum => self.pass::<I, O, Plus, false>(inputs, outs, len),
            ReduceOp::Min => self.pass::<I, O, Least, false>(inputs, outs, len),
            ReduceOp::Max => self.pass::<I, O, Greatest, false>(inputs, outs, len),
        }
    }

    /// The rest of [`Reduction::run_raw`], under its promises.
    fn pass<I, O, C, const WEIGHTED: bool>(&self, inputs: &[*const I], outs: &[*mut O], len: usize)
    where
        I: Number,
        O: Number<Acc = I::Acc>,
        C: pass::Combine,
    {
        let sums = self.op == ReduceOp::Sum && !I::TYPE.is_integer();
        let pass: Pass<'_, I, O, C, WEIGHTED> = Pass {
            tree: self.tree,
            inputs,
            weights: self.weights,
            divide: Divide::new(self.divisor.filter(|_| sums)),
            outs,
            len,
            stores: self.stores,
            combine: PhantomData,
        };
        dispatch(self.isa, pass);
    }

    /// Reduces slices into one output.
    ///
    /// # Panics
    /// If an input that takes part is absent or has another length than the output.
    pub fn run<I, O>(&self, inputs: &[Option<&[I]>], out: &mut [O])
    where
        I: Number,
        O: Number<Acc = I::Acc>,
    {
        let pointer = |x: &Option<&[I]>| x.map_or(std::ptr::null(), <[I]>::as_ptr);
        let pointers: Vec<*const I> = inputs.iter().map(pointer).collect();
        for i in self.tree.leaves() {
            let len = inputs.get(i).copied().flatten().map(<[I]>::len);
            assert_eq!(len, Some(out.len()), "input {i} must be there and as long as the output");
        }
        // SAFETY: those that take part are as long as `out`; slices that are borrowed shared and exclusively
        // can't overlap or change.
        unsafe { self.run_raw(&pointers, &[out.as_mut_ptr()], out.len()) }
    }
}

fn identity<A: Accumulator>(op: ReduceOp) -> A {
    match op {
        ReduceOp::Sum => A::ZERO,
        ReduceOp::Min => A::HIGHEST,
        ReduceOp::Max => A::LOWEST,
    }
}

/// Reduces k contributions into `out` in the canonical order over nodes of `groups[i]` ranks each.
///
/// `None` and weight 0 mean: does not take part, and is never read. Weights and divisor apply to sums of floats.
///
/// Cost: reads each contribution once and writes the output once.
///
/// # Examples
/// ```
/// use muster_kernels::isa;
/// use muster_kernels::reduce::{ReduceOp, reduce};
///
/// let (a, b) = ([1.0_f32, 2.0], [3.0_f32, 6.0]);
/// let mut mean = [0.0_f32; 2];
/// let inputs = [Some(&a[..]), Some(&b[..])];
/// reduce(isa::selected(), ReduceOp::Sum, &[2], &inputs, &[1.0, 1.0], Some(2.0), &mut mean);
/// assert_eq!(mean, [2.0, 4.0]);
/// ```
///
/// # Panics
/// If counts or lengths differ.
pub fn reduce<I, O>(
    isa: Isa,
    op: ReduceOp,
    groups: &[usize],
    inputs: &[Option<&[I]>],
    weights: &[f32],
    divisor: Option<f32>,
    out: &mut [O],
) where
    I: Number,
    O: Number<Acc = I::Acc>,
{
    let tree = Tree::new(groups, |r| weights[r] != 0.0 && inputs[r].is_some());
    Reduction { isa, op, tree: &tree, weights, divisor, stores: Stores::Cached }.run(inputs, out);
}
