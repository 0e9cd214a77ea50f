//! What a rank's loop tells, on its way to the agent.

use std::cell::Cell;
use std::time::{Duration, Instant};

use muster_proto::v1::Progress;
use muster_proto::v1::rank_event::Event as Told;

use super::control::Control;
use crate::topology::Binder;
use crate::train::{Event, StepRecord, StepTimes};

/// Progress is told at most this often: tiny models make thousands of steps per second.
const PROGRESS_EVERY: Duration = Duration::from_millis(20);

/// Turns events of the loop into messages to the agent.
pub struct Reporter<'a> {
    control: &'a Control,
    binder: &'a Binder,
    generation: Cell<u64>,
    rank: Cell<u32>,
    total_steps: Cell<u64>,
    /// When progress was told last; none at the start of a generation, whose first step is always told.
    told: Cell<Option<Instant>>,
}

impl<'a> Reporter<'a> {
    /// Reports to this line, with what the binder sees.
    pub fn new(control: &'a Control, binder: &'a Binder) -> Self {
        Self {
            control,
            binder,
            generation: Cell::new(0),
            rank: Cell::new(0),
            total_steps: Cell::new(0),
            told: Cell::new(None),
        }
    }

    /// A generation begins, in which this process is `rank`.
    pub fn training(&self, generation: u64, rank: u32) {
        self.generation.set(generation);
        self.rank.set(rank);
        self.told.set(None);
    }

    /// Tells an event: warnings always, progress of every rank, everything else by the first rank only.
    pub fn observe(&self, event: &Event) {
        if let Event::Started { total_steps, .. } = event {
            self.total_steps.set(*total_steps);
        }
        let is_first = self.rank.get() == 0;
        match event {
            Event::StepDone(record, times) => {
                let last = record.step == self.total_steps.get();
                if last || self.is_due() {
                    self.control.tell(Told::Progress(self.progress(record, times)));
                    if is_first {
                        self.note(event);
                    }
                }
            }
            Event::EvalProgress { rows_done, rows } if rows_done != rows && !self.is_due() => {}
            Event::Warning(_) => self.note(event),
            _ if is_first => self.note(event),
            _ => {}
        }
    }

    fn is_due(&self) -> bool {
        let due = self.told.get().is_none_or(|told| told.elapsed() >= PROGRESS_EVERY);
        if due {
            self.told.set(Some(Instant::now()));
        }
        due
    }

    fn note(&self, event: &Event) {
        let text = serde_json::to_string(event).expect("events have string keys and no foreign types");
        self.control.tell(Told::Note(text));
    }

    fn progress(&self, record: &StepRecord, times: &StepTimes) -> Progress {
        let micros = |time: Duration| time.as_micros() as u64;
        Progress {
            generation: self.generation.get(),
            step: record.step,
            total_steps: self.total_steps.get(),
            loss: record.loss.unwrap_or(f64::NAN),
            learning_rate: record.learning_rate,
            grad_norm: record.grad_norm.unwrap_or(f64::NAN),
            epoch: record.epoch,
            rows: record.rows,
            tokens: record.tokens,
            step_us: micros(times.step),
            compute_us: micros(times.compute),
            exposed_us: micros(times.exposed),
            data_us: micros(times.data),
            early_us: micros(times.early),
            place: Some(self.binder.place().into()),
        }
    }
}
