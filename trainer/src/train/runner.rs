//! The step loop.
//!
//! Owns the order of things: step, log, evaluate, save, stop. A checkpoint is written only between steps and holds all
//! that the next step depends on, so a run that is stopped anywhere and resumed gives the same weights bit by bit
//! (case 39). The loop reads no clock and no signal by itself; both are handed in.

use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_kernels::Element;
use muster_proto::Step;
use muster_proto::run_spec::OnNonFinite;

use super::error::TrainError;
use super::evaluate::{EvalPlan, Rows, evaluate};
use super::event::Event;
use super::log::{EvalRecord, Line, LogEnd, MetricsLog, StepRecord};
use super::non_finite::{NonFinite, explain_gradient, explain_loss};
use super::progress::{LoopState, evaluation};
use super::settings::{Ending, Hooks, RunRows, Settings};
use super::store::RunStore;
use crate::data::{LoadPlan, Loader, Sampler, StepBatches};
use crate::engine::{Engine, Update};
use crate::metrics::Report;

/// A run between its first and its last step.
pub struct Trainer<'a, E: Element> {
    pub(super) engine: Engine<E>,
    pub(super) settings: Settings,
    pub(super) rows: RunRows,
    pub(super) store: RunStore,
    pub(super) state: LoopState,
    pub(super) hooks: Hooks<'a>,
    /// The evaluation of the best model, if this process made it.
    pub(super) best_report: Option<(u64, Report)>,
    log: MetricsLog,
    /// Clock and `state.train_ms` at the start of this process.
    started: (Duration, u64),
    /// The step whose checkpoint this process read or wrote last.
    saved_step: Option<u64>,
}

impl<'a, E: Element> Trainer<'a, E> {
    /// Takes over an engine that is at `state`: fresh (step 0) or restored from `store`.
    ///
    /// # Errors
    /// If the metrics log can't be opened.
    pub fn new(
        engine: Engine<E>,
        settings: Settings,
        rows: RunRows,
        (store, state): (RunStore, LoopState),
        hooks: Hooks<'a>,
    ) -> Result<Self, TrainError> {
        let end = LogEnd { step: state.step, evaluated: state.is_evaluated() };
        let log = MetricsLog::open(&store.metrics_path(), end)?;
        let started = ((hooks.clock)(), state.train_ms);
        let saved_step = (state.step > 0).then_some(state.step);
        let best_report = None;
        Ok(Self { engine, settings, rows, store, state, hooks, best_report, log, started, saved_step })
    }

    /// Runs to the end, to an early stop, or to the stop flag.
    ///
    /// # Errors
    /// A loss or gradient that is not finite (unless it is to be skipped), or a log or checkpoint that can't be
    /// written.
    pub fn run(&mut self) -> Result<Ending, TrainError> {
        let total_steps = self.settings.pace.total_steps;
        (self.hooks.observe)(&Event::Started { step: self.state.step, total_steps });
        // A run that was stopped between a step and the evaluation after it.
        let evaluation_due = self.settings.pace.evaluates(self.state.step) && !self.state.is_evaluated();
        if evaluation_due && !self.evaluate()? {
            return Ok(Ending::Interrupted);
        }
        let mut loader = self.start_loader()?;
        while self.state.step < total_steps && !self.is_exhausted() {
            if self.stop_requested() {
                self.save_unless_saved()?;
                return Ok(Ending::Interrupted);
            }
            let Some(batches) = loader.next_step()? else { break };
            self.step(&batches)?;
            if !self.after_step()? {
                return Ok(Ending::Interrupted);
            }
        }
        Ok(if self.state.step < total_steps { Ending::StoppedEarly } else { Ending::Finished })
    }

    fn start_loader(&self) -> Result<Loader, TrainError> {
        let rows = &self.rows.train;
        let sampler = Sampler::new(self.settings.seed, rows.len() as u64, self.settings.global_batch);
        let steps = self.state.step..self.settings.pace.total_steps;
        let (budget, ahead) = (self.settings.budget, self.settings.load_ahead);
        let plan = LoadPlan { sampler, rows: rows.set.clone(), budget, steps, ahead };
        Ok(Loader::start(rows.store.clone(), plan)?)
    }

    /// One optimizer update: every micro-batch, then clip and AdamW.
    fn step(&mut self, batches: &StepBatches) -> Result<(), TrainError> {
        let begun = (self.hooks.clock)();
        let step = Step(self.state.step);
        let learning_rate = self.settings.learning_rate.at(step);
        let mut loss_sum = 0.0;
        let mut broken = None;
        for batch in &batches.micro_batches {
            let loss = self.engine.train(batch, step, batches.row_count as usize);
            loss_sum += loss;
            if !loss.is_finite() {
                broken = Some(explain_loss(&mut self.engine, &self.rows.train, batch, step.0 + 1));
                break;
            }
        }
        let mut grad_norm = None;
        if broken.is_some() {
            self.engine.clear_gradients();
        } else {
            // Skipped steps moved no moment, so Adam's bias correction does not count them.
            let number = step.0 + 1 - self.state.skipped_steps;
            let max_grad_norm = self.settings.max_grad_norm;
            let applied = self.engine.apply(&Update { number, learning_rate, max_grad_norm });
            grad_norm = Some(applied.grad_norm).filter(|norm| norm.is_finite());
            broken = applied.non_finite.map(|parameter| {
                let (rows, all) = (&self.rows.train, &batches.micro_batches);
                explain_gradient(&self.engine, rows, all, step.0 + 1, &parameter)
            });
        }
        if let Some(broken) = broken {
            self.skip(broken)?;
        }
        self.state.step += 1;
        let loss = loss_sum / batches.row_count as f64;
        let tokens = batches.micro_batches.iter().map(|b| b.tokens() as u64).sum();
        self.report_step(StepNumbers {
            loss,
            learning_rate,
            grad_norm,
            rows: batches.row_count,
            tokens,
            begun,
        })
    }

