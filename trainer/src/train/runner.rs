//! The loop over steps.
//!
//! Owns the order of things: step, log, evaluate, save, stop. A checkpoint is written only between steps and holds all
//! that the next step depends on, so a run that is stopped anywhere and resumed gives the same weights bit by bit
//! (case 39). The loop reads no clock and no signal by itself; both are handed in. With several ranks each of them runs
//! this loop; what they decide follows from votes and sums that are equal on all ranks, so they decide alike.

use std::time::Duration;

use muster_kernels::Element;

use super::error::TrainError;
use super::evaluate::{EvalHooks, EvalPlan, Evaluators, Rows, evaluate};
use super::event::Event;
use super::log::{EvalRecord, Line, LogError, MetricsLog, NewestLines};
use super::progress::{LoopState, evaluation};
use super::settings::{Ending, Hooks, RunRows, Settings};
use super::store::RunStore;
use crate::data::{LoadPlan, Loader, Sampler};
use crate::engine::Engine;
use crate::metrics::Report;
use crate::peers::{Peers, Wish};
use crate::topology::Binder;

/// A run between its first and its last step, on one rank.
pub struct Trainer<'a, E: Element> {
    pub(super) engine: Engine<E>,
    pub(super) settings: Settings,
    pub(super) rows: RunRows,
    pub(super) store: RunStore,
    pub(super) state: LoopState,
    pub(super) hooks: Hooks<'a>,
    pub(super) peers: Peers,
    /// What tells where this process may compute; none where nobody watches.
    pub(super) binder: Option<&'a Binder>,
    /// Whether weights, moments and `state` mean something: not before a rank that joins has received them.
    pub(super) has_state: bool,
    /// The evaluation of the best model, if this process made it.
    pub(super) best_report: Option<(u64, Report)>,
    /// The open log, on the rank that writes.
    pub(super) log: Option<MetricsLog>,
    /// What the log ends with, on every rank.
    pub(super) newest_lines: NewestLines,
    /// Clock and `state.train_ms` at the start of this process.
    pub(super) started: (Duration, u64),
    /// The step whose checkpoint this process read or wrote last.
    pub(super) saved_step: Option<u64>,
}

impl<'a, E: Element> Trainer<'a, E> {
    /// Takes over an engine that is at `state`: fresh (step 0), restored from `store`, or without any. It must
    /// [`join`](Trainer::join) peers before it runs, if only itself.
    pub fn new(
        engine: Engine<E>,
        settings: Settings,
        rows: RunRows,
        (store, state): (RunStore, Option<LoopState>),
        hooks: Hooks<'a>,
    ) -> Self {
        let has_state = state.is_some();
        let state = state.unwrap_or_default();
        let started = ((hooks.clock)(), state.train_ms);
        let saved_step = (state.step > 0).then_some(state.step);
        let (best_report, log, peers, binder) = (None, None, Peers::alone(), None);
        let newest_lines = NewestLines::default();
        Self {
            engine,
            settings,
            rows,
            store,
            state,
            hooks,
            peers,
            binder,
            has_state,
            best_report,
            log,
            newest_lines,
            started,
            saved_step,
        }
    }

    /// Steps done; none if this rank has no weights yet.
    pub fn step_done(&self) -> Option<u64> {
        self.has_state.then_some(self.state.step)
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        self.settings.pace.total_steps
    }

    /// Runs to the end, to an early stop, or to a wish to stop or to regroup.
    ///
    /// # Errors
    /// A loss or gradient that is not finite (unless it is to be skipped), or a log or checkpoint that can't be
    /// written. After [`TrainError::Peers`] the loop can go on with other peers.
    pub fn run(&mut self) -> Result<Ending, TrainError> {
        let total_steps = self.total_steps();
        self.tell(&Event::Started { step: self.state.step, total_steps });
        // A run that was stopped between a step and the evaluation after it.
        let evaluation_due = self.settings.pace.evaluates(self.state.step) && !self.state.is_evaluated();
        if evaluation_due && !self.evaluate()? {
            return Ok(Ending::Interrupted);
        }
        let mut loader = self.start_loader()?;
        while self.state.step < total_steps && !self.is_exhausted() {
            let begun = (self.hooks.clock)();
            let Some(batches) = loader.next_step()? else { break };
            let wish = self.step(&batches, begun)?;
            if let Some(ending) = self.after_step(wish)? {
                return Ok(ending);
            }
            self.rebind();
        }
        Ok(if self.state.step < total_steps { Ending::StoppedEarly } else { Ending::Finished })
    }

