//! Packs and collates steps ahead of the training loop on one background thread.
//!
//! Steps come in order and are the same whatever the timing. The thread holds `ahead` finished steps at most. Dropping
//! the loader at any moment ends the thread and joins it (case 21): it never waits for anything but the consumer,
//! because the token store is complete before a loader exists.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::batch::MicroBatch;
use crate::peers::Share;

use super::cache::TokenStore;
use super::error::DataError;
use super::pack::{Budget, collate, pack};
use super::sampler::{EpochOrder, Sampler};

/// The micro-batches of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepBatches {
    /// Step, from 0.
    pub step: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Rows of the global batch: the divisor of the loss.
    pub row_count: u64,
    /// This rank's part of it, longest rows first.
    pub micro_batches: Vec<MicroBatch>,
}

/// The rows of a store that a sampler deals.
#[derive(Debug, Clone)]
pub enum RowSet {
    /// Every row.
    All,
    /// These rows (the training part of a split).
    Some(Arc<[u32]>),
}

impl RowSet {
    /// Number of rows.
    pub fn len(&self, store: &TokenStore) -> usize {
        match self {
            RowSet::All => store.rows(),
            RowSet::Some(rows) => rows.len(),
        }
    }

    /// Row of the store for a row of the sampler.
    pub fn get(&self, row: u64) -> u64 {
        match self {
            RowSet::All => row,
            RowSet::Some(rows) => rows[row as usize].into(),
        }
    }
}

/// What a loader delivers.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    /// Deals `rows`; its row count is theirs.
    pub sampler: Sampler,
    /// Which rows of the store.
    pub rows: RowSet,
    /// Which of each global batch.
    pub share: Share,
    /// Size of a micro-batch.
    pub budget: Budget,
    /// First step and the one after the last.
    pub steps: Range<u64>,
    /// Steps kept ready.
    pub ahead: usize,
}

/// A running loader.
pub struct Loader {
    ready: Option<Receiver<StepBatches>>,
    thread: Option<JoinHandle<()>>,
    next: u64,
    end: u64,
}

impl Loader {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses a thread.
    ///
    /// # Panics
    /// The sampler deals another number of rows than the set has.
    pub fn start(store: Arc<TokenStore>, plan: LoadPlan) -> Result<Self, DataError> {
        let rows = plan.rows.len(&store) as u64;
        assert_eq!(plan.sampler.rows(), rows, "the sampler deals the rows of the set");
        let Range { start: next, end } = plan.steps;
        let (out, ready) = bounded(plan.ahead.max(1));
        let thread = std::thread::Builder::new()
            .name("muster-loader".into())
            .spawn(move || produce(&store, &plan, &out))
            .map_err(|e| DataError::Loader { step: next, reason: e.to_string() })?;
        Ok(Self { ready: Some(ready), thread: Some(thread), next, end })
    }

    /// Waits for the next step; `None` after the last one.
    ///
    /// # Errors
    /// The thread ended early (a defect; its message is in the error).
    pub fn next_step(&mut self) -> Result<Option<StepBatches>, DataError> {
        if self.next >= self.end {
            return Ok(None);
        }
        let step = self.next;
        match self.ready.as_ref().and_then(|ready| ready.recv().ok()) {
            Some(batches) => {
                self.next += 1;
                Ok(Some(batches))
            }
            None => Err(DataError::Loader {
                step,
                reason: self.join().unwrap_or_else(|| "no reason given".into()),
            }),
        }
    }

    /// Ends the thread; returns its panic message if it had one.
    fn join(&mut self) -> Option<String> {
        // Without a receiver the thread's next send fails, and it returns.
        self.ready = None;
        let panic = self.thread.take()?.join().err()?;
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
    }
}

impl Iterator for Loader {
    type Item = Result<StepBatches, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.next_step();
        if step.is_err() {
            self.next = self.end;
        }
        step.transpose()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if let Some(message) = self.join() {
            tracing::error!("the loader thread panicked: {message}");
        }
    }
}

fn produce(store: &TokenStore, plan: &LoadPlan, out: &Sender<StepBatches>) {
    let sampler = &plan.sampler;
    let mut order: Option<EpochOrder> = None;
    for step in plan.steps.clone() {
        let epoch = sampler.epoch_of_step(step);
        let current = match order.take() {
            Some(current) if current.epoch() == epoch => current,
            _ => sampler.epoch_order(epoch),
        };
        let rows: Vec<u64> = current.rows_of_step(step).map(|row| plan.rows.get(row)).collect();
        order = Some(current);
        let row_count = rows.len() as u64;
        let length = |row: u64| store.row_tokens(row as usize);
        let groups = pack(&plan.share.of(rows, length), length, plan.budget);
        let micro_batches = groups.iter().map(|group| collate(store, group)).collect();
        let batches = StepBatches { step, epoch, row_count, micro_batches };
        if out.send(batches).is_err() {
            return;
        }
    }
}
