//! The second pass: rows are tokenised on several threads and delivered in their order.
//!
//! One thread reads chunks of rows, N threads tokenise, the calling thread puts results in order and feeds the sink.
//! A ticket per chunk in flight bounds memory to `CHUNKS_PER_THREAD` × N chunks whatever thread is slow. The first
//! error in row order wins, so the message does not depend on timing.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender, bounded};
use muster_proto::limits::{CHUNK_BYTES, CHUNK_ROWS, CHUNKS_PER_THREAD};
use muster_proto::run_spec::OnLong;

use super::super::error::{DataError, FileProblem, Position, RowProblem};
use super::super::source::{FileStamp, Reader, Row};
use super::super::survey::{DataSet, Survey};
use super::super::targets::Encoder;
use super::sections::Columns;
use super::{BuildOptions, BuildProgress, Encode};

/// Receives the ids of consecutive rows.
pub type Sink<'a> = dyn FnMut(&[u32]) -> io::Result<()> + 'a;

/// Why the pass ended early.
pub enum PassError {
    /// The data or the user stopped it.
    Data(DataError),
    /// The sink did; the pass may be repeated with another one.
    Sink(io::Error),
}

/// What the pass adds to the survey.
pub struct Pass {
    /// All arrays but the ids, which went to the sink.
    pub columns: Columns,
    pub truncated_rows: u64,
    pub longest_tokens: u32,
}

/// Everything the threads share.
pub struct Job<'a> {
    pub set: &'a DataSet<'a>,
    pub survey: &'a Survey,
    /// Content of the files when the key was made.
    pub stamps: &'a [FileStamp],
    pub encode: &'a Encode<'a>,
    pub options: &'a BuildOptions<'a>,
}

struct Chunk {
    /// Rows with the index of their file.
    rows: Vec<(u64, Row)>,
}

#[derive(Default)]
struct Encoded {
    ids: Vec<u32>,
    lengths: Vec<u32>,
    places: Vec<u64>,
    second_from: Vec<u32>,
    targets: Vec<u32>,
    truncated: u64,
    longest: u32,
}

type Numbered<T> = (u64, Result<T, DataError>);

