//! The last operations of a communicator: for the report of a failure, and as a Chrome trace.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::engine::Ended;

/// How many operations are remembered.
const RECORDED: usize = 4096;

/// An operation that ended.
pub(crate) struct Record {
    pub name: String,
    pub sequence: u64,
    /// Times since any fixed moment.
    pub posted: Duration,
    pub ended: Duration,
    pub bytes: u64,
    pub error: Option<String>,
}

/// The flight recorder.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<VecDeque<Record>>);

impl Recorder {
    pub fn add(&self, ended: &Ended, bytes: u64) {
        self.push(Record {
            name: ended.times.name.clone(),
            sequence: ended.key.sequence,
            posted: ended.times.posted,
            ended: ended.times.ended,
            bytes,
            error: ended.result.as_ref().err().map(ToString::to_string),
        });
    }

    pub fn push(&self, record: Record) {
        let mut records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() == RECORDED {
            records.pop_front();
        }
        records.push_back(record);
    }

    /// The last `most` operations, one line each.
    pub fn last(&self, most: usize) -> Vec<String> {
        let records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |r: &Record| {
            let result = r.error.as_deref().unwrap_or("done");
            let took = r.ended.saturating_sub(r.posted);
            format!(
                "operation {} {:?}, {} bytes, posted at {:?}, {took:?}: {result}",
                r.sequence, r.name, r.bytes, r.posted
            )
        };
        records.iter().skip(records.len().saturating_sub(most)).map(line).collect()
    }

    /// All of them in the format of Chrome's trace viewer. `rank` becomes the process.
    pub fn chrome_trace(&self, rank: u32) -> String {
        let records = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::from("[");
        for (i, r) in records.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let name: String = r.name.chars().flat_map(char::escape_default).collect();
            let took = r.ended.saturating_sub(r.posted).as_micros();
            // Writing to a string can't fail.
            let _ = write!(
                text,
                "{comma}\n{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":{rank},\"tid\":0,\"ts\":{},\"dur\":{took},\
                 \"args\":{{\"sequence\":{},\"bytes\":{},\"failed\":{}}}}}",
                name.replace("\\'", "'").replace("\\u{", "u{"),
                r.posted.as_micros(),
                r.sequence,
                r.bytes,
                r.error.is_some(),
            );
        }
        text.push_str("\n]\n");
        text
    }
}
