//! CSV and TSV as RFC 4180 describes them: header row, quoted fields, line breaks inside quotes, LF or CRLF.
//!
//! A parser of our own because a training set must not be read approximately: the usual lenient reader takes a quote
//! that is never closed as one field up to the end of the file, without a word and without a memory bound, and numbers
//! lines wrongly after blank ones. Here both are errors with the line where the quote opened. Well-formed files give
//! exactly what the `csv` crate gives (property test).

use std::io::BufRead;
use std::path::{Path, PathBuf};

use super::super::error::{DataError, FieldProblem, FileProblem, Place, Position, RowProblem};
use super::fields::Value;
use super::file::{TextFile, open_text, read_error};
use super::{RawRow, locate};
use muster_proto::limits::MAX_COLUMNS;

/// A CSV file with its header read.
pub struct CsvFile {
    path: PathBuf,
    input: TextFile,
    parser: Parser,
    columns: usize,
    /// Index and name of each wanted column.
    wanted: Vec<(usize, String)>,
}

impl CsvFile {
    /// Reads the header and finds the wanted columns.
    pub fn open(path: &Path, wanted: &[String], delimiter: u8, limit: usize) -> Result<Self, DataError> {
        let mut input = open_text(path)?;
        let mut parser = Parser::new(delimiter, limit);
        let start = parser.next(&mut input).map_err(|e| e.at(path))?;
        let line = start.ok_or_else(|| DataError::File { path: path.into(), problem: FileProblem::Empty })?;
        let mut header = Vec::with_capacity(parser.fields());
        for idx in 0..parser.fields() {
            let name = std::str::from_utf8(parser.field(idx)).map_err(|e| {
                let place = Place { file: path.into(), position: Position::Line(line) };
                DataError::Row { place, problem: RowProblem::NotUtf8(e.valid_up_to() + 1) }
            })?;
            header.push(name.to_owned());
        }
        let indices = locate(path, wanted, &header)?;
        let wanted = indices.into_iter().zip(wanted.iter().cloned()).collect();
        Ok(Self { path: path.into(), input, parser, columns: header.len(), wanted })
    }

    /// Reads the next row's wanted fields.
    pub fn next_row(&mut self) -> Result<Option<RawRow>, DataError> {
        let Some(line) = self.parser.next(&mut self.input).map_err(|e| e.at(&self.path))? else {
            return Ok(None);
        };
        let place = || Place { file: self.path.as_path().into(), position: Position::Line(line) };
        let found = self.parser.fields();
        if found != self.columns {
            let problem = RowProblem::Ragged { expected: self.columns, found };
            return Err(DataError::Row { place: place(), problem });
        }
        let mut values = Vec::with_capacity(self.wanted.len());
        for (idx, name) in &self.wanted {
            match std::str::from_utf8(self.parser.field(*idx)) {
                Ok(text) => values.push(Value::Text(text.to_owned())),
                Err(e) => {
                    let problem = FieldProblem::NotUtf8(e.valid_up_to() + 1);
                    return Err(DataError::Field { place: place(), column: name.clone(), problem });
                }
            }
        }
        Ok(Some((Position::Line(line), values)))
    }
}

/// A failure with its line.
enum ParseError {
    Io(std::io::Error),
    Row(u64, RowProblem),
}

