//! JSON Lines: one object per line, blank lines skipped.

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::super::error::{DataError, FieldProblem, Place, Position, RowProblem};
use super::RawRow;
use super::fields::Value;
use super::file::{TextFile, open_text, read_error};

/// An open JSONL file.
pub struct JsonlFile {
    path: PathBuf,
    input: TextFile,
    wanted: Vec<String>,
    limit: usize,
    line: u64,
    buffer: Vec<u8>,
}

impl JsonlFile {
    /// Opens the file; keys are checked row by row.
    pub fn open(path: &Path, wanted: &[String], limit: usize) -> Result<Self, DataError> {
        let input = open_text(path)?;
        Ok(Self { path: path.into(), input, wanted: wanted.to_vec(), limit, line: 0, buffer: Vec::new() })
    }

    /// Reads the next row's wanted fields.
    pub fn next_row(&mut self) -> Result<Option<RawRow>, DataError> {
        loop {
            self.buffer.clear();
            let limit = self.limit as u64 + 1;
            let read = self.input.by_ref().take(limit).read_until(b'\n', &mut self.buffer);
            if read.map_err(|source| read_error(&self.path, source))? == 0 {
                return Ok(None);
            }
            self.line += 1;
            if self.buffer.len() > self.limit && self.buffer.last() != Some(&b'\n') {
                return Err(self.row_error(RowProblem::TooLong(self.limit)));
            }
            if !self.buffer.trim_ascii().is_empty() {
                return self.parse().map(Some);
            }
        }
    }

    fn parse(&self) -> Result<RawRow, DataError> {
        let text = std::str::from_utf8(&self.buffer)
            .map_err(|e| self.row_error(RowProblem::NotUtf8(e.valid_up_to() + 1)))?;
        let json: Json = serde_json::from_str(text).map_err(|e| {
            let message = strip_location(&e.to_string());
            self.row_error(RowProblem::Json { column: e.column(), message })
        })?;
        let Json::Object(mut object) = json else {
            return Err(self.row_error(RowProblem::NotObject(kind(&json))));
        };
        let mut values = Vec::with_capacity(self.wanted.len());
        for name in &self.wanted {
            match object.get_mut(name) {
                Some(field) => values.push(value(field.take())),
                None => {
                    let problem = FieldProblem::Missing { existing: object.keys().cloned().collect() };
                    return Err(DataError::Field { place: self.place(), column: name.clone(), problem });
                }
            }
        }
        Ok((Position::Line(self.line), values))
    }

    fn place(&self) -> Place {
        Place { file: self.path.as_path().into(), position: Position::Line(self.line) }
    }

    fn row_error(&self, problem: RowProblem) -> DataError {
        DataError::Row { place: self.place(), problem }
    }
}

/// serde_json appends "at line 1 column n", where line 1 is our line.
fn strip_location(message: &str) -> String {
    message.rfind(" at line ").map_or(message, |at| &message[..at]).to_owned()
}

fn kind(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

fn value(json: Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(flag) => Value::Bool(flag),
        Json::String(text) => Value::Text(text),
        Json::Array(items) => Value::List(items.into_iter().map(value).collect()),
        Json::Object(_) => Value::Other("an object"),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(integer), _, _) => Value::Integer(integer.into()),
            (_, Some(integer), _) => Value::Integer(integer.into()),
            (_, _, Some(float)) => Value::Float(float),
            _ => Value::Other("a number out of range"),
        },
    }
}