/// Tokenises every row of the set into `sink`.
pub fn tokenise(job: &Job, sink: &mut Sink) -> Result<Pass, PassError> {
    let threads = job.options.threads.max(1);
    let in_flight = threads * CHUNKS_PER_THREAD;
    let (ticket_in, tickets) = bounded::<()>(in_flight);
    let (chunk_in, chunks) = bounded::<Numbered<Chunk>>(in_flight);
    let (result_in, results) = bounded::<Numbered<Encoded>>(in_flight);
    for _ in 0..in_flight {
        ticket_in.send(()).expect("the channel holds every ticket");
    }
    std::thread::scope(|scope| {
        scope.spawn(move || read_chunks(job, &tickets, &chunk_in));
        for _ in 0..threads {
            let (chunks, result_in) = (chunks.clone(), result_in.clone());
            scope.spawn(move || {
                for (idx, chunk) in chunks {
                    let result = chunk.and_then(|chunk| encode_chunk(job, &chunk));
                    if result_in.send((idx, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop((chunks, result_in));
        // Returning drops the tickets and the results, which ends the reader, and that ends the others.
        collect(job, results, ticket_in, sink)
    })
}

fn read_chunks(job: &Job, tickets: &Receiver<()>, out: &Sender<Numbered<Chunk>>) {
    let mut reader = match Reader::open(job.set.files, job.set.options) {
        Ok(reader) => reader,
        Err(error) => {
            let _ = out.send((0, Err(error)));
            return;
        }
    };
    for idx in 0.. {
        if tickets.recv().is_err() {
            return;
        }
        let mut rows = Vec::with_capacity(CHUNK_ROWS);
        let mut bytes = 0;
        let mut failure = None;
        while rows.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
            match reader.next() {
                None => break,
                Some(Ok(row)) => {
                    bytes += row.text.len() + row.pair.as_ref().map_or(0, String::len);
                    rows.push((reader.file_idx() as u64, row));
                }
                Some(Err(error)) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        // Rows before a failure were valid in the survey: only a file that changed meanwhile gets here.
        let last = failure.is_some();
        let chunk = failure.map_or(Ok(Chunk { rows }), Err);
        let empty = chunk.as_ref().is_ok_and(|chunk| chunk.rows.is_empty());
        if empty || out.send((idx, chunk)).is_err() || last {
            return;
        }
    }
}

fn encode_chunk(job: &Job, chunk: &Chunk) -> Result<Encoded, DataError> {
    let encoder = Encoder { shape: job.survey.shape, labels: &job.survey.labels, options: job.set.options };
    let mut out = Encoded::default();
    for (file, row) in &chunk.rows {
        let fail = |problem| DataError::Row { place: row.place.clone(), problem };
        let call = AssertUnwindSafe(|| (job.encode)(&row.text, row.pair.as_deref()));
        // A panic inside a library must not leave the other threads waiting.
        let outcome = catch_unwind(call).unwrap_or_else(|_| Err("the tokenizer panicked".into()));
        let tokens = outcome.map_err(|message| fail(RowProblem::Tokenizer(message)))?;
        if tokens.ids.is_empty() {
            return Err(fail(RowProblem::NoTokens));
        }
        if tokens.full_len as usize > tokens.ids.len() {
            if job.options.on_long == OnLong::Error {
                let (found, limit) = (tokens.full_len as usize, tokens.ids.len());
                return Err(fail(RowProblem::LongRow { found, limit }));
            }
            out.truncated += 1;
        }
        out.longest = out.longest.max(tokens.full_len).max(tokens.ids.len() as u32);
        out.lengths.push(tokens.ids.len() as u32);
        out.second_from.push(tokens.second_from.min(tokens.ids.len() as u32));
        out.ids.extend_from_slice(&tokens.ids);
        let (Position::Line(number) | Position::Row(number)) = row.place.position;
        out.places.push(super::store::pack_place(*file, number));
        encoder.push(&row.answer, &row.place, &mut out.targets)?;
    }
    Ok(out)
}

fn collect(
    job: &Job,
    results: Receiver<Numbered<Encoded>>,
    tickets: Sender<()>,
    sink: &mut Sink,
) -> Result<Pass, PassError> {
    let mut columns = Columns { offsets: vec![0], ..Columns::default() };
    let mut pass = (0u64, 0u32);
    let mut pending = BTreeMap::new();
    let mut next = 0u64;
    let mut tokens = 0u64;
    for (idx, result) in results {
        pending.insert(idx, result);
        while let Some(result) = pending.remove(&next) {
            next += 1;
            let part = result.map_err(PassError::Data)?;
            sink(&part.ids).map_err(PassError::Sink)?;
            for len in part.lengths {
                tokens += u64::from(len);
                columns.offsets.push(tokens);
            }
            columns.places.extend(part.places);
            columns.second_from.extend(part.second_from);
            columns.targets.extend(part.targets);
            pass = (pass.0 + part.truncated, pass.1.max(part.longest));
            let rows_done = columns.places.len() as u64;
            (job.options.progress)(BuildProgress::Tokenising { rows_done, rows: job.survey.rows, tokens });
            // The reader may have ended; then nobody needs tickets.
            let _ = tickets.send(());
        }
        if job.options.stop.load(Ordering::Relaxed) {
            return Err(PassError::Data(DataError::Interrupted("tokenising the data")));
        }
    }
    if columns.places.len() as u64 != job.survey.rows {
        let path = job.set.files[0].clone();
        return Err(PassError::Data(DataError::File { path, problem: FileProblem::Changed }));
    }
    Ok(Pass { columns, truncated_rows: pass.0, longest_tokens: pass.1 })
}
