//! Bounds of the data path: no file, field, queue or label list may grow without limit.

use std::time::Duration;

/// Largest field (text, label) of a row in bytes; also the largest line of a JSONL file.
pub const MAX_FIELD_BYTES: usize = 16 << 20;
/// Largest number of columns of a CSV file.
pub const MAX_COLUMNS: usize = 10_000;
/// Largest number of distinct labels; more means that the label column holds something else.
pub const MAX_LABELS: usize = 65_536;
/// Largest number of rows of a data set; row numbers are `u32` in the sampler.
pub const MAX_ROWS: u64 = u32::MAX as u64;
/// Largest number of files of a data set (16 bits of a stored place).
pub const MAX_FILES: usize = 1 << 16;
/// Rows that a tokenising thread takes at once.
pub const CHUNK_ROWS: usize = 256;
/// A chunk is closed early when its texts hold this many bytes.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Chunks in flight per tokenising thread.
pub const CHUNKS_PER_THREAD: usize = 4;
/// A read that takes longer than this is reported, and again after each such interval.
pub const STALL_REPORT_INTERVAL: Duration = Duration::from_secs(5);
