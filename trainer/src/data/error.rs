//! What can be wrong with data: where it is, what was found, what would be right.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::labels::LabelOrigin;
use muster_proto::limits;

/// The line (text formats) or the row number (Parquet), both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// Line on which the row starts.
    Line(u64),
    /// Row number.
    Row(u64),
}

/// Where a row stands; prints as `file:line` or `file: row n`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file as the user named it.
    pub file: Arc<Path>,
    /// Position in the file.
    pub position: Position,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Position::Line(line) => write!(f, "{}:{line}", self.file.display()),
            Position::Row(row) => write!(f, "{}: row {row}", self.file.display()),
        }
    }
}

/// Data that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file as a whole.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: FileProblem,
    },
    /// The operating system refused to open or read a file.
    #[error("can't {action} {}", path.display())]
    Io {
        /// "open", "read", ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A row that can't be split into fields.
    #[error("{place}: {problem}")]
    Row {
        /// The row.
        place: Place,
        /// What is wrong with it.
        problem: RowProblem,
    },
    /// A field of a row.
    #[error("{place}: column \"{column}\": {problem}")]
    Field {
        /// The row.
        place: Place,
        /// The column as the run file names it.
        column: String,
        /// What is wrong with it.
        problem: FieldProblem,
    },
    /// The data set as a whole.
    #[error(transparent)]
    Set(#[from] SetProblem),
    /// The user asked to stop.
    #[error("stopped while {0}")]
    Interrupted(&'static str),
    /// The loader thread ended without delivering its steps.
    #[error("the loader thread ended before step {step}: {reason}")]
    Loader {
        /// The step that was not delivered.
        step: u64,
        /// Panic message or system error.
        reason: String,
    },
}

/// What is wrong with a file as a whole.
#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    /// A pipe, device, directory or socket.
    #[error("is a {0}, not a regular file")]
    NotRegular(&'static str),
    /// The extension names no format.
    #[error("can't tell the format from the extension {}", quoted_or_none(.0))]
    UnknownFormat(Option<String>),
    /// No byte at all.
    #[error("is empty")]
    Empty,
    /// A header or schema without rows.
    #[error("has {0} but no rows")]
    NoRows(&'static str),
    /// A column that the run file names is not there.
    #[error("has no column \"{wanted}\"; its columns are {}", list(.existing))]
    MissingColumn {
        /// The name in the run file.
        wanted: String,
        /// Names in the file, in order.
        existing: Vec<String>,
    },
    /// The header names a column twice.
    #[error("the header names the column \"{0}\" twice")]
    DuplicateColumn(String),
    /// Text in UTF-16.
    #[error("is UTF-16 text; UTF-8 is needed")]
    Utf16,
    /// Parquet reported an error, or a type that has no reader.
    #[error("is not a readable Parquet file: {0}")]
    Parquet(String),
    /// Someone wrote to the file during the run's start.
    #[error("changed while it was read")]
    Changed,
}

/// What is wrong with a row.
#[derive(Debug, thiserror::Error)]
pub enum RowProblem {
    /// More or fewer fields than the header has.
    #[error("has {found} fields, the header has {expected}")]
    Ragged {
        /// Fields of the header.
        expected: usize,
        /// Fields of this row.
        found: usize,
    },
    /// A quoted field that runs to the end of the file.
    #[error("a quoted field starts here (column {0}) and is never closed")]
    UnclosedQuote(usize),
    /// Text between a closing quote and the next delimiter.
    #[error("text follows the closing quote of column {0}")]
    TextAfterQuote(usize),
    /// A field or line over the limit.
    #[error("is longer than the limit of {0} bytes")]
    TooLong(usize),
    /// More columns than a table can sensibly have.
    #[error("has more than {0} columns")]
    TooManyColumns(usize),
    /// Bytes that are not UTF-8, in a place that belongs to no column.
    #[error("byte {0} of the line is not UTF-8")]
    NotUtf8(usize),
    /// Not JSON.
    #[error("is not valid JSON (character {column}): {message}")]
    Json {
        /// Column of the line, from 1.
        column: usize,
        /// The parser's words.
        message: String,
    },
    /// JSON, but not an object.
    #[error("is a JSON {0}; each line must be an object")]
    NotObject(&'static str),
    /// Parquet failed in the middle of the file.
    #[error("can't be read from the Parquet file: {0}")]
    Parquet(String),
    /// The tokenizer refused.
    #[error("can't be tokenised: {0}")]
    Tokenizer(String),
    /// The tokenizer gave nothing.
    #[error("has no tokens")]
    NoTokens,
    /// Longer than `max_length` where truncation is not allowed.
    #[error("has {found} tokens, max_length is {limit}")]
    LongRow {
        /// Tokens before truncation.
        found: usize,
        /// Tokens kept.
        limit: usize,
    },
}

/// What is wrong with a field.
#[derive(Debug, thiserror::Error)]
pub enum FieldProblem {
    /// The object has no such key.
    #[error("is missing; this row has {}", list(.existing))]
    Missing {
        /// Keys of the row.
        existing: Vec<String>,
    },
    /// JSON or Parquet null.
    #[error("is null; {0} is needed")]
    Null(&'static str),
    /// Empty where a value is needed.
    #[error("is empty; {0} is needed")]
    Empty(&'static str),
    /// Another type than the task needs.
    #[error("is {found}; {expected} is needed")]
    WrongType {
        /// What the task needs.
        expected: &'static str,
        /// What the file has.
        found: String,
    },
    /// Not UTF-8.
    #[error("byte {0} of the field is not UTF-8")]
    NotUtf8(usize),
    /// Over the limit.
    #[error("has {found} bytes, the limit is {limit}")]
    TooLong {
        /// Bytes found.
        found: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A label that the list does not have.
    #[error("label \"{label}\" is not among the {count} labels of {}", origin.name())]
    UnknownLabel {
        /// As written in the file.
        label: Box<str>,
        /// Number of known labels.
        count: usize,
        /// Where the known labels come from.
        origin: LabelOrigin,
        /// The most similar known label.
        nearest: Option<Box<str>>,
    },
    /// NaN or infinite (also: too large for f32).
    #[error("{0} is not a finite 32-bit number")]
    NotFinite(String),
    /// Rows with different numbers of targets.
    #[error("has {found} values; every row of the task has {expected}")]
    Width {
        /// Values of the first row, or of the training data.
        expected: usize,
        /// Values of this row.
        found: usize,
    },
    /// Too many distinct labels.
    #[error("holds more than {0} different labels")]
    TooManyLabels(usize),
}

/// What is wrong with the data set.
#[derive(Debug, thiserror::Error)]
pub enum SetProblem {
    /// No file was named.
    #[error("no data file is named")]
    NoFiles,
    /// More files than places can name.
    #[error("{0} data files are named; the limit is {max}", max = limits::MAX_DATA_FILES)]
    TooManyFiles(usize),
    /// More rows than the sampler can number.
    #[error("more than {max} rows", max = limits::MAX_ROWS)]
    TooManyRows,
    /// Training on one class teaches nothing.
    #[error("all {rows} training rows have the label \"{label}\"; classification needs two classes")]
    OneClass {
        /// The only label.
        label: String,
        /// Rows.
        rows: u64,
    },
    /// Multi-label data without a single label.
    #[error("none of the {0} training rows has any label")]
    NoLabelSet(u64),
    /// A label named twice, or empty, in the run file.
    #[error("task.labels: {0}")]
    LabelList(String),
    /// The label columns don't fit the task.
    #[error("data.label: {0}")]
    LabelColumns(String),
    /// One column can't be text and label, nor text and pair.
    #[error("the column \"{0}\" is used twice among data.text, data.text_pair and data.label")]
    ColumnTwice(String),
    /// The evaluation part would be empty, or the training part.
    #[error("data.eval_fraction = {fraction}: {reason}")]
    Fraction {
        /// As in the run file.
        fraction: f64,
        /// Why it can't be used.
        reason: String,
    },
}

// The error travels in the result of every row.
const _: () = assert!(size_of::<DataError>() <= 128);

/// Prints names in quotes, at most twenty.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 20;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("\"{name}\"")).collect();
    let rest = names.len().saturating_sub(SHOWN);
    match (names.is_empty(), rest) {
        (true, _) => "none".into(),
        (false, 0) => shown.join(", "),
        (false, rest) => format!("{} and {rest} more", shown.join(", ")),
    }
}

fn quoted_or_none(extension: &Option<String>) -> String {
    extension.as_ref().map_or_else(|| "(none)".into(), |e| format!("\".{e}\""))
}
