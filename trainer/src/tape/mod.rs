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
use muster_proto::run_spec::Recompute;

use crate::gradients::Gradients;

pub use buffer::Rows;
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

impl<E: Element> Workspace<E> {
    /// Makes room for micro-batches of up to so many rows of a kind, which spares growing to them.
    pub fn reserve(&mut self, kind: Rows, most: usize) {
        self.activations.expect(kind, 0, most);
        self.floats.expect(kind, 0, most);
    }
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
    recompute: Recompute,
    /// Whether operations are kept for backward.
    recording: bool,
    ops: Vec<Recorded<'a, E>>,
    node_count: usize,
    site_count: u64,
    /// The element behind the last parameter that was read.
    params_end: usize,
}

struct Recorded<'a, E: Element> {
    op: Op<'a, E>,
    out: usize,
    /// The element behind the last parameter that operations before this one read: once this one's backward is done,
    /// no gradient from there on changes any more.
    final_from: usize,
}

#[allow(clippy::large_enum_variant, reason = "nearly all are fused ones, which a box would allocate each")]
enum Op<'a, E: Element> {
    Fused(ops::Op<E>),
    Segment(Segment<'a, E>),
}

/// Operations that backward computes again.
struct Segment<'a, E: Element> {
    body: Body<'a, E>,
    /// Dropouts of the model before it.
    site_count: u64,
}

type Body<'a, E> = Box<dyn Fn(&mut Tape<'a, E>) -> Var<E> + 'a>;

impl<'a, E: Element> Tape<'a, E> {
    /// Starts a tape that records, for training; `keys` seed its dropout.
    pub fn training(
        params: &'a [E],
        pool: &'a Pool,
        work: &'a mut Workspace<E>,
        keys: DropoutKeys,
        recompute: Recompute,
    ) -> Self {
        Self { recompute, recording: true, ..Self::new(params, pool, work, Some(keys)) }
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
        Self {
            env,
            keys,
            recompute: Recompute::Never,
            recording: false,
            ops: Vec::new(),
            node_count: 0,
            site_count: 0,
            params_end: 0,
        }
    }

    /// Runs a part of the model whose values need not be kept: with [`Recompute::Layers`] only what `body` holds stays
    /// in memory, and backward runs it again, with the same dropout and the same bits.
    pub fn segment(&mut self, body: impl Fn(&mut Self) -> Var<E> + 'a) -> Var<E> {
        if !self.recording || self.recompute == Recompute::Never {
            return body(self);
        }
        let (site_count, final_from) = (self.site_count, self.params_end);
        self.recording = false;
        let out = body(self);
        self.recording = true;
        let segment = Segment { body: Box::new(body), site_count };
        self.ops.push(Recorded { op: Op::Segment(segment), out: out.node, final_from });
        out
    }

    /// Announces how many rows of a kind the values of this micro-batch have.
    pub fn expect(&mut self, kind: Rows, now: usize) {
        self.env.activations.expect(kind, now, now);
        self.env.floats.expect(kind, now, now);
    }

    fn var(&mut self, data: Buf<E>, rows: usize, cols: usize) -> Var<E> {
        debug_assert_eq!(data.len(), rows * cols);
        self.node_count += 1;
        Var { node: self.node_count - 1, data: Rc::new(data), rows, cols }
    }

    /// Keeps what `op` saved for the backward of `out`; at inference it is dropped at once.
    fn record(&mut self, out: usize, op: ops::Op<E>) {
        let final_from = self.params_end;
        self.params_end = final_from.max(op.params_end());
        if self.recording {
            self.ops.push(Recorded { op: Op::Fused(op), out, final_from });
        }
    }

    /// Adds the gradients of every parameter to `grads`, given `d loss / d logits`.
    ///
    /// `finished` is told again and again from which element of the arena on gradients are final; it may take those
    /// away.
    pub fn backward(
        mut self,
        logits: Logits<E>,
        dlogits: &[f32],
        grads: &mut Gradients,
        finished: &mut dyn FnMut(&mut Gradients, usize),
    ) {
        let mut ops = std::mem::take(&mut self.ops);
        let values = (0..self.node_count).map(|_| None).collect();
        let mut back = Backward { env: self.env, grads, values };
        logits.backward(dlogits, &mut back);
        finished(back.grads, self.params_end);
        while let Some(Recorded { op, out, final_from }) = ops.pop() {
            // Without a gradient nothing of this operation reached the loss.
            let Some(dy) = back.values[out].take() else { continue };
            match op {
                Op::Fused(op) => {
                    op.backward(dy, &mut back);
                    finished(back.grads, final_from);
                }
                Op::Segment(segment) => {
                    let mut again = Tape {
                        env: back.env,
                        keys: self.keys.clone(),
                        recompute: Recompute::Never,
                        recording: true,
                        ops: Vec::new(),
                        node_count: back.values.len(),
                        site_count: segment.site_count,
                        params_end: final_from,
                    };
                    let y = (segment.body)(&mut again);
                    back.values.resize_with(again.node_count, || None);
                    back.values[y.node] = Some(dy);
                    ops.append(&mut again.ops);
                    back.env = again.env;
                }
            }
        }
    }
}

/// State of a backward pass.
struct Backward<'a, 'g, E: Element> {
    env: Env<'a, E>,
    /// Gradients of the parameters.
    grads: &'g mut Gradients,
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
