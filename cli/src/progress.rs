//! How a run looks while it runs: a progress bar on a terminal, a line every few seconds elsewhere.

use std::cell::Cell;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use muster_trainer::train::{Event, StepRecord};

use crate::args::Global;

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Tells whether a moving bar can be drawn and is wanted.
fn draws(global: &Global) -> bool {
    !global.quiet && std::io::stderr().is_terminal()
}

/// Shows work that is counted, before and after training; may be told from several threads.
pub struct Counter {
    bar: Option<ProgressBar>,
    last_line: Mutex<Instant>,
}

impl Counter {
    /// Starts with nothing on the screen.
    pub fn new(global: &Global) -> Self {
        let bar = draws(global).then(|| ProgressBar::new(0).with_style(counter_style()));
        Self { bar, last_line: Mutex::new(Instant::now()) }
    }

    /// Shows that `done` of `all` are done.
    pub fn show(&self, what: &str, done: u64, all: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(all);
            bar.set_message(what.to_owned());
            bar.set_position(done);
        } else if self.line_is_due() {
            tracing::info!("{what}: {done} of {all}");
        }
    }

    /// Shows work whose end is not known.
    pub fn note(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_owned()),
            None if self.line_is_due() => tracing::info!("{what}"),
            None => {}
        }
    }

    /// Takes everything off the screen.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn line_is_due(&self) -> bool {
        let Ok(mut last) = self.last_line.lock() else { return false };
        let due = last.elapsed() >= LINE_EVERY;
        if due {
            *last = Instant::now();
        }
        due
    }
}

/// Shows a training run.
pub struct TrainDisplay {
    bar: Option<ProgressBar>,
    counter: Counter,
    total_steps: u64,
    first_step: u64,
    tokens: u64,
    begun: Instant,
    last_line: Cell<Option<Instant>>,
}

impl TrainDisplay {
    /// Starts with nothing on the screen.
    pub fn new(global: &Global) -> Self {
        let bar = draws(global).then(|| ProgressBar::new(0).with_style(train_style()));
        let counter = Counter::new(global);
        let begun = Instant::now();
        Self { bar, counter, total_steps: 0, first_step: 0, tokens: 0, begun, last_line: Cell::new(None) }
    }

    /// Shows an event.
    pub fn show(&mut self, event: &Event) {
        match event {
            Event::Started { step, total_steps } => self.start(*step, *total_steps),
            Event::StepDone(record, _) => self.step(record),
            Event::EvalProgress { rows_done, rows } => self.evaluating(*rows_done, *rows),
            Event::EvalDone(record) => {
                let best = if record.best { " (best so far)" } else { "" };
                self.say(&format!("evaluation after step {}{best}: {}", record.step, record.report));
            }
            Event::TestDone(report) => self.say(&format!("test: {report}")),
            Event::CheckpointSaved { step, path } => {
                self.aside(|| tracing::debug!("saved step {step} in {}", path.display()));
            }
            Event::Exported { step, path } => {
                self.clear();
                tracing::info!("saved the model of step {step} in {}", path.display());
            }
            Event::Warning(text) => self.aside(|| tracing::warn!("{text}")),
        }
    }

    /// Takes everything off the screen.
    pub fn clear(&self) {
        self.counter.clear();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn start(&mut self, step: u64, total_steps: u64) {
        (self.total_steps, self.first_step, self.tokens, self.begun) = (total_steps, step, 0, Instant::now());
        if let Some(bar) = &self.bar {
            bar.set_length(total_steps);
            bar.set_position(step);
            bar.reset_eta();
        }
        let from = if step > 0 { format!(", resumed after step {step}") } else { String::new() };
        self.aside(|| tracing::info!("training {total_steps} steps{from}"));
    }

    fn step(&mut self, record: &StepRecord) {
        self.tokens += record.tokens;
        let seconds = self.begun.elapsed().as_secs_f64();
        let rate = if seconds > 0.0 { self.tokens as f64 / seconds } else { 0.0 };
        let loss = record.loss.map_or("not finite".to_owned(), |loss| format!("{loss:.4}"));
        let numbers = format!("loss {loss}, lr {:.2e}, {rate:.0} tokens/s", record.learning_rate);
        if let Some(bar) = &self.bar {
            bar.set_position(record.step);
            bar.set_message(numbers);
            return;
        }
        let due = self.last_line.get().is_none_or(|last| last.elapsed() >= LINE_EVERY);
        if due || record.step == self.total_steps {
            self.last_line.set(Some(Instant::now()));
            let eta = self.eta(record.step, seconds);
            tracing::info!(
                "step {}/{}, epoch {:.2}, {numbers}, ETA {eta}",
                record.step,
                self.total_steps,
                record.epoch
            );
        }
    }

    /// Time to the last step at the mean pace of this process.
    fn eta(&self, step: u64, seconds: f64) -> String {
        let done = step.saturating_sub(self.first_step).max(1);
        let left = self.total_steps.saturating_sub(step) as f64 * seconds / done as f64;
        clock(Duration::from_secs_f64(left))
    }

    fn evaluating(&self, rows_done: u64, rows: u64) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("evaluating, row {rows_done} of {rows}")),
            None => self.counter.show("evaluating, rows", rows_done, rows),
        }
    }

    fn say(&self, text: &str) {
        self.aside(|| tracing::info!("{text}"));
    }

    /// Writes a line above the bar.
    pub fn aside(&self, write: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

/// Minutes and seconds, or hours and minutes.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds / 60 % 60),
    }
}

fn train_style() -> ProgressStyle {
    let template = "{bar:30} {pos}/{len} steps, {msg}, ETA {eta}";
    ProgressStyle::with_template(template).expect("a constant template is valid")
}

fn counter_style() -> ProgressStyle {
    let template = "{bar:30} {human_pos}/{human_len} {msg}";
    ProgressStyle::with_template(template).expect("a constant template is valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_a_clock() {
        let text = |s| clock(Duration::from_secs(s));
        assert_eq!(
            (text(7), text(125), text(3 * 3600 + 61)),
            ("0:07".into(), "2:05".into(), "3h 01m".to_owned())
        );
    }

    #[test]
    fn templates_are_valid() {
        train_style();
        counter_style();
    }
}