impl ParseError {
    fn at(self, path: &Path) -> DataError {
        match self {
            ParseError::Io(source) => read_error(path, source),
            ParseError::Row(line, problem) => {
                DataError::Row { place: Place { file: path.into(), position: Position::Line(line) }, problem }
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    FieldStart,
    Plain,
    Quoted,
    /// A quote inside a quoted field: either its end or the first of a doubled pair.
    QuoteSeen,
    /// CR after a closed field; only LF may follow.
    CarriageReturn,
}

/// Splits bytes into records; keeps one record.
struct Parser {
    delimiter: u8,
    limit: usize,
    /// Line of the next byte, from 1.
    line: u64,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    state: State,
    /// Line on which the current quoted field opened.
    quote_line: u64,
    any_quoted: bool,
}

impl Parser {
    fn new(delimiter: u8, limit: usize) -> Self {
        let (bytes, ends) = (Vec::new(), Vec::new());
        Self {
            delimiter,
            limit,
            line: 1,
            bytes,
            ends,
            state: State::FieldStart,
            quote_line: 0,
            any_quoted: false,
        }
    }

    fn fields(&self) -> usize {
        self.ends.len()
    }

    fn field(&self, idx: usize) -> &[u8] {
        &self.bytes[idx.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[idx]]
    }

    fn field_bytes(&self) -> usize {
        self.bytes.len() - self.ends.last().copied().unwrap_or(0)
    }

    /// Reads the next record that is not a blank line; returns the line it starts on, or `None` at the end.
    fn next(&mut self, input: &mut impl BufRead) -> Result<Option<u64>, ParseError> {
        loop {
            let start = self.line;
            let more = self.record(input, start)?;
            let blank = self.ends.len() == 1 && self.bytes.is_empty() && !self.any_quoted;
            match (more, blank) {
                (true, true) => {}
                (false, true) => return Ok(None),
                (_, false) => return Ok(Some(start)),
            }
        }
    }

    /// Reads one record; returns false when the input ended.
    fn record(&mut self, input: &mut impl BufRead, start: u64) -> Result<bool, ParseError> {
        self.bytes.clear();
        self.ends.clear();
        self.any_quoted = false;
        self.state = State::FieldStart;
        loop {
            let chunk = match input.fill_buf() {
                Ok(chunk) => chunk,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(ParseError::Io(e)),
            };
            if chunk.is_empty() {
                if self.state == State::Quoted {
                    let column = self.ends.len() + 1;
                    return Err(ParseError::Row(self.quote_line, RowProblem::UnclosedQuote(column)));
                }
                self.end_field();
                return Ok(false);
            }
            let mut used = 0;
            let mut ended = false;
            for &byte in chunk {
                used += 1;
                ended = self.push(byte).map_err(|problem| ParseError::Row(self.line, problem))?;
                if ended {
                    break;
                }
            }
            input.consume(used);
            if ended {
                return Ok(true);
            }
            if self.field_bytes() > self.limit || self.bytes.len() > self.limit.saturating_mul(4) {
                return Err(ParseError::Row(start, RowProblem::TooLong(self.limit)));
            }
            if self.ends.len() > MAX_COLUMNS {
                return Err(ParseError::Row(start, RowProblem::TooManyColumns(MAX_COLUMNS)));
            }
        }
    }

    /// Takes one byte; returns true when it ends the record.
    fn push(&mut self, byte: u8) -> Result<bool, RowProblem> {
        let line_break = byte == b'\n';
        match self.state {
            State::FieldStart if byte == b'"' => {
                self.state = State::Quoted;
                self.quote_line = self.line;
                self.any_quoted = true;
            }
            State::Quoted if byte == b'"' => self.state = State::QuoteSeen,
            State::Quoted => self.bytes.push(byte),
            State::QuoteSeen if byte == b'"' => {
                self.bytes.push(byte);
                self.state = State::Quoted;
            }
            State::QuoteSeen if byte == b'\r' => self.state = State::CarriageReturn,
            State::CarriageReturn if !line_break => {
                return Err(RowProblem::TextAfterQuote(self.ends.len() + 1));
            }
            _ if byte == self.delimiter || line_break => self.end_field(),
            State::QuoteSeen | State::CarriageReturn => {
                return Err(RowProblem::TextAfterQuote(self.ends.len() + 1));
            }
            State::FieldStart | State::Plain => {
                self.bytes.push(byte);
                self.state = State::Plain;
            }
        }
        let inside = self.state == State::Quoted;
        self.line += u64::from(line_break);
        Ok(line_break && !inside)
    }

    fn end_field(&mut self) {
        // The CR of a CRLF is part of the line break, unless it was quoted.
        if self.state == State::Plain && self.bytes.last() == Some(&b'\r') {
            self.bytes.pop();
        }
        self.ends.push(self.bytes.len());
        self.state = State::FieldStart;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    type Records = Vec<(u64, Vec<String>)>;

    fn parse(bytes: &[u8], buffer: usize) -> Result<Records, (u64, String)> {
        let mut input = BufReader::with_capacity(buffer, bytes);
        let mut parser = Parser::new(b',', 1 << 20);
        let mut records = Vec::new();
        loop {
            match parser.next(&mut input) {
                Ok(None) => return Ok(records),
                Ok(Some(line)) => {
                    let field = |idx| String::from_utf8_lossy(parser.field(idx)).into_owned();
                    records.push((line, (0..parser.fields()).map(field).collect()));
                }
                Err(ParseError::Row(line, problem)) => return Err((line, problem.to_string())),
                Err(ParseError::Io(e)) => panic!("a slice has no i/o errors: {e}"),
            }
        }
    }

    #[test]
    fn line_numbers_count_blank_lines_and_line_breaks_in_quotes() {
        let text = b"a,b\r\n\r\n1,\"x\r\ny\"\r\n\n2,z";
        let lines: Vec<u64> = parse(text, 3).expect("well formed").iter().map(|r| r.0).collect();
        assert_eq!(lines, [1, 3, 6]);
    }

    #[test]
    fn an_unclosed_quote_names_the_line_where_it_opened() {
        let error = parse(b"a,b\n1,2\n3,\"oops\n5,6\n7,8\n", 64).expect_err("never closed");
        assert_eq!(error, (3, "a quoted field starts here (column 2) and is never closed".into()));
    }

    #[test]
    fn text_after_a_closing_quote_is_an_error() {
        let error = parse(b"a,b\n\"he said \"hi\"\",2\n", 64).expect_err("quotes not doubled");
        assert_eq!(error, (2, "text follows the closing quote of column 1".into()));
    }

    #[test]
    fn a_field_over_the_limit_stops_the_read() {
        let text = [b"a\n".as_slice(), &[b'x'; 4096]].concat();
        let mut input = BufReader::with_capacity(64, &text[..]);
        let mut parser = Parser::new(b',', 1000);
        assert!(matches!(parser.next(&mut input), Ok(Some(1))));
        let result = parser.next(&mut input);
        assert!(matches!(result, Err(ParseError::Row(2, RowProblem::TooLong(1000)))));
        assert!(parser.bytes.len() <= 1064, "no more than limit and one buffer is kept");
    }

    proptest! {
        #[test]
        fn well_formed_files_read_as_the_csv_crate_reads_them(
            rows in prop::collection::vec(prop::collection::vec("[a-z\",\r\n äé]{0,6}", 3), 1..12),
            buffer in 1usize..40,
            crlf in any::<bool>(),
        ) {
            let terminator = if crlf { csv::Terminator::CRLF } else { csv::Terminator::Any(b'\n') };
            let mut writer = csv::WriterBuilder::new().terminator(terminator).from_writer(Vec::new());
            for row in &rows {
                writer.write_record(row).expect("memory");
            }
            let bytes = writer.into_inner().expect("memory");
            let read: Vec<Vec<String>> = parse(&bytes, buffer).expect("well formed").into_iter().map(|r| r.1).collect();
            prop_assert_eq!(&read, &rows);
            let mut oracle = csv::ReaderBuilder::new().has_headers(false).from_reader(&bytes[..]);
            let expected: Vec<Vec<String>> =
                oracle.records().map(|r| r.expect("valid").iter().map(str::to_owned).collect()).collect();
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn any_bytes_give_records_or_an_error_and_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, 7);
        }
    }
}
