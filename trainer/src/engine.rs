//! One rank's arithmetic: weights, gradients and optimizer state of a model, and the step that moves them.
//!
//! The engine knows nothing of files, epochs or logs. Everything it returns is a pure function of the weights, the
//! batches and the seed; neither the number of threads nor the split into micro-batches changes more than the
//! rounding of sums.

use std::ops::Range;

use muster_allreduce::digest;
use muster_kernels::optim::{self, AdamW, Arenas, LazyRows, LiveRows, TableWeights};
use muster_kernels::pool::Pool;
use muster_kernels::{Element, loss, memory};
use muster_proto::Step;
use muster_proto::run_spec::Recompute;

use crate::batch::{MicroBatch, Targets};
use crate::gradients::Gradients;
use crate::model::Model;
use crate::params::{ArenasMut, Params, Table};
use crate::tape::{DropoutKeys, Rows, Tape, Workspace};

/// Settings of AdamW that stay the same over a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hyper {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled weight decay of matrices and tables.
    pub weight_decay: f32,
}

/// Elements of a block of [`Engine::digest`].
const DIGEST_BLOCK: usize = 1 << 18;

/// Packed operands have their rows rounded up by less than this.
const PANEL: usize = 32;

/// One optimizer update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// Number of this update, from 1 (Adam's bias correction).
    pub number: u64,
    /// Learning rate of this update.
    pub learning_rate: f64,
    /// Gradients with a larger global norm are scaled down to it.
    pub max_grad_norm: Option<f64>,
}

/// What an update found.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// Global norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Name of the first parameter with a NaN or infinite gradient; then nothing was changed.
    pub non_finite: Option<String>,
}

/// A model in training: weights, gradients, moments.
pub struct Engine<E: Element> {
    model: Model,
    params: Params<E>,
    grads: Gradients,
    first_moment: Vec<f32>,
    second_moment: Vec<f32>,
    /// Rows of the word table that have moments, and what the others owe.
    words: LazyRows,
    hyper: Hyper,
    /// Stretches of the arenas that AdamW does not decay.
    undecayed: Vec<Range<usize>>,
    seed: u64,
    recompute: Recompute,
    pool: Pool,
    work: Workspace<E>,
}

impl<E: Element> Engine<E> {
    /// Starts from f32 weights in arena order; moments are zero.
    ///
    /// # Panics
    /// If `weights` is not as long as the model's arena.
    pub fn new(model: Model, weights: Vec<f32>, hyper: Hyper, seed: u64, pool: Pool) -> Self {
        let len = model.layout().arena_len();
        let params = Params::new(model.layout().clone(), weights, &pool);
        Self {
            undecayed: model.layout().undecayed(),
            grads: Gradients::new(model.layout(), model.words()),
            words: LazyRows::new(LiveRows::none(model.words().rows)),
            model,
            params,
            first_moment: memory::zeroed(len),
            second_moment: memory::zeroed(len),
            hyper,
            seed,
            recompute: Recompute::Never,
            pool,
            work: Workspace::default(),
        }
    }

    /// Chooses what backward computes again: it changes memory and time, not a bit of the result.
    pub fn recompute(&mut self, what: Recompute) {
        self.recompute = what;
    }

    /// Computes with other threads from now on: it changes time, not a bit of the result.
    pub fn replace_pool(&mut self, pool: Pool) {
        self.pool = pool;
    }

    /// Makes room for micro-batches of up to so many tokens, rows, and tokens of the longest row; larger ones make room
    /// when they come.
    pub fn reserve(&mut self, tokens: usize, rows: usize, longest: usize) {
        self.work.reserve(Rows::Tokens, tokens);
        self.work.reserve(Rows::Sequences, rows);
        self.work.reserve(Rows::Slots, self.model.slots(longest));
        let (tokens, (hidden, widest)) = (tokens + PANEL, self.model.widths());
        self.work.scratch.reserve(tokens * widest, tokens.max(hidden + PANEL) * widest);
    }

    /// The architecture and its layout.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Drops the gradients summed so far, e.g. of a step whose loss is not finite.
    pub fn clear_gradients(&mut self) {
        self.grads.clear(&self.pool);
    }

    /// The f32 weights, arena order.
    pub fn weights(&mut self) -> &[f32] {
        self.state().0
    }

    /// The f32 weights, first and second moments, arena order.
    pub fn state(&mut self) -> (&[f32], &[f32], &[f32]) {
        self.settle_all();
        (self.params.master(), &self.first_moment, &self.second_moment)
    }

    /// A copy of the gradients summed so far, arena order.
    pub fn gradients(&self) -> Vec<f32> {
        self.grads.to_vec()
    }

    /// The buckets of the gradients.
    pub fn gradients_mut(&mut self) -> &mut Gradients {
        &mut self.grads
    }

    /// A digest of the bits of the f32 weights: equal digests mean equal weights.
    pub fn digest(&mut self) -> u64 {
        self.settle_all();
        self.digest_of(self.params.master())
    }

