//! The token file: header, sections, checks. Native byte order; a file from another machine type is refused.
//!
//! ```text
//! header 80 bytes | ids u32 (tokens) | pad to 8 | offsets u64 (rows + 1) | places u64 (rows)
//!                 | second_from u32 (rows) | targets u32 (rows × words) | meta JSON
//! ```

use std::ops::Range;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::super::labels::{LabelOrigin, Labels};
use super::super::survey::Survey;
use super::super::targets::TargetShape;

const MAGIC: [u8; 8] = *b"MUSTERTK";
/// Raised whenever the layout or the meaning of a section changes.
pub const VERSION: u32 = 1;
const BYTE_ORDER: u32 = 0x0102_0304;
/// Bytes before the ids.
pub const HEADER_BYTES: usize = 80;

/// Counts that fix the place of every section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub rows: u64,
    pub tokens: u64,
    /// Target words per row.
    pub words: u64,
    pub meta_bytes: u64,
}

/// The decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub key: u128,
    pub counts: Counts,
    /// xxh3-64 of every byte after the header.
    pub payload_hash: u64,
}

impl Header {
    /// Encodes the header with its own checksum at the end.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0u8; HEADER_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC);
        put(&VERSION.to_ne_bytes());
        put(&BYTE_ORDER.to_ne_bytes());
        put(&self.key.to_ne_bytes());
        for count in [self.counts.rows, self.counts.tokens, self.counts.words, self.counts.meta_bytes] {
            put(&count.to_ne_bytes());
        }
        put(&self.payload_hash.to_ne_bytes());
        let check = xxh3_64(&bytes[..HEADER_BYTES - 8]);
        bytes[HEADER_BYTES - 8..].copy_from_slice(&check.to_ne_bytes());
        bytes
    }

    /// Decodes and checks a header; the error says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Some(bytes) = bytes.get(..HEADER_BYTES) else {
            return Err("it is shorter than its header".into());
        };
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if bytes[..8] != MAGIC {
            return Err("it is not a token file".into());
        }
        if u32_at(8) != VERSION || u32_at(12) != BYTE_ORDER {
            return Err("it was written by another version or machine type".into());
        }
        if u64_at(HEADER_BYTES - 8) != xxh3_64(&bytes[..HEADER_BYTES - 8]) {
            return Err("its header is damaged".into());
        }
        let key = u128::from_ne_bytes(bytes[16..32].try_into().expect("16 bytes"));
        let counts =
            Counts { rows: u64_at(32), tokens: u64_at(40), words: u64_at(48), meta_bytes: u64_at(56) };
        Ok(Self { key, counts, payload_hash: u64_at(64) })
    }
}

/// Byte ranges of the sections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub ids: Range<usize>,
    pub offsets: Range<usize>,
    pub places: Range<usize>,
    pub second_from: Range<usize>,
    pub targets: Range<usize>,
    pub meta: Range<usize>,
}

impl Layout {
    /// Places the sections; `None` if they do not fit into memory (damaged counts).
    pub fn of(counts: &Counts) -> Option<Self> {
        let mut end = HEADER_BYTES;
        let mut section = |items: u64, bytes: usize| -> Option<Range<usize>> {
            let start = end.checked_next_multiple_of(bytes)?;
            end = start.checked_add(usize::try_from(items).ok()?.checked_mul(bytes)?)?;
            Some(start..end)
        };
        Some(Self {
            ids: section(counts.tokens, 4)?,
            offsets: section(counts.rows.checked_add(1)?, 8)?,
            places: section(counts.rows, 8)?,
            second_from: section(counts.rows, 4)?,
            targets: section(counts.rows.checked_mul(counts.words)?, 4)?,
            meta: section(counts.meta_bytes, 1)?,
        })
    }
}

/// Everything of a store that is not an array.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub labels: Vec<String>,
    pub labels_from_run_file: bool,
    pub label_counts: Vec<u64>,
    pub target: String,
    pub width: usize,
    pub empty_texts: u64,
    pub truncated_rows: u64,
    /// Longest row before truncation.
    pub longest_tokens: u32,
}

impl Meta {
    /// Describes a store from its survey; the caller fills in the counts of the second pass.
    pub fn of(survey: &Survey) -> Self {
        let (target, width) = match survey.shape {
            TargetShape::None => ("none", 0),
            TargetShape::Class { classes } => ("class", classes),
            TargetShape::Multi { width } => ("multi", width),
            TargetShape::Value { width } => ("value", width),
        };
        Self {
            labels: survey.labels.names().to_vec(),
            labels_from_run_file: survey.labels.origin() == LabelOrigin::RunFile,
            label_counts: survey.label_counts.clone(),
            target: target.into(),
            width,
            empty_texts: survey.empty_texts,
            truncated_rows: 0,
            longest_tokens: 0,
        }
    }

    /// Restores the shape; `None` for a word this version does not know.
    pub fn shape(&self) -> Option<TargetShape> {
        let width = self.width;
        match self.target.as_str() {
            "none" => Some(TargetShape::None),
            "class" => Some(TargetShape::Class { classes: width }),
            "multi" => Some(TargetShape::Multi { width }),
            "value" => Some(TargetShape::Value { width }),
            _ => None,
        }
    }

    /// Restores the label mapping.
    pub fn labels(&self) -> Labels {
        let origin = if self.labels_from_run_file { LabelOrigin::RunFile } else { LabelOrigin::TrainingData };
        Labels::of(self.labels.clone(), origin)
    }
}
