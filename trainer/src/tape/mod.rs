//! A small reverse tape of fused operations over packed sequences.
//!
//! Model code calls the operations of [`Tape`] like functions; each one computes at once and, while training,
//! leaves behind what its backward needs. [`Tape::backward`] walks the operations in reverse and adds the gradients
//! of the parameters into one flat f32 arena. A value that no later backward needs is recycled as soon as the model
//! code drops its [`Var`].
//!
//! Deliberately absent: padding and masks (sequences are packed), gradients of gradients, gradients with respect to
//! token ids, and any random state (dropout is a pure function of its keys, so forward and backward agree without
//! storing a mask).

pub mod buffer;
mod keys;
mod ops;

use std::rc::Rc;

use muster_kernels::Element;
use muster_kernels::gemm::Scratch;
use muster_kernels::linear::Cx;
use muster_kernels::pool::Pool;

use buffer::{Buf, Recycler};
pub use keys::{DropoutKeys, KeyKind};
pub use ops::{Embed, Heads, Logits, Rates, Relative};

/// Buffers and scratch memory that live longer than one tape.
pub struct Workspace<E> {
    /// Activations and their gradients.
    pub activations: Recycler<E>,
    /// LayerNorm statistics, log-sum-exps and other f32 values.
    pub floats: Recycler<f32>,
    /// Working memory of the GEMMs.
    pub scratch: Scratch,
}

impl<E> Default for Workspace<E> {
    fn default() -> Self {
        Self { activations: Recycler::default(), floats: Recycler::default(), scratch: Scratch::default() }
    }
}

/// A value on the tape: a matrix of `rows x cols`.
#[derive(Debug)]
pub struct Var<E: Element> {
    node: usize,
    data: Rc<Buf<E>>,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

impl<E: Element> Clone for Var<E> {
    fn clone(&self) -> Self {
        Self { node: self.node, data: Rc::clone(&self.data), rows: self.rows, cols: self.cols }
    }
}

impl<E: Element> Var<E> {
    /// The numbers, row-major.
    pub fn data(&self) -> &[E] {
        &self.data
    }
}

/// What every operation works with, forward and backward.
struct Env<'a, E: Element> {
    params: &'a [E],
    pool: &'a Pool,
    scratch: &'a mut Scratch,
    activations: Recycler<E>,
    floats: Recycler<f32>,
}

impl<E: Element> Env<'_, E> {
    fn cx(&mut self) -> Cx<'_> {
        Cx { pool: self.pool, scratch: self.scratch }
    }
}

/// The operations of one micro-batch.
pub struct Tape<'a, E: Element> {
    env: Env<'a, E>,
    /// Present while training: keys of the random streams.
    keys: Option<DropoutKeys>,
    ops: Vec<Recorded<E>>,
    node_count: usize,
    site_count: u64,
}

struct Recorded<E: Element> {
    op: ops::Op<E>,
    out: usize,
}

impl<'a, E: Element> Tape<'a, E> {
    /// Starts a tape that records, for training; `keys` seed its dropout.
    pub fn training(params: &'a [E], pool: &'a Pool, work: &'a mut Workspace<E>, keys: DropoutKeys) -> Self {
        Self::new(params, pool, work, Some(keys))
    }

    /// Starts a tape that only computes: no dropout, nothing kept.
    pub fn inference(params: &'a [E], pool: &'a Pool, work: &'a mut Workspace<E>) -> Self {
        Self::new(params, pool, work, None)
    }

    fn new(params: &'a [E], pool: &'a Pool, work: &'a mut Workspace<E>, keys: Option<DropoutKeys>) -> Self {
        let env = Env {
            params,
            pool,
            scratch: &mut work.scratch,
            activations: work.activations.clone(),
            floats: work.floats.clone(),
        };
        Self { env, keys, ops: Vec::new(), node_count: 0, site_count: 0 }
    }

    fn var(&mut self, data: Buf<E>, rows: usize, cols: usize) -> Var<E> {
        debug_assert_eq!(data.len(), rows * cols);
        self.node_count += 1;
        Var { node: self.node_count - 1, data: Rc::new(data), rows, cols }
    }

    /// Keeps what `op` saved for the backward of `out`; at inference it is dropped at once.
    fn record(&mut self, out: usize, op: ops::Op<E>) {
        if self.keys.is_some() {
            self.ops.push(Recorded { op, out });
        }
    }

    /// Adds the gradients of every parameter to `grads`, given `d loss / d logits`.
    ///
    /// `grads` is an arena with the layout of the parameters.
    pub fn backward(mut self, logits: Logits<E>, dlogits: &[f32], grads: &mut [f32]) {
        assert_eq!(grads.len(), self.env.params.len(), "gradients must have the layout of the parameters");
        let ops = std::mem::take(&mut self.ops);
        let values = (0..self.node_count).map(|_| None).collect();
        let mut back = Backward { env: self.env, grads, values };
        logits.backward(dlogits, &mut back);
        for Recorded { op, out } in ops.into_iter().rev() {
            // Without a gradient nothing of this operation reached the loss.
            if let Some(dy) = back.values[out].take() {
                op.backward(dy, &mut back);
            }
        }
    }
}

/// State of a backward pass.
struct Backward<'a, 'g, E: Element> {
    env: Env<'a, E>,
    /// Gradients of the parameters, arena order.
    grads: &'g mut [f32],
    /// Gradients of the values whose backward has not run yet.
    values: Vec<Option<Buf<E>>>,
}

impl<E: Element> Backward<'_, '_, E> {
    /// Adds `grad` to the gradient of `var`.
    fn give(&mut self, var: &Var<E>, grad: Buf<E>) {
        match &mut self.values[var.node] {
            slot @ None => *slot = Some(grad),
            Some(sum) => muster_kernels::elementwise::add_assign(self.env.pool, sum, &grad),
        }
    }
}
