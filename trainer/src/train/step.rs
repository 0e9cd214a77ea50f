//! One optimizer update: every micro-batch of this rank, the sums over all ranks, then clip and AdamW.
//!
//! Nothing but gradients changes before every rank has every sum, so a step that fails can be done again by the ranks
//! that are left.

use std::time::Duration;

use muster_kernels::Element;
use muster_proto::Step;
use muster_proto::run_spec::OnNonFinite;

use super::error::TrainError;
use super::event::{Event, StepTimes};
use super::log::{Line, StepRecord};
use super::non_finite::{explain_gradient, explain_loss};
use super::runner::Trainer;
use crate::data::StepBatches;
use crate::engine::Update;
use crate::peers::{Sums, Tally, Vote, Wish};

/// What backward of a step left behind.
struct Computed {
    loss_sum: f64,
    /// The first micro-batch whose loss was not finite.
    broken: Option<usize>,
    times: StepTimes,
}

impl<E: Element> Trainer<'_, E> {
    /// Does a step; `begun` is when the loop began to wait for its rows. Returns what all ranks wish.
    pub(super) fn step(&mut self, batches: &StepBatches, begun: Duration) -> Result<Wish, TrainError> {
        let data = (self.hooks.clock)().saturating_sub(begun);
        let step = Step(self.state.step);
        let Computed { loss_sum, broken, mut times } = self.compute(batches)?;
        let norm = self.engine.grad_norm();
        let tally = self.peers.vote(step, self.own_vote(batches, (loss_sum, norm), times.exposed))?;
        let learning_rate = self.settings.learning_rate.at(step);
        let mut grad_norm = None;
        if tally.loss_sum.is_finite() {
            // Skipped steps moved no moment, so Adam's bias correction does not count them.
            let number = step.0 + 1 - self.state.skipped_steps;
            let max_grad_norm = self.settings.max_grad_norm;
            let applied = self.engine.apply_normed(&Update { number, learning_rate, max_grad_norm }, norm);
            grad_norm = Some(applied.grad_norm).filter(|norm| norm.is_finite());
            if let Some(parameter) = applied.non_finite {
                let (rows, all) = (&self.rows.train, &batches.micro_batches);
                let broken = explain_gradient(&mut self.engine, rows, all, step.0 + 1, &parameter);
                self.skip(TrainError::NonFinite(Box::new(broken)))?;
            }
        } else {
            let reason = match broken.map(|i| &batches.micro_batches[i]) {
                Some(batch) => {
                    let broken = explain_loss(&mut self.engine, &self.rows.train, batch, step.0 + 1);
                    TrainError::NonFinite(Box::new(broken))
                }
                None => TrainError::NonFiniteElsewhere { step: step.0 + 1 },
            };
            self.engine.clear_gradients();
            self.skip(reason)?;
        }
        self.state.step += 1;
        times.data = data;
        times.step = (self.hooks.clock)().saturating_sub(begun);
        times.early = times.exposed.saturating_sub(Duration::from_micros(tally.exposed_us_least));
        self.report(batches.row_count, &tally, (learning_rate, grad_norm), times)?;
        Ok(tally.wish)
    }

    /// Forward and backward of this rank's micro-batches; the gradients are then everybody's.
    fn compute(&mut self, batches: &StepBatches) -> Result<Computed, TrainError> {
        let started = (self.hooks.clock)();
        let (step, rows) = (Step(self.state.step), batches.row_count as usize);
        let mut sums = Sums::new(&self.peers);
        let (mut loss_sum, mut broken) = (0.0, None);
        let last = batches.micro_batches.len().wrapping_sub(1);
        for (i, batch) in batches.micro_batches.iter().enumerate() {
            let loss = match i == last {
                true => {
                    let mut finished = |grads: &mut _, from| sums.start(grads, from);
                    self.engine.train_announcing(batch, step, rows, &mut finished)
                }
                false => self.engine.train(batch, step, rows),
            };
            loss_sum += loss;
            // The other ranks count on this one's sums, so it goes on.
            broken = broken.or((!loss.is_finite()).then_some(i));
        }
        let computed = (self.hooks.clock)();
        sums.finish(self.engine.gradients_mut())?;
        let times = StepTimes {
            compute: computed.saturating_sub(started),
            exposed: (self.hooks.clock)().saturating_sub(computed),
            ..StepTimes::default()
        };
        Ok(Computed { loss_sum, broken, times })
    }

    fn own_vote(&self, batches: &StepBatches, (loss_sum, norm): (f64, f64), exposed: Duration) -> Vote {
        // Equal sums and equal weights stay equal; that weights are is proved now and then, as it reads all of them.
        let proved = self.peers.world_size() > 1 && self.settings.pace.logs(self.state.step + 1);
        Vote {
            loss_sum,
            tokens: batches.micro_batches.iter().map(|b| b.tokens() as u64).sum(),
            // All NaN are one.
            proof: [
                if norm.is_nan() { 0 } else { norm.to_bits() },
                if proved { self.engine.proof() } else { 0 },
            ],
            exposed_us: exposed.as_micros() as u64,
            wish: (self.hooks.wish)(),
        }
    }

    fn skip(&mut self, reason: TrainError) -> Result<(), TrainError> {
        match self.settings.on_non_finite {
            OnNonFinite::Stop => Err(reason),
            OnNonFinite::Skip => {
                self.state.skipped_steps += 1;
                let skipped = self.state.skipped_steps;
                self.warn(format!("{reason}; the step is skipped ({skipped} so far)"));
                Ok(())
            }
        }
    }

    fn report(
        &mut self,
        rows: u64,
        tally: &Tally,
        (learning_rate, grad_norm): (f64, Option<f64>),
        times: StepTimes,
    ) -> Result<(), TrainError> {
        let now = (self.hooks.clock)();
        self.state.train_ms = self.started.1 + now.saturating_sub(self.started.0).as_millis() as u64;
        self.state.rows += rows;
        self.state.tokens += tally.tokens;
        let seconds = times.step.as_secs_f64();
        let loss = tally.loss_sum / rows as f64;
        let record = StepRecord {
            step: self.state.step,
            epoch: self.settings.pace.epoch(self.state.step),
            loss: Some(loss).filter(|loss| loss.is_finite()),
            learning_rate,
            grad_norm,
            rows,
            tokens: tally.tokens,
            skipped_steps: self.state.skipped_steps,
            elapsed_s: self.state.train_ms as f64 / 1e3,
            tokens_per_s: if seconds > 0.0 { tally.tokens as f64 / seconds } else { 0.0 },
            data_s: times.data.as_secs_f64(),
            compute_s: times.compute.as_secs_f64(),
            exposed_s: times.exposed.as_secs_f64(),
            wait_s: times.early.as_secs_f64(),
        };
        if self.settings.pace.logs(self.state.step) {
            self.log_line(Line::Train(record.clone()))?;
        }
        self.tell(&Event::StepDone(record, times));
        Ok(())
    }
}