    fn start_loader(&self) -> Result<Loader, TrainError> {
        let rows = &self.rows.train;
        let plan = LoadPlan {
            sampler: Sampler::new(self.settings.seed, rows.len() as u64, self.settings.global_batch),
            rows: rows.set.clone(),
            share: self.peers.share(),
            budget: self.settings.budget,
            steps: self.state.step..self.total_steps(),
            ahead: self.settings.load_ahead,
        };
        Ok(Loader::start(rows.store.clone(), plan)?)
    }

    /// Evaluates and saves where it is due, and ends the loop where all ranks wish so.
    fn after_step(&mut self, wish: Wish) -> Result<Option<Ending>, TrainError> {
        let step = self.state.step;
        // An evaluation may take longer than a preempted pod has left: a wish to stop postpones it to the resume.
        if self.settings.pace.evaluates(step) && wish < Wish::Stop && !self.evaluate()? {
            return Ok(Some(Ending::Interrupted));
        }
        if wish == Wish::SaveAndStop || self.settings.pace.saves(step) || self.is_exhausted() {
            self.save_unless_saved()?;
        }
        Ok(match wish {
            Wish::GoOn => None,
            Wish::Regroup => Some(Ending::Regroup),
            Wish::Stop | Wish::SaveAndStop => Some(Ending::Interrupted),
        })
    }

    /// Evaluates the current model and saves it if it is the best; false if interrupted (a checkpoint is then saved).
    fn evaluate(&mut self) -> Result<bool, TrainError> {
        let Some(rows) = self.rows.eval.clone() else { return Ok(true) };
        let begun = (self.hooks.clock)();
        let Some(report) = self.measure(&rows)? else {
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
        self.log_line(Line::Eval(record.clone()))?;
        self.tell(&Event::EvalDone(record));
        if best {
            self.save_unless_saved()?;
        }
        Ok(true)
    }

    /// Evaluates the current weights on `rows`, which all ranks have equal; `None` if somebody wished to end meanwhile.
    pub(super) fn measure(&mut self, rows: &Rows) -> Result<Option<Report>, TrainError> {
        let peers = std::mem::take(&mut self.peers);
        let report = self.measure_by(rows, Evaluators::All(&peers));
        self.peers = peers;
        report
    }

    pub(super) fn measure_by(&mut self, rows: &Rows, by: Evaluators) -> Result<Option<Report>, TrainError> {
        let Settings { names, threshold, eval_budget, .. } = &self.settings;
        let plan = EvalPlan { names, threshold: *threshold, budget: *eval_budget };
        let observe = &mut *self.hooks.observe;
        let mut progress = |rows_done, rows| observe(&Event::EvalProgress { rows_done, rows });
        let hooks = EvalHooks { wish: self.hooks.wish, progress: &mut progress };
        Ok(evaluate(&mut self.engine, rows, &plan, by, hooks)?)
    }

    /// Saves the state, on the rank that writes, unless this step is on disk already: weights are the same, and an
    /// evaluation that came after it is repeated by a resume.
    pub(super) fn save_unless_saved(&mut self) -> Result<(), TrainError> {
        let step = self.state.step;
        let Some(log) = self.log.as_mut().filter(|_| self.saved_step != Some(step)) else { return Ok(()) };
        log.sync()?;
        let path = self.store.save(&mut self.engine, &self.state, &self.settings.best)?;
        self.saved_step = Some(step);
        self.tell(&Event::CheckpointSaved { step, path });
        Ok(())
    }

    /// Saves the present state, unless it is on disk already.
    ///
    /// # Errors
    /// No space or a failed write.
    pub fn save(&mut self) -> Result<(), TrainError> {
        self.save_unless_saved()
    }

    /// The step whose checkpoint this process read or wrote last.
    pub fn saved_step(&self) -> Option<u64> {
        self.saved_step
    }

    /// What operations with the peers wait for, for the report of a failure.
    pub fn flight_record(&self) -> Vec<String> {
        self.peers.flight_record()
    }

    /// Notes a line, and writes it on the rank that writes.
    pub(super) fn log_line(&mut self, line: Line) -> Result<(), LogError> {
        if let Some(log) = &mut self.log {
            log.write(&line)?;
        }
        self.newest_lines.push(line);
        Ok(())
    }

    fn is_exhausted(&self) -> bool {
        self.state.is_exhausted(&self.settings.best)
    }

    pub(super) fn tell(&mut self, event: &Event) {
        (self.hooks.observe)(event);
    }

    pub(super) fn warn(&mut self, text: String) {
        self.tell(&Event::Warning(text));
    }
}
