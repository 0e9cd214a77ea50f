//! Rows from CSV, TSV, JSONL and Parquet files, one at a time, each with its place and checked for its task.
//!
//! Memory: one row (text formats) or one data page per wanted column (Parquet). No file is kept in memory.
//! Files are read in the order given; a reader stops at its first error.

mod csv;
mod fields;
mod file;
mod jsonl;
mod parquet;
#[cfg(test)]
mod tests;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_proto::limits;
use muster_proto::run_spec::{DEFAULT_LABEL_SEPARATOR, DataFormat, TaskType};

pub use fields::{Answer, Row};
pub use file::{FileStamp, stamp};

use super::error::{DataError, FileProblem, SetProblem};
use fields::Value;

/// What the label columns hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// One class per row: text, integer or boolean in one column.
    SingleLabel,
    /// Any number of labels per row: one column (text split at `separator`, or a list) or several 0/1 columns.
    MultiLabel {
        /// Splits the text of a single label column.
        separator: String,
    },
    /// One or more numbers per row: one column (number or list of numbers) or several.
    Regression,
    /// Labels are not read.
    Unlabelled,
}

impl Task {
    /// The labels of a task; `separator` splits a single column of a multi-label task.
    pub fn of(kind: TaskType, separator: Option<&str>) -> Self {
        match kind {
            TaskType::SingleLabel => Self::SingleLabel,
            TaskType::MultiLabel => {
                Self::MultiLabel { separator: separator.unwrap_or(DEFAULT_LABEL_SEPARATOR).to_owned() }
            }
            TaskType::Regression => Self::Regression,
        }
    }
}

/// What the rows are for; decides which label problems are errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Training: at least two classes must occur.
    Train,
    /// Evaluation: labels must be known, any number of them may occur.
    Evaluate,
}

/// Which columns to read and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceOptions {
    /// Format of every file of the set.
    pub format: DataFormat,
    /// Column of the text.
    pub text: String,
    /// Column of the second text of a pair.
    pub text_pair: Option<String>,
    /// Label columns in order.
    pub label: Vec<String>,
    /// What the label columns hold.
    pub task: Task,
    /// Largest field in bytes.
    pub field_bytes_max: usize,
}

impl SourceOptions {
    /// Makes options with the default format and limits.
    pub fn new(text: impl Into<String>, label: Vec<String>, task: Task) -> Self {
        let field_bytes_max = limits::MAX_TEXT_BYTES;
        Self { format: DataFormat::Auto, text: text.into(), text_pair: None, label, task, field_bytes_max }
    }

    /// Checks that the label columns fit the task and that no column has two uses.
    pub fn validate(&self) -> Result<(), DataError> {
        let problem = match (&self.task, self.label.len()) {
            (Task::Unlabelled, _) => None,
            (_, 0) => Some("no column is named".to_owned()),
            (Task::SingleLabel, n) if n > 1 => Some(format!("single_label takes one column, {n} are named")),
            (Task::MultiLabel { separator }, 1) if separator.is_empty() => {
                Some("the label separator is empty".to_owned())
            }
            _ => None,
        };
        if let Some(text) = problem {
            return Err(SetProblem::LabelColumns(text).into());
        }
        let mut names = self.wanted();
        names.sort();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(SetProblem::ColumnTwice(pair[0].clone()).into()),
            None => Ok(()),
        }
    }

    /// The columns a reader must deliver: text, pair if any, labels.
    fn wanted(&self) -> Vec<String> {
        let labels = if self.task == Task::Unlabelled { &[][..] } else { &self.label[..] };
        let pair = self.text_pair.iter();
        std::iter::once(&self.text).chain(pair).chain(labels).cloned().collect()
    }
}

/// What a format reader delivers: a row's place and the wanted fields in order.
type RawRow = (super::error::Position, Vec<Value>);

/// One open file. Three formats exist and no other code implements them, so this is no trait.
enum OpenFile {
    Csv(csv::CsvFile),
    Jsonl(jsonl::JsonlFile),
    Parquet(parquet::ParquetFile),
}

impl OpenFile {
    fn open(path: &Path, wanted: &[String], options: &SourceOptions) -> Result<Self, DataError> {
        let limit = options.field_bytes_max;
        Ok(match resolve_format(path, options.format)? {
            DataFormat::Tsv => OpenFile::Csv(csv::CsvFile::open(path, wanted, b'\t', limit)?),
            DataFormat::Jsonl => OpenFile::Jsonl(jsonl::JsonlFile::open(path, wanted, limit)?),
            DataFormat::Parquet => OpenFile::Parquet(parquet::ParquetFile::open(path, wanted)?),
            DataFormat::Csv | DataFormat::Auto => {
                OpenFile::Csv(csv::CsvFile::open(path, wanted, b',', limit)?)
            }
        })
    }

