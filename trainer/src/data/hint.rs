//! What the user can do about each data error.

use std::io;

use muster_proto::nearest;

use super::error::{DataError, FieldProblem, FileProblem, RowProblem, SetProblem};

impl DataError {
    /// Says what the user can do, where there is something to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            DataError::File { problem, .. } => problem.hint(),
            DataError::Row { problem, .. } => problem.hint(),
            DataError::Field { problem, column, .. } => problem.hint(column),
            DataError::Set(problem) => problem.hint(),
            DataError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("check the path; paths in a run file are relative to its directory".into())
            }
            DataError::Io { .. } | DataError::Interrupted(_) | DataError::Loader { .. } => None,
        }
    }
}

impl FileProblem {
    fn hint(&self) -> Option<String> {
        match self {
            FileProblem::NotRegular("directory") => Some("name the files inside it".into()),
            FileProblem::NotRegular(_) => {
                Some("data is read more than once: write it to a file first and name that file".into())
            }
            FileProblem::UnknownFormat(_) => {
                Some("use .csv, .tsv, .jsonl or .parquet, or set data.format".into())
            }
            FileProblem::MissingColumn { wanted, existing } => {
                nearest(wanted, existing.iter().map(String::as_str))
                    .map(|name| format!("did you mean \"{name}\"?"))
            }
            FileProblem::Utf16 => Some("convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW".into()),
            FileProblem::NoRows("a header") => {
                Some("the first line of a CSV file is its header; a file without header needs one".into())
            }
            FileProblem::Changed => Some("wait until the file is complete, then start again".into()),
            FileProblem::Empty
            | FileProblem::NoRows(_)
            | FileProblem::DuplicateColumn(_)
            | FileProblem::Parquet(_) => None,
        }
    }
}

impl RowProblem {
    fn hint(&self) -> Option<String> {
        match self {
            RowProblem::Ragged { .. } => {
                Some("put a field that holds the delimiter or a line break in double quotes".into())
            }
            RowProblem::UnclosedQuote(_) | RowProblem::TextAfterQuote(_) => {
                Some("inside a quoted field a quote is written twice: \"\"".into())
            }
            RowProblem::NotUtf8(_) => Some(LATIN1_HINT.into()),
            RowProblem::NotObject("array") => {
                Some("JSON Lines holds one object per line: jq -c '.[]' FILE > NEW.jsonl".into())
            }
            RowProblem::Json { .. } => Some("JSON Lines holds one complete object per line".into()),
            RowProblem::LongRow { .. } => {
                Some("raise data.max_length, shorten the row, or set data.on_long = \"truncate\"".into())
            }
            _ => None,
        }
    }
}

const LATIN1_HINT: &str =
    "the file seems to be in another encoding: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW";

impl FieldProblem {
    fn hint(&self, column: &str) -> Option<String> {
        match self {
            FieldProblem::Missing { existing } => nearest(column, existing.iter().map(String::as_str))
                .map(|name| format!("did you mean \"{name}\"?")),
            FieldProblem::UnknownLabel { nearest: Some(name), .. } => {
                Some(format!("did you mean \"{name}\"?"))
            }
            FieldProblem::UnknownLabel { .. } => {
                Some("correct the row or add the label to task.labels".into())
            }
            FieldProblem::NotUtf8(_) => Some(LATIN1_HINT.into()),
            FieldProblem::NotFinite(_) => Some("remove the row or give it a finite target".into()),
            FieldProblem::TooManyLabels(_) => {
                Some("is this the label column? for numbers use type = \"regression\"".into())
            }
            _ => None,
        }
    }
}

impl SetProblem {
    fn hint(&self) -> Option<String> {
        match self {
            SetProblem::OneClass { .. } => {
                Some("is data.label the right column? for numeric targets use type = \"regression\"".into())
            }
            SetProblem::NoLabelSet(_) => Some("check data.label and data.label_separator".into()),
            _ => None,
        }
    }
}
