//! From the typed fields of a file to a checked row: text, pair and answer.

use super::super::error::{DataError, FieldProblem, Place};
use super::{SourceOptions, Task};

/// A field as a file holds it; CSV knows only `Text`.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Text(String),
    Integer(i128),
    Float(f64),
    Bool(bool),
    List(Vec<Value>),
    /// Anything no column may hold, by name.
    Other(&'static str),
}

impl Value {
    fn describe(&self) -> String {
        match self {
            Value::Null => "null".into(),
            Value::Text(text) => format!("the text \"{}\"", shortened(text)),
            Value::Integer(n) => format!("the integer {n}"),
            Value::Float(x) => format!("the number {x}"),
            Value::Bool(flag) => format!("the boolean {flag}"),
            Value::List(items) => format!("a list of {}", items.len()),
            Value::Other(name) => (*name).into(),
        }
    }

    fn wrong(&self, expected: &'static str) -> FieldProblem {
        match self {
            Value::Null => FieldProblem::Null(expected),
            Value::Text(text) if text.trim().is_empty() => FieldProblem::Empty(expected),
            other => FieldProblem::WrongType { expected, found: other.describe() },
        }
    }
}

fn shortened(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into(),
    }
}

/// What a row should give, not yet mapped to class numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Labels were not read.
    None,
    /// One class by name.
    Label(String),
    /// Several labels by name, maybe none.
    Labels(Vec<String>),
    /// One flag per label column.
    Flags(Vec<bool>),
    /// Regression targets.
    Values(Vec<f32>),
}

/// A row as the tokenizer and the label mapping need it.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// First text.
    pub text: String,
    /// Second text, if a pair column is named.
    pub pair: Option<String>,
    /// Label or targets.
    pub answer: Answer,
    /// Where the row stands.
    pub place: Place,
}

impl Row {
    /// Checks the wanted fields of a row (text, pair if any, labels) against the task.
    pub(super) fn check(place: Place, values: Vec<Value>, options: &SourceOptions) -> Result<Row, DataError> {
        let mut values = values.into_iter();
        let mut next = || values.next().expect("a reader delivers every wanted field");
        let limit = options.field_bytes_max;
        let fail =
            |column: &str, problem| DataError::Field { place: place.clone(), column: column.into(), problem };

        let text = text_of(next(), limit).map_err(|p| fail(&options.text, p))?;
        let pair = match &options.text_pair {
            Some(column) => Some(text_of(next(), limit).map_err(|p| fail(column, p))?),
            None => None,
        };
        let labels = &options.label;
        let answer = match &options.task {
            Task::Unlabelled => Answer::None,
            Task::SingleLabel => Answer::Label(name_of(next()).map_err(|p| fail(&labels[0], p))?),
            Task::MultiLabel { separator } if labels.len() == 1 => {
                Answer::Labels(names_of(next(), separator).map_err(|p| fail(&labels[0], p))?)
            }
            Task::MultiLabel { .. } => {
                let flags = labels.iter().map(|column| flag_of(next()).map_err(|p| fail(column, p)));
                Answer::Flags(flags.collect::<Result<_, _>>()?)
            }
            Task::Regression => {
                let mut numbers = Vec::with_capacity(labels.len());
                for column in labels {
                    match next() {
                        Value::List(items) if labels.len() == 1 => {
                            for item in items {
                                numbers.push(number_of(item).map_err(|p| fail(column, p))?);
                            }
                        }
                        single => numbers.push(number_of(single).map_err(|p| fail(column, p))?),
                    }
                }
                if numbers.is_empty() {
                    return Err(fail(&labels[0], FieldProblem::Empty(NUMBER)));
                }
                Answer::Values(numbers)
            }
        };
        Ok(Row { text, pair, answer, place: place.clone() })
    }
}

const LABEL: &str = "a label (text, integer or boolean)";
const LABELS: &str = "text or a list of labels";
const FLAG: &str = "0 or 1";
const NUMBER: &str = "a number";

/// Empty text is allowed: it is counted and reported, and a model can learn from it.
fn text_of(value: Value, limit: usize) -> Result<String, FieldProblem> {
    match value {
        Value::Text(text) if text.len() > limit => Err(FieldProblem::TooLong { found: text.len(), limit }),
        Value::Text(text) => Ok(text),
        other => Err(other.wrong("text")),
    }
}

/// A label's name without surrounding blanks; integers and booleans by their usual spelling.
fn name_of(value: Value) -> Result<String, FieldProblem> {
    match value {
        Value::Text(text) if !text.trim().is_empty() => Ok(trimmed(text)),
        Value::Integer(n) => Ok(n.to_string()),
        Value::Bool(flag) => Ok(flag.to_string()),
        other => Err(other.wrong(LABEL)),
    }
}

fn trimmed(text: String) -> String {
    let inner = text.trim();
    if inner.len() == text.len() { text } else { inner.to_owned() }
}

/// The labels of one column; an empty text or list means none of them.
fn names_of(value: Value, separator: &str) -> Result<Vec<String>, FieldProblem> {
    let mut names: Vec<String> = match value {
        Value::Text(text) => {
            text.split(separator).map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
        }
        Value::List(items) => items.into_iter().map(name_of).collect::<Result<_, _>>()?,
        Value::Integer(n) => vec![n.to_string()],
        other => return Err(other.wrong(LABELS)),
    };
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

fn flag_of(value: Value) -> Result<bool, FieldProblem> {
    let flag = match &value {
        Value::Bool(flag) => Some(*flag),
        Value::Integer(n) => (*n == 0 || *n == 1).then_some(*n == 1),
        Value::Float(x) => (*x == 0.0 || *x == 1.0).then_some(*x == 1.0),
        Value::Text(text) => match text.trim() {
            "0" | "0.0" | "false" | "False" => Some(false),
            "1" | "1.0" | "true" | "True" => Some(true),
            _ => None,
        },
        _ => None,
    };
    flag.ok_or_else(|| value.wrong(FLAG))
}

fn number_of(value: Value) -> Result<f32, FieldProblem> {
    let number = match &value {
        Value::Integer(n) => Some(*n as f64),
        Value::Float(x) => Some(*x),
        Value::Text(text) => text.trim().parse::<f64>().ok(),
        _ => None,
    };
    let Some(number) = number else {
        return Err(value.wrong(NUMBER));
    };
    let narrowed = number as f32;
    if narrowed.is_finite() { Ok(narrowed) } else { Err(FieldProblem::NotFinite(number.to_string())) }
}