    fn next_row(&mut self) -> Result<Option<RawRow>, DataError> {
        match self {
            OpenFile::Csv(file) => file.next_row(),
            OpenFile::Jsonl(file) => file.next_row(),
            OpenFile::Parquet(file) => file.next_row(),
        }
    }
}

/// Reads the rows of several files as one sequence.
pub struct Reader {
    options: SourceOptions,
    wanted: Vec<String>,
    /// Files not yet opened, in reverse order.
    waiting: Vec<PathBuf>,
    current: Option<(Arc<Path>, OpenFile, u64)>,
    opened: u64,
}

impl Reader {
    /// Prepares to read `files` in order; opens the first one.
    ///
    /// # Errors
    /// No files, a file that can't be opened, a missing column.
    pub fn open(files: &[PathBuf], options: &SourceOptions) -> Result<Self, DataError> {
        options.validate()?;
        match files.len() {
            0 => return Err(SetProblem::NoFiles.into()),
            n if n > limits::MAX_DATA_FILES => return Err(SetProblem::TooManyFiles(n).into()),
            _ => {}
        }
        let waiting = files.iter().rev().cloned().collect();
        let wanted = options.wanted();
        let mut reader = Self { options: options.clone(), wanted, waiting, current: None, opened: 0 };
        reader.advance()?;
        Ok(reader)
    }

    /// Index of the file of the row delivered last.
    pub fn file_idx(&self) -> usize {
        self.opened.saturating_sub(1) as usize
    }

    fn advance(&mut self) -> Result<bool, DataError> {
        let Some(path) = self.waiting.pop() else {
            self.current = None;
            return Ok(false);
        };
        let file = OpenFile::open(&path, &self.wanted, &self.options)?;
        self.current = Some((path.into(), file, 0));
        self.opened += 1;
        Ok(true)
    }

    fn read(&mut self) -> Result<Option<Row>, DataError> {
        while let Some((path, file, rows)) = &mut self.current {
            if let Some((position, values)) = file.next_row()? {
                *rows += 1;
                let place = super::error::Place { file: Arc::clone(path), position };
                return Row::check(place, values, &self.options).map(Some);
            }
            if *rows == 0 {
                let what = match file {
                    OpenFile::Csv(_) => "a header",
                    OpenFile::Jsonl(_) => "blank lines",
                    OpenFile::Parquet(_) => "a schema",
                };
                return Err(DataError::File { path: path.to_path_buf(), problem: FileProblem::NoRows(what) });
            }
            self.advance()?;
        }
        Ok(None)
    }
}

impl Iterator for Reader {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.read();
        if row.is_err() {
            self.current = None;
            self.waiting.clear();
        }
        row.transpose()
    }
}

/// Tells whether the extension of a path names a format with columns.
pub fn is_table(path: &Path) -> bool {
    resolve_format(path, DataFormat::Auto).is_ok()
}

/// Turns `Auto` into the format of the file's extension: `.csv`, `.tsv`/`.tab`, `.jsonl`/`.ndjson`/`.json`,
/// `.parquet`/`.pq`.
pub fn resolve_format(path: &Path, format: DataFormat) -> Result<DataFormat, DataError> {
    if format != DataFormat::Auto {
        return Ok(format);
    }
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("csv") => Ok(DataFormat::Csv),
        Some("tsv" | "tab") => Ok(DataFormat::Tsv),
        Some("jsonl" | "ndjson" | "json") => Ok(DataFormat::Jsonl),
        Some("parquet" | "pq") => Ok(DataFormat::Parquet),
        _ => Err(DataError::File { path: path.into(), problem: FileProblem::UnknownFormat(extension) }),
    }
}

/// Finds each wanted column among the existing ones.
fn locate(path: &Path, wanted: &[String], existing: &[String]) -> Result<Vec<usize>, DataError> {
    let fail = |problem| Err(DataError::File { path: path.into(), problem });
    let mut found = Vec::with_capacity(wanted.len());
    for name in wanted {
        let mut places = existing.iter().enumerate().filter(|(_, e)| *e == name).map(|(idx, _)| idx);
        match (places.next(), places.next()) {
            (Some(idx), None) => found.push(idx),
            (Some(_), Some(_)) => return fail(FileProblem::DuplicateColumn(name.clone())),
            (None, _) => {
                return fail(FileProblem::MissingColumn {
                    wanted: name.clone(),
                    existing: existing.to_vec(),
                });
            }
        }
    }
    Ok(found)
}