    /// A digest of the bits of the f32 weights that updates have moved by a gradient: without the rows of the word table
    /// that have never had one, and cheaper than [`Engine::digest`] by as much.
    pub fn proof(&self) -> u64 {
        let (master, words) = (self.params.master(), self.model.words());
        assert_eq!(words.range.start, 0, "the word table is what forward reads first");
        let rows = self.words.live().iter().map(|row| digest(&master[row * words.cols..][..words.cols]));
        mixed(rows.chain([self.digest_of(&master[words.range.end..])]))
    }

    /// A digest of the bits of weights and moments: equal digests mean equal states.
    pub fn state_digest(&mut self) -> u64 {
        self.settle_all();
        let arenas = [self.params.master(), &self.first_moment, &self.second_moment];
        mixed(arenas.into_iter().map(|arena| self.digest_of(arena)))
    }

    /// The digest of an arena, made of those of its blocks: any number of threads gives the same.
    fn digest_of(&self, arena: &[f32]) -> u64 {
        let mut parts = vec![0; arena.len().div_ceil(DIGEST_BLOCK)];
        self.pool.each(arena.chunks(DIGEST_BLOCK).zip(&mut parts), |(block, part)| *part = digest(block));
        mixed(parts.into_iter())
    }

    /// Lets `read` overwrite weights and moments where they are, and drops the gradients. No second copy of the
    /// model exists meanwhile.
    ///
    /// # Errors
    /// Those of `read`; weights and moments are then of no use.
    pub fn restore<T, X>(&mut self, read: impl FnOnce(ArenasMut<'_>) -> Result<T, X>) -> Result<T, X> {
        let (first_moment, second_moment) = (&mut self.first_moment[..], &mut self.second_moment[..]);
        let fill = |master: &mut [f32]| read(ArenasMut { master, first_moment, second_moment });
        let read = self.params.overwrite(&self.pool, fill)?;
        self.words = LazyRows::new(self.live_rows());
        self.clear_gradients();
        Ok(read)
    }

    /// Forgets which rows of the word table once had gradients but have no moments any more: who receives this state
    /// can't know them, and [`Engine::proof`] has to be one on all ranks.
    pub fn forget_spent_rows(&mut self) {
        self.settle_all();
        self.words = LazyRows::new(self.live_rows());
    }

    fn live_rows(&self) -> LiveRows {
        let words = self.model.words();
        let moments = [&self.first_moment, &self.second_moment].map(|arena| &arena[words.range.clone()]);
        LiveRows::of_moments(&self.pool, words.cols, moments[0], moments[1])
    }

    /// Runs one micro-batch forward and backward; returns the SUM of its rows' losses.
    ///
    /// Adds to the gradients those of `sum / global_rows`: with `global_rows` the rows of the whole global batch,
    /// any split of it into micro-batches gives the same gradients.
    pub fn train(&mut self, batch: &MicroBatch, step: Step, global_rows: usize) -> f64 {
        self.train_announcing(batch, step, global_rows, &mut |_, _| {})
    }

    /// As [`Engine::train`] for the last micro-batch of a step: `finished` is told, while backward goes on, from which
    /// element on the gradients are final.
    pub fn train_announcing(
        &mut self,
        batch: &MicroBatch,
        step: Step,
        global_rows: usize,
        finished: &mut dyn FnMut(&mut Gradients, usize),
    ) -> f64 {
        self.settle(batch);
        let keys = DropoutKeys::new(self.seed, step.0, batch);
        let mut tape =
            Tape::training(self.params.compute(), &self.pool, &mut self.work, keys, self.recompute);
        let logits = self.model.forward(&mut tape, batch);
        let mut dlogits = vec![0.0; logits.values.len()];
        let scale = 1.0 / global_rows as f32;
        let loss = row_losses(self.model.outputs(), &logits.values, &batch.targets, scale, &mut dlogits);
        tape.backward(logits, &dlogits, &mut self.grads, finished);
        loss
    }

    /// Computes the logits of a micro-batch without dropout, `(R, outputs)`.
    pub fn predict(&mut self, batch: &MicroBatch) -> Vec<f32> {
        self.settle(batch);
        let mut tape = Tape::inference(self.params.compute(), &self.pool, &mut self.work);
        self.model.forward(&mut tape, batch).values
    }

    /// Brings the rows of the word table that a batch reads up to date.
    fn settle(&mut self, batch: &MicroBatch) {
        self.words.settle(&self.pool, &batch.ids, table(&mut self.params, self.model.words()));
    }

    /// Brings all rows of the word table up to date.
    fn settle_all(&mut self) {
        self.words.settle_all(&self.pool, table(&mut self.params, self.model.words()));
    }

    /// The SUM of the rows' losses of logits that [`Engine::predict`] gave.
    pub fn loss(&self, logits: &[f32], targets: &Targets) -> f64 {
        row_losses(self.model.outputs(), logits, targets, 0.0, &mut vec![0.0; logits.len()])
    }

    /// The global norm of the gradients; NaN or infinite if one of them is, or if their squares overflow.
    pub fn grad_norm(&mut self) -> f64 {
        self.grads.settle();
        // One sum per bucket: all ranks and all numbers of threads add in the same order.
        let dense: f64 = self.grads.dense().map(|(_, part)| optim::sum_squares(&self.pool, part)).sum();
        let (words, width) = self.grads.words();
        (dense + optim::sum_squares_rows(&self.pool, words, width, self.grads.touched())).sqrt()
    }

    /// Clips the gradients, moves the weights with AdamW and clears the gradients.
    ///
    /// Gradients that are not finite change nothing but are cleared; the result names the first such parameter.
    pub fn apply(&mut self, update: &Update) -> Applied {
        let grad_norm = self.grad_norm();
        self.apply_normed(update, grad_norm)
    }

    /// As [`Engine::apply`], given [`Engine::grad_norm`].
    pub fn apply_normed(&mut self, update: &Update, grad_norm: f64) -> Applied {
        let non_finite = if grad_norm.is_finite() { None } else { self.first_non_finite() };
        match non_finite {
            None => self.step(update, clip_factor(grad_norm, update.max_grad_norm)),
            Some(_) => self.clear_gradients(),
        }
        Applied { grad_norm, non_finite }
    }

    /// Moves all weights and clears the gradients in one pass over the arenas. The gaps between parameters hold zeros,
    /// which AdamW leaves as they are.
    fn step(&mut self, update: &Update, grad_scale: f32) {
        let hyper = AdamW {
            lr: update.learning_rate as f32,
            beta1: self.hyper.beta1,
            beta2: self.hyper.beta2,
            eps: self.hyper.eps,
            weight_decay: self.hyper.weight_decay,
            step: update.number,
            grad_scale,
        };
        let touched = self.grads.touched().to_vec();
        let (master, compute) = self.params.update_parts();
        let (first_moment, second_moment) = (&mut self.first_moment[..], &mut self.second_moment[..]);
        let mut state = Arenas { grad: &mut [], master, first_moment, second_moment, compute };
        for (range, grad) in self.grads.dense_mut() {
            let undecayed = within(&self.undecayed, &range);
            optim::adamw(&self.pool, &hyper, &undecayed, part(&mut state, range, grad));
        }
        let (grad, width) = self.grads.words_mut();
        let words = part(&mut state, self.model.words().range.clone(), grad);
        optim::adamw_table(&self.pool, &hyper, &mut self.words, &touched, width, words);
        self.grads.cleared();
    }

    /// The sum of squares overflowed or met a NaN: names the parameter, or none if every gradient is finite.
    fn first_non_finite(&self) -> Option<String> {
        let broken = |p: &&crate::params::Param| {
            optim::first_non_finite(&self.pool, self.grads.slice(p.range.clone())).is_some()
        };
        self.model.layout().params().iter().find(broken).map(|p| p.name.clone())
    }
}

/// The weights of the word table.
fn table<'a, E: Element>(params: &'a mut Params<E>, words: &Table) -> TableWeights<'a, E> {
    let (master, compute) = params.update_parts();
    let compute = compute.map(|c| &mut c[words.range.clone()]);
    TableWeights { master: &mut master[words.range.clone()], compute, width: words.cols }
}

