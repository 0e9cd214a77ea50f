//! `metrics.jsonl`: one JSON object per line, appended as training goes.
//!
//! Every line has `kind` and `step`. Fields whose name ends in `_s` (seconds, per second) depend on the machine; all
//! others are a function of the run alone. A resumed run cuts the lines after its checkpoint, so the file reads as if
//! the run had never stopped.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::metrics::Report;
use crate::report::EventFiles;

/// One step of training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Steps done, this one included.
    pub step: u64,
    /// Passes over the data so far.
    pub epoch: f64,
    /// Mean loss over the rows of this step; `None` if it was not finite.
    pub loss: Option<f64>,
    /// Learning rate that this step used.
    pub learning_rate: f64,
    /// Norm of the gradient before clipping; `None` if it was not finite.
    pub grad_norm: Option<f64>,
    /// Rows of the step.
    pub rows: u64,
    /// Tokens of the step.
    pub tokens: u64,
    /// Steps left out so far because something was not finite.
    pub skipped_steps: u64,
    /// Seconds of training so far.
    pub elapsed_s: f64,
    /// Tokens per second of this step.
    pub tokens_per_s: f64,
    /// Seconds that the writing rank waited for the loader in this step.
    pub data_s: f64,
    /// Seconds of its forward and backward.
    pub compute_s: f64,
    /// Seconds that it then waited for the sums of gradients; 0 if it is alone.
    pub exposed_s: f64,
    /// The part of `exposed_s` in which other ranks still computed; the rest is communication that nothing hides.
    #[serde(default)]
    pub wait_s: f64,
}

/// One evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// Steps done.
    pub step: u64,
    /// Passes over the data so far.
    pub epoch: f64,
    /// Whether this is the best model so far.
    pub best: bool,
    /// The numbers.
    #[serde(flatten)]
    pub report: Report,
    /// Seconds of the evaluation.
    pub duration_s: f64,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// A step of training.
    Train(StepRecord),
    /// An evaluation.
    Eval(EvalRecord),
}

impl Line {
    /// Its kind and its step.
    fn head(&self) -> (&'static str, u64) {
        match self {
            Self::Train(record) => ("train", record.step),
            Self::Eval(record) => ("eval", record.step),
        }
    }

    /// The step and the numbers of a line, under the names that the Hugging Face Trainer gives them in TensorBoard.
    fn scalars(&self) -> (u64, Vec<(String, f64)>) {
        let named = |group: &str, name: &str, value: Option<f64>| Some((format!("{group}/{name}"), value?));
        match self {
            Self::Train(r) => {
                let values = [
                    ("loss", r.loss),
                    ("grad_norm", r.grad_norm),
                    ("learning_rate", Some(r.learning_rate)),
                    ("epoch", Some(r.epoch)),
                    ("tokens_per_second", Some(r.tokens_per_s)),
                ];
                (r.step, values.into_iter().filter_map(|(name, value)| named("train", name, value)).collect())
            }
            Self::Eval(r) => {
                let values = r.report.summary().into_iter();
                let values = values.filter_map(|(metric, value)| named("eval", &metric.name(&[]), value));
                (r.step, values.chain(named("eval", "runtime", Some(r.duration_s))).collect())
            }
        }
    }
}

/// The lines of the newest step. Every rank has them: the one that writes may die after a step that all have done and
/// before its line is written, and another one writes it then.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NewestLines(Vec<Line>);

impl NewestLines {
    /// Takes a line; those of earlier steps are written for sure, as whoever writes has begun another step since.
    pub fn push(&mut self, line: Line) {
        let step = line.head().1;
        self.0.retain(|earlier| earlier.head().1 == step);
        self.0.push(line);
    }
}

/// The open log.
pub struct MetricsLog {
    path: PathBuf,
    file: BufWriter<File>,
    /// The last lines that were kept, at most one of each kind.
    kept: Vec<LineHead>,
    /// Where the same numbers go for TensorBoard.
    events: Option<EventFiles>,
}

/// The log can't be written.
#[derive(Debug, thiserror::Error)]
#[error("can't {action} the metrics log {}", path.display())]
pub struct LogError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// How far a log is to be kept: up to the state of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnd {
    /// Steps done.
    pub step: u64,
    /// Whether the evaluation after that step, if any, is done too.
    pub evaluated: bool,
}

#[derive(Debug, Deserialize)]
struct LineHead {
    kind: String,
    step: u64,
}

