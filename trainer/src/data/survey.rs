//! The first pass over a data set: every row validated, labels settled and counted, before anything expensive starts.
//!
//! Memory: one row and one counter per label.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::{DataError, FieldProblem, Place, SetProblem};
use super::labels::{LabelOrigin, Labels};
use super::source::{Answer, Reader, Role, Row, SourceOptions, Task};
use super::targets::{Encoder, TargetShape};
use muster_proto::limits::{MAX_LABELS, MAX_ROWS};

/// Files with one meaning: the training rows, or the evaluation rows.
#[derive(Debug, Clone, Copy)]
pub struct DataSet<'a> {
    /// Files in order.
    pub files: &'a [PathBuf],
    /// Columns and task.
    pub options: &'a SourceOptions,
    /// What the rows are for.
    pub role: Role,
    /// What is settled already.
    pub known: Known<'a>,
}

/// What is known of the targets before the rows are read.
#[derive(Debug, Clone, Copy)]
pub enum Known<'a> {
    /// Labels (or the number of regression targets) follow from the rows.
    Nothing,
    /// The mapping of the run file, of the training data or of a model.
    Labels(&'a Labels),
    /// Regression targets per row.
    Width(usize),
}

/// What the first pass found.
#[derive(Debug, Clone, PartialEq)]
pub struct Survey {
    /// Rows of all files.
    pub rows: u64,
    /// Label mapping; empty for regression and prediction.
    pub labels: Labels,
    /// Rows per label, in class order.
    pub label_counts: Vec<u64>,
    /// Shape of the stored targets.
    pub shape: TargetShape,
    /// Rows whose first text is empty or blank.
    pub empty_texts: u64,
}

/// Reads and validates every row of `set`. `checked` is told the number of rows now and then.
///
/// # Errors
/// Everything `Reader` reports; an unknown label; one class only (training); too many labels or rows.
pub fn survey(set: &DataSet, stop: &AtomicBool, checked: &dyn Fn(u64)) -> Result<Survey, DataError> {
    const REPORT_ROWS: u64 = 4096;
    let mut scan = Scan::new(set)?;
    for row in Reader::open(set.files, set.options)? {
        scan.add(&row?)?;
        if scan.rows % REPORT_ROWS == 0 {
            checked(scan.rows);
            if stop.load(Ordering::Relaxed) {
                return Err(DataError::Interrupted("checking the data files"));
            }
        }
    }
    checked(scan.rows);
    scan.finish()
}

struct Scan<'a> {
    set: &'a DataSet<'a>,
    /// Given labels; in multi-label data with a column per label, the columns.
    given: Option<Labels>,
    rows: u64,
    counts: HashMap<String, u64>,
    width: Option<usize>,
    empty_texts: u64,
    scratch: Vec<u32>,
}

impl<'a> Scan<'a> {
    fn new(set: &'a DataSet<'a>) -> Result<Self, DataError> {
        let columns = &set.options.label;
        let by_column = matches!(set.options.task, Task::MultiLabel { .. }) && columns.len() > 1;
        let given = match set.known {
            Known::Labels(labels) => Some(labels.clone()),
            _ if by_column => Some(Labels::of(columns.clone(), LabelOrigin::TrainingData)),
            _ => None,
        };
        if let Some(labels) = given.as_ref().filter(|_| by_column) {
            let same =
                labels.len() == columns.len() && columns.iter().all(|column| labels.id(column).is_some());
            if !same {
                let text =
                    format!("the {} columns are not the {} labels of the task", columns.len(), labels.len());
                return Err(SetProblem::LabelColumns(text).into());
            }
        }
        let width = match set.known {
            Known::Width(width) => Some(width),
            _ => None,
        };
        Ok(Self { set, given, rows: 0, counts: HashMap::new(), width, empty_texts: 0, scratch: Vec::new() })
    }

    fn add(&mut self, row: &Row) -> Result<(), DataError> {
        self.rows += 1;
        if self.rows > MAX_ROWS {
            return Err(SetProblem::TooManyRows.into());
        }
        self.empty_texts += u64::from(row.text.trim().is_empty());
        self.check_known(row)?;
        match &row.answer {
            Answer::None | Answer::Values(_) => {}
            Answer::Label(name) => self.count(name, &row.place)?,
            Answer::Labels(names) => names.iter().try_for_each(|name| self.count(name, &row.place))?,
            Answer::Flags(flags) => {
                let set = self.set;
                let on = set.options.label.iter().zip(flags).filter(|(_, flag)| **flag);
                on.map(|(column, _)| column).try_for_each(|column| self.count(column, &row.place))?;
            }
        }
        Ok(())
    }

    /// Fails for a label or width that does not fit what is known; the second pass maps rows in the same way.
    fn check_known(&mut self, row: &Row) -> Result<(), DataError> {
        if let Answer::Values(values) = &row.answer {
            let width = *self.width.get_or_insert(values.len());
            return self.encode(row, TargetShape::Value { width }, &Labels::sorted([]));
        }
        let Some(labels) = self.given.take() else { return Ok(()) };
        let shape = shape_of(&self.set.options.task, labels.len());
        let result = self.encode(row, shape, &labels);
        self.given = Some(labels);
        result
    }

    fn encode(&mut self, row: &Row, shape: TargetShape, labels: &Labels) -> Result<(), DataError> {
        self.scratch.clear();
        let encoder = Encoder { shape, labels, options: self.set.options };
        encoder.push(&row.answer, &row.place, &mut self.scratch)
    }

    fn count(&mut self, name: &str, place: &Place) -> Result<(), DataError> {
        if let Some(count) = self.counts.get_mut(name) {
            *count += 1;
            return Ok(());
        }
        if self.counts.len() == MAX_LABELS {
            let column = self.set.options.label[0].clone();
            let problem = FieldProblem::TooManyLabels(MAX_LABELS);
            return Err(DataError::Field { place: place.clone(), column, problem });
        }
        self.counts.insert(name.to_owned(), 1);
        Ok(())
    }

    fn finish(self) -> Result<Survey, DataError> {
        let Scan { set, given, rows, counts, width, empty_texts, .. } = self;
        if set.role == Role::Train {
            match &set.options.task {
                Task::SingleLabel if counts.len() < 2 => {
                    let label = counts.into_keys().next().unwrap_or_default();
                    return Err(SetProblem::OneClass { label, rows }.into());
                }
                Task::MultiLabel { .. } if counts.is_empty() => {
                    return Err(SetProblem::NoLabelSet(rows).into());
                }
                _ => {}
            }
        }
        let labels = given.unwrap_or_else(|| Labels::sorted(counts.keys().cloned()));
        let label_counts: Vec<u64> =
            labels.names().iter().map(|name| counts.get(name).copied().unwrap_or(0)).collect();
        let shape = match &set.options.task {
            Task::Regression => TargetShape::Value { width: width.unwrap_or(1) },
            task => shape_of(task, labels.len()),
        };
        Ok(Survey { rows, labels, label_counts, shape, empty_texts })
    }
}

fn shape_of(task: &Task, labels: usize) -> TargetShape {
    match task {
        Task::SingleLabel => TargetShape::Class { classes: labels },
        Task::MultiLabel { .. } => TargetShape::Multi { width: labels },
        Task::Regression => TargetShape::Value { width: 1 },
        Task::Unlabelled => TargetShape::None,
    }
}