/// One digest of several, in their order.
fn mixed(parts: impl Iterator<Item = u64>) -> u64 {
    // The odd number is 2^64 over the golden ratio; the turn brings its high bits down.
    parts.fold(0, |all: u64, part| (all ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

/// A range of all arenas, whose gradients lie elsewhere.
fn part<'a, E>(all: &'a mut Arenas<'_, E>, range: Range<usize>, grad: &'a mut [f32]) -> Arenas<'a, E> {
    Arenas {
        grad,
        master: &mut all.master[range.clone()],
        first_moment: &mut all.first_moment[range.clone()],
        second_moment: &mut all.second_moment[range.clone()],
        compute: all.compute.as_deref_mut().map(|c| &mut c[range]),
    }
}

/// The parts of ascending stretches that lie in `range`, counted from its start.
fn within(stretches: &[Range<usize>], range: &Range<usize>) -> Vec<Range<usize>> {
    let inside = |s: &Range<usize>| s.start.max(range.start)..s.end.min(range.end);
    let cut = stretches.iter().map(inside).filter(|s| s.start < s.end);
    cut.map(|s| s.start - range.start..s.end - range.start).collect()
}

/// Factor that brings a gradient of this norm down to `max`; the same rule as `torch.nn.utils.clip_grad_norm_`.
fn clip_factor(norm: f64, max: Option<f64>) -> f32 {
    match max {
        Some(max) => (max / (norm + 1e-6)).min(1.0) as f32,
        None => 1.0,
    }
}

fn row_losses(outputs: usize, logits: &[f32], targets: &Targets, scale: f32, dlogits: &mut [f32]) -> f64 {
    match targets {
        Targets::None => 0.0,
        Targets::Class(classes) => loss::cross_entropy(outputs, logits, classes, scale, dlogits),
        Targets::Multi { values, .. } => loss::bce_with_logits(outputs, logits, values, scale, dlogits),
        Targets::Value { values, .. } => loss::mse(outputs, logits, values, scale, dlogits),
    }
}
