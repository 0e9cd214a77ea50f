//! Event files that TensorBoard reads: scalars by step.
//!
//! A file is a sequence of records (length, checksum of the length, an `Event` message, checksum of the message). A
//! process that goes on after a checkpoint writes a file of its own, which begins by telling that later steps of
//! older files do not count. Formats: tensorflow/core/lib/io/record_writer.h, core/util/event.proto.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message;

/// One thing that happened, or was measured.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    what: Option<What>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

const VERSION: &str = "brain.Event:2";
/// `SessionStatus::START`: values of this step and later ones in older files do not count.
const START: i32 = 1;
/// Added to a rotated checksum, so that a checksum of data with checksums is no trouble.
const MASK: u32 = 0xa282_ead8;

/// The event files of a run. The file of this process is made with its first scalars.
#[derive(Debug)]
pub struct EventFiles {
    dir: PathBuf,
    file: Option<File>,
    /// Steps done before this process.
    start: u64,
}

impl EventFiles {
    /// Writes to `dir`, which TensorBoard is pointed to (`--logdir`), after `start` steps.
    pub fn new(dir: PathBuf, start: u64) -> Self {
        Self { dir, file: None, start }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes numbers of a step; those that are not finite show as gaps.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn scalars(&mut self, step: u64, scalars: impl IntoIterator<Item = (String, f64)>) -> io::Result<()> {
        let value = scalars.into_iter().map(|(tag, value)| Value { tag, simple_value: value as f32 });
        let summary = What::Summary(Summary { value: value.collect() });
        let bytes = record(&event(step, summary));
        if self.file.is_none() {
            self.file = Some(self.begin()?);
        }
        // One write per record: TensorBoard may read at any moment.
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(&bytes))
    }

    fn begin(&self) -> io::Result<File> {
        fs::create_dir_all(&self.dir)?;
        let seconds = since_epoch().as_secs();
        // TensorBoard reads the files of a directory in the order of their names.
        let mut number = 0;
        let mut file = loop {
            let name = format!("events.out.tfevents.{seconds:010}.muster.{}.{number}", std::process::id());
            match File::create_new(self.dir.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                other => break other?,
            }
        };
        file.write_all(&record(&event(0, What::FileVersion(VERSION.into()))))?;
        if self.start > 0 {
            file.write_all(&record(&event(self.start + 1, What::SessionLog(SessionLog { status: START }))))?;
        }
        Ok(file)
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn event(step: u64, what: What) -> Event {
    Event { wall_time: since_epoch().as_secs_f64(), step: step as i64, what: Some(what) }
}

fn record(event: &Event) -> Vec<u8> {
    let message = event.encode_to_vec();
    let length = (message.len() as u64).to_le_bytes();
    let mut bytes = Vec::with_capacity(message.len() + 16);
    bytes.extend_from_slice(&length);
    bytes.extend_from_slice(&masked(&length).to_le_bytes());
    bytes.extend_from_slice(&message);
    bytes.extend_from_slice(&masked(&message).to_le_bytes());
    bytes
}

fn masked(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes).rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file as TensorBoard does.
    fn read(path: &Path) -> Vec<Event> {
        let bytes = fs::read(path).unwrap();
        let (mut rest, mut events) = (bytes.as_slice(), Vec::new());
        while !rest.is_empty() {
            let (length, after) = rest.split_at(8);
            let bytes = u64::from_le_bytes(length.try_into().unwrap()) as usize;
            assert_eq!(after[..4], masked(length).to_le_bytes());
            let (message, after) = after[4..].split_at(bytes);
            assert_eq!(after[..4], masked(message).to_le_bytes());
            events.push(Event::decode(message).unwrap());
            rest = &after[4..];
        }
        events
    }

    fn files(dir: &Path) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// A record that TensorFlow 2 wrote: the version of a file, at wall time 0.
    #[test]
    fn a_record_has_the_bytes_that_tensorflow_writes() {
        let event = Event { wall_time: 0.0, step: 0, what: Some(What::FileVersion(VERSION.into())) };
        let message = event.encode_to_vec();
        assert_eq!(message, b"\x1a\x0dbrain.Event:2");
        // CRC-32C of "123456789" is in every table of checksums.
        assert_eq!(crc_fast::crc32_iscsi(b"123456789"), 0xe306_9283);
        assert_eq!(masked(b"123456789"), 0xe306_9283_u32.rotate_right(15).wrapping_add(MASK));
        assert_eq!(record(&event).len(), 8 + 4 + message.len() + 4);
    }

    #[test]
    fn scalars_come_back_by_step_and_a_resumed_run_tells_where_it_begins() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = EventFiles::new(dir.path().join("tensorboard"), 0);
        first.scalars(1, [("train/loss".into(), 2.5)]).unwrap();
        first.scalars(2, [("train/loss".into(), f64::NAN), ("train/grad_norm".into(), 1.0)]).unwrap();
        let mut resumed = EventFiles::new(first.dir().to_owned(), 1);
        resumed.scalars(2, [("train/loss".into(), 2.0)]).unwrap();
        let files = files(first.dir());
        assert_eq!(files.len(), 2, "{files:?}");
        let events = read(&files[0]);
        assert_eq!(events.len(), 3);
        assert_eq!(events[0].what, Some(What::FileVersion(VERSION.into())));
        let value = |tag: &str, simple_value| Value { tag: tag.into(), simple_value };
        assert_eq!(events[1].step, 1);
        assert_eq!(events[1].what, Some(What::Summary(Summary { value: vec![value("train/loss", 2.5)] })));
        let events = read(&files[1]);
        assert_eq!(
            (events[1].step, events[1].what.clone()),
            (2, Some(What::SessionLog(SessionLog { status: START })))
        );
        assert!(events.iter().all(|event| event.what.is_some()));
    }

    #[test]
    fn without_scalars_there_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        drop(EventFiles::new(dir.path().join("tensorboard"), 0));
        assert!(!dir.path().join("tensorboard").exists());
    }
}