impl MetricsLog {
    /// Opens the log of a run that goes on at `end`: keeps the lines up to it and drops the rest.
    ///
    /// # Errors
    /// If the file can't be read, cut or written.
    pub fn open(path: &Path, end: LogEnd) -> Result<Self, LogError> {
        let fail = |action| move |source| LogError { action, path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(fail("open"))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(fail("read"))?;
        let bytes = kept_bytes(&text, end);
        file.set_len(bytes).map_err(fail("cut"))?;
        file.seek(SeekFrom::Start(bytes)).map_err(fail("cut"))?;
        let lines = text[..bytes as usize].split_inclusive(|&b| b == b'\n').rev().take(2);
        let kept = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), kept, events: None })
    }

    /// Has the numbers of later lines written to event files too.
    #[must_use]
    pub fn with_events(self, events: EventFiles) -> Self {
        Self { events: Some(events), ..self }
    }

    /// Appends the lines of the newest step that an earlier writer has not written.
    ///
    /// # Errors
    /// If the disk refuses them.
    pub fn complete(&mut self, newest: &NewestLines) -> Result<(), LogError> {
        let is_kept = |line: &&Line| {
            let (kind, step) = line.head();
            self.kept.iter().any(|kept| kept.step == step && kept.kind == kind)
        };
        let missing: Vec<&Line> = newest.0.iter().filter(|line| !is_kept(line)).collect();
        missing.into_iter().try_for_each(|line| self.write(line))
    }

    /// Appends a line and hands it to the system, so that another process sees whole lines.
    ///
    /// # Errors
    /// If the disk refuses it.
    pub fn write(&mut self, line: &Line) -> Result<(), LogError> {
        let mut text = serde_json::to_vec(line).expect("records have string keys and no foreign types");
        text.push(b'\n');
        let written = self.file.write_all(&text).and_then(|()| self.file.flush());
        written.map_err(|source| self.error("write", source))?;
        let Some(events) = &mut self.events else { return Ok(()) };
        let (step, scalars) = line.scalars();
        events.scalars(step, scalars).map_err(|source| LogError {
            action: "write the event files beside",
            path: events.dir().to_owned(),
            source,
        })
    }

    /// Waits until the disk has every line; called before a checkpoint, which must not be newer than its log.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn sync(&mut self) -> Result<(), LogError> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_data());
        synced.map_err(|source| self.error("sync", source))
    }

    fn error(&self, action: &'static str, source: io::Error) -> LogError {
        LogError { action, path: self.path.clone(), source }
    }
}

/// Bytes of the leading whole lines that a run at `end` has written.
fn kept_bytes(text: &[u8], end: LogEnd) -> u64 {
    let before_end = |line: LineHead| {
        line.step < end.step || line.step == end.step && (end.evaluated || line.kind == "train")
    };
    let kept = |line: &&[u8]| {
        line.ends_with(b"\n") && serde_json::from_slice::<LineHead>(line).is_ok_and(before_end)
    };
    text.split_inclusive(|&b| b == b'\n').take_while(kept).map(|line| line.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64) -> StepRecord {
        StepRecord {
            step,
            epoch: 0.5,
            loss: Some(1.25),
            learning_rate: 1e-3,
            grad_norm: None,
            rows: 4,
            tokens: 40,
            skipped_steps: 0,
            elapsed_s: 1.0,
            tokens_per_s: 40.0,
            data_s: 0.0,
            compute_s: 1.0,
            exposed_s: 0.0,
            wait_s: 0.0,
        }
    }

    fn steps(path: &Path) -> Vec<u64> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str::<LineHead>(line).unwrap().step).collect()
    }

    fn end(step: u64) -> LogEnd {
        LogEnd { step, evaluated: true }
    }

    #[test]
    fn a_resumed_run_cuts_later_and_torn_lines_and_appends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut log = MetricsLog::open(&path, end(0)).unwrap();
        (1..=5).for_each(|step| log.write(&Line::Train(record(step))).unwrap());
        drop(log);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"kind\":\"train\",\"st").unwrap();
        drop(MetricsLog::open(&path, end(5)).unwrap());
        assert_eq!(steps(&path), [1, 2, 3, 4, 5]);
        let mut log = MetricsLog::open(&path, end(3)).unwrap();
        log.write(&Line::Train(record(4))).unwrap();
        log.sync().unwrap();
        assert_eq!(steps(&path), [1, 2, 3, 4]);
        drop(MetricsLog::open(&path, end(0)).unwrap());
        assert_eq!(steps(&path), [] as [u64; 0], "a fresh run starts a fresh log");
    }

    /// Found by tests/chaos.rs: the writer was stopped between a step and its line.
    #[test]
    fn the_next_writer_writes_what_the_one_before_had_no_time_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut newest = NewestLines::default();
        let mut log = MetricsLog::open(&path, end(0)).unwrap();
        for step in 1..=2 {
            newest.push(Line::Train(record(step)));
            log.write(&newest.0[0]).unwrap();
        }
        newest.push(Line::Train(record(3)));
        assert_eq!(newest.0.len(), 1, "earlier steps are written");
        for _ in 0..2 {
            let mut log = MetricsLog::open(&path, end(3)).unwrap();
            log.complete(&newest).unwrap();
            assert_eq!(steps(&path), [1, 2, 3], "once");
        }
    }

    #[test]
    fn an_evaluation_that_is_repeated_after_a_resume_has_one_line() {
        let text = b"{\"kind\":\"train\",\"step\":4}\n{\"kind\":\"eval\",\"step\":4}\n";
        assert_eq!(kept_bytes(text, end(4)), text.len() as u64);
        assert_eq!(kept_bytes(text, LogEnd { step: 4, evaluated: false }), 26);
    }

    #[test]
    fn a_line_names_its_kind_and_has_null_for_what_is_not_finite() {
        let line = serde_json::to_value(Line::Train(record(7))).unwrap();
        assert_eq!((&line["kind"], &line["step"]), (&"train".into(), &7.into()));
        assert!(line["grad_norm"].is_null());
    }
}