    fn skip(&mut self, broken: NonFinite) -> Result<(), TrainError> {
        match self.settings.on_non_finite {
            OnNonFinite::Stop => Err(TrainError::NonFinite(Box::new(broken))),
            OnNonFinite::Skip => {
                self.state.skipped_steps += 1;
                let skipped = self.state.skipped_steps;
                self.warn(format!("{broken}; the step is skipped ({skipped} so far)"));
                Ok(())
            }
        }
    }

    fn report_step(&mut self, numbers: StepNumbers) -> Result<(), TrainError> {
        let now = (self.hooks.clock)();
        self.state.train_ms = self.started.1 + now.saturating_sub(self.started.0).as_millis() as u64;
        self.state.rows += numbers.rows;
        self.state.tokens += numbers.tokens;
        let seconds = now.saturating_sub(numbers.begun).as_secs_f64();
        let record = StepRecord {
            step: self.state.step,
            epoch: self.settings.pace.epoch(self.state.step),
            loss: Some(numbers.loss).filter(|loss| loss.is_finite()),
            learning_rate: numbers.learning_rate,
            grad_norm: numbers.grad_norm,
            rows: numbers.rows,
            tokens: numbers.tokens,
            skipped_steps: self.state.skipped_steps,
            elapsed_s: self.state.train_ms as f64 / 1e3,
            tokens_per_s: if seconds > 0.0 { numbers.tokens as f64 / seconds } else { 0.0 },
        };
        if self.settings.pace.logs(self.state.step) {
            self.log.write(&Line::Train(&record))?;
        }
        (self.hooks.observe)(&Event::StepDone(record));
        Ok(())
    }

    /// Evaluates and saves where it is due; false if the run was interrupted.
    fn after_step(&mut self) -> Result<bool, TrainError> {
        let step = self.state.step;
        // An evaluation may take longer than a preempted pod has left: a pending stop postpones it to the resume.
        if self.settings.pace.evaluates(step) && !self.stop_requested() && !self.evaluate()? {
            return Ok(false);
        }
        if self.stop_requested() || self.settings.pace.saves(step) || self.is_exhausted() {
            self.save_unless_saved()?;
        }
        Ok(!self.stop_requested())
    }

    /// Evaluates the current model and saves it if it is the best; false if interrupted (a checkpoint is then saved).
    fn evaluate(&mut self) -> Result<bool, TrainError> {
        let Some(rows) = self.rows.eval.clone() else { return Ok(true) };
        let begun = (self.hooks.clock)();
        let Some(report) = self.measure(&rows) else {
            self.save_unless_saved()?;
            return Ok(false);
        };
        let step = self.state.step;
        let rule = &self.settings.best;
        let measured = evaluation(step, &report, rule);
        let exists = measured.metrics.contains_key(&rule.name);
        let best = self.state.record(measured, rule);
        if best {
            self.best_report = Some((step, report.clone()));
        }
        if !exists {
            let name = self.settings.best.name.clone();
            self.warn(format!("{name} does not exist after step {step}: the model can't be the best one"));
        }
        report
            .notices()
            .into_iter()
            .for_each(|notice| self.warn(format!("evaluation after step {step}: {notice}")));
        let epoch = self.settings.pace.epoch(step);
        let duration_s = (self.hooks.clock)().saturating_sub(begun).as_secs_f64();
        let record = EvalRecord { step, epoch, best, report, duration_s };
        self.log.write(&Line::Eval(&record))?;
        (self.hooks.observe)(&Event::EvalDone(record));
        if best {
            self.save_unless_saved()?;
        }
        Ok(true)
    }

    /// Evaluates the current weights on `rows`; `None` if the stop flag was set meanwhile.
    pub(super) fn measure(&mut self, rows: &Rows) -> Option<Report> {
        let Settings { names, threshold, eval_budget, .. } = &self.settings;
        let plan = EvalPlan { names, threshold: *threshold, budget: *eval_budget };
        let observe = &mut *self.hooks.observe;
        let mut progress = |rows_done, rows| observe(&Event::EvalProgress { rows_done, rows });
        evaluate(&mut self.engine, rows, &plan, self.hooks.stop, &mut progress)
    }

    /// Saves the state unless this step is on disk already: weights are the same, and an evaluation that came after it
    /// is repeated by a resume.
    fn save_unless_saved(&mut self) -> Result<(), TrainError> {
        let step = self.state.step;
        if self.saved_step == Some(step) {
            return Ok(());
        }
        self.log.sync()?;
        let path = self.store.save(&self.engine, &self.state, &self.settings.best)?;
        self.saved_step = Some(step);
        (self.hooks.observe)(&Event::CheckpointSaved { step, path });
        Ok(())
    }

    fn is_exhausted(&self) -> bool {
        self.state.is_exhausted(&self.settings.best)
    }

    fn stop_requested(&self) -> bool {
        self.hooks.stop.load(Ordering::Relaxed)
    }

    fn warn(&mut self, text: String) {
        (self.hooks.observe)(&Event::Warning(text));
    }
}

/// What a step found, before it becomes a record.
struct StepNumbers {
    loss: f64,
    learning_rate: f64,
    grad_norm: Option<f64>,
    rows: u64,
    tokens: u64,
    begun: Duration,
}
