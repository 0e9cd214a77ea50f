//! The store of tokens: opened if its file is there and whole, built otherwise.

use std::path::Path;
use std::sync::Arc;

use muster_proto::run_spec::DataFormat;
use xxhash_rust::xxh3::xxh3_128;

use super::super::error::{DataError, Place, Position};
use super::super::labels::Labels;
use super::super::source::{FileStamp, resolve_format, stamp};
use super::super::survey::{DataSet, Known, survey};
use super::super::targets::TargetShape;
use super::format::{self, Meta};
use super::sections::{self, Columns, Refusal, Sections};
use super::tokenise::{Job, Pass, PassError, tokenise};
use super::write::{self, PartialFile};
use super::{BuildOptions, BuildProgress, Encode};

/// Where a store came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOrigin {
    /// An existing file.
    Cached,
    /// A file written now.
    Built,
    /// No file.
    Memory,
}

/// The tokens, targets and places of every row of a data set.
pub struct TokenStore {
    sections: Sections,
    meta: Meta,
    labels: Labels,
    shape: TargetShape,
    key: u128,
    origin: StoreOrigin,
    files: Vec<(Arc<Path>, DataFormat)>,
}

impl TokenStore {
    /// Opens the store of `set`, or validates and tokenises its rows first.
    ///
    /// # Errors
    /// Everything `survey` reports; a long row where that is an error; a file that changes meanwhile.
    pub fn open_or_build(set: &DataSet, encode: &Encode, options: &BuildOptions) -> Result<Self, DataError> {
        set.options.validate()?;
        let mut files = Vec::with_capacity(set.files.len());
        let mut stamps = Vec::with_capacity(set.files.len());
        let mut bytes_done = 0;
        let mut hashed = |bytes| {
            bytes_done += bytes;
            (options.progress)(BuildProgress::Hashing { bytes_done });
        };
        for path in set.files {
            let format = resolve_format(path, set.options.format)?;
            stamps.push(stamp(path, options.stop, &mut hashed)?);
            files.push((Arc::from(path.as_path()), format));
        }
        let key = key(set, &files, &stamps, options);
        if let Some(dir) = options.cache_dir {
            let path = dir.join(write::file_name(key));
            match sections::load(&path, key) {
                Ok((sections, meta)) => {
                    return Ok(Self::new(sections, meta, key, StoreOrigin::Cached, files));
                }
                Err(Refusal::Absent) => {}
                Err(Refusal::Unusable(reason)) => {
                    tracing::warn!("the token cache {} is rebuilt: {reason}", path.display());
                }
            }
        }
        let checked = |rows_done| (options.progress)(BuildProgress::Checking { rows_done });
        let survey = survey(set, options.stop, &checked)?;
        let job = Job { set, survey: &survey, stamps: &stamps, encode, options };
        let (sections, meta, origin) = build(&job, key)?;
        Ok(Self::new(sections, meta, key, origin, files))
    }

    fn new(
        sections: Sections,
        meta: Meta,
        key: u128,
        origin: StoreOrigin,
        files: Vec<(Arc<Path>, DataFormat)>,
    ) -> Self {
        let labels = meta.labels();
        let shape =
            meta.shape().expect("a store's meta is checked when loaded and made from a shape when built");
        Self { sections, meta, labels, shape, key, origin, files }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.sections.places().len()
    }

    /// Tokens of all rows.
    pub fn tokens(&self) -> u64 {
        self.sections.ids().len() as u64
    }

    /// Token ids of a row, and the index of its first token of type 1 (the length if there is none).
    ///
    /// # Panics
    /// `row >= rows()`.
    pub fn row(&self, row: usize) -> (&[u32], u32) {
        let offsets = self.sections.offsets();
        let range = offsets[row] as usize..offsets[row + 1] as usize;
        (&self.sections.ids()[range], self.sections.second_from()[row])
    }

    /// Tokens of a row.
    ///
    /// # Panics
    /// `row >= rows()`.
    pub fn row_tokens(&self, row: usize) -> usize {
        let offsets = self.sections.offsets();
        (offsets[row + 1] - offsets[row]) as usize
    }

    /// Stored target words of a row, `shape().words()` of them.
    ///
    /// # Panics
    /// `row >= rows()`.
    pub fn target_words(&self, row: usize) -> &[u32] {
        let words = self.shape.words();
        &self.sections.targets()[row * words..(row + 1) * words]
    }

    /// Where a row stands in the user's files.
    ///
    /// # Panics
    /// `row >= rows()`.
    pub fn place(&self, row: usize) -> Place {
        let packed = self.sections.places()[row];
        let number = packed & PLACE_NUMBER;
        // A file index can only be out of range if the key collided; the first file is then as good as any.
        let (file, format) = self.files.get((packed >> 48) as usize).unwrap_or(&self.files[0]);
        let position = match format {
            DataFormat::Parquet => Position::Row(number),
            _ => Position::Line(number),
        };
        Place { file: Arc::clone(file), position }
    }

    /// Shape of the targets.
    pub fn shape(&self) -> TargetShape {
        self.shape
    }

    /// Label mapping; empty for regression and prediction.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Rows per label, in class order.
    pub fn label_counts(&self) -> &[u64] {
        &self.meta.label_counts
    }

    /// Rows whose first text is empty or blank.
    pub fn empty_texts(&self) -> u64 {
        self.meta.empty_texts
    }

    /// Rows that were shortened to the length limit.
    pub fn truncated_rows(&self) -> u64 {
        self.meta.truncated_rows
    }

    /// Tokens of the longest row before truncation.
    pub fn longest_tokens(&self) -> usize {
        self.meta.longest_tokens as usize
    }

    /// Tokens of the longest stored row.
    pub fn longest_row(&self) -> usize {
        self.sections.offsets().windows(2).map(|pair| (pair[1] - pair[0]) as usize).max().unwrap_or(0)
    }

    /// Identity of content, tokenizer and settings; a checkpoint stores it.
    pub fn fingerprint(&self) -> u128 {
        self.key
    }

    /// Where the store came from.
    pub fn origin(&self) -> StoreOrigin {
        self.origin
    }
}

/// The part of a packed place that is the number of a line or row.
const PLACE_NUMBER: u64 = (1 << 48) - 1;

/// File index (16 bits) and line or row number (48 bits).
pub(super) fn pack_place(file: u64, number: u64) -> u64 {
    file << 48 | number.min(PLACE_NUMBER)
}

/// Identity of a store. Debug formatting quotes strings, so no two settings print alike; a change of the format only
/// costs a rebuild.
fn key(
    set: &DataSet,
    files: &[(Arc<Path>, DataFormat)],
    stamps: &[FileStamp],
    options: &BuildOptions,
) -> u128 {
    let contents: Vec<(DataFormat, u128)> =
        files.iter().zip(stamps).map(|((_, format), stamp)| (*format, stamp.hash)).collect();
    let known = match set.known {
        Known::Nothing => "nothing".to_owned(),
        Known::Labels(labels) => format!("{:?} {:?}", labels.origin(), labels.names()),
        Known::Width(width) => format!("{width}"),
    };
    let text = format!(
        "{} {contents:?} {:?} {:?} {known} {:?} {:016x} {:016x}",
        format::VERSION,
        set.options,
        set.role,
        options.on_long,
        options.tokenizer_fingerprint,
        options.rule_fingerprint
    );
    xxh3_128(text.as_bytes())
}

/// Tokenises into a file if there is a directory that takes it, into memory otherwise.
fn build(job: &Job, key: u128) -> Result<(Sections, Meta, StoreOrigin), DataError> {
    if let Some(dir) = job.options.cache_dir {
        match build_file(job, dir, key) {
            Ok((sections, meta)) => return Ok((sections, meta, StoreOrigin::Built)),
            Err(PassError::Data(error)) => return Err(error),
            Err(PassError::Sink(error)) => {
                tracing::warn!(
                    "the token cache {} can't be written, tokens stay in memory: {error}",
                    dir.display()
                );
            }
        }
    }
    let mut ids = Vec::new();
    let pass = tokenise(job, &mut |part| {
        ids.extend_from_slice(part);
        Ok(())
    });
    match pass.and_then(|pass| finished(job, pass)) {
        Ok((mut columns, meta)) => {
            columns.ids = ids;
            Ok((Sections::Memory(columns), meta, StoreOrigin::Memory))
        }
        Err(PassError::Data(error)) => Err(error),
        Err(PassError::Sink(_)) => unreachable!("a vector takes every id"),
    }
}

fn build_file(job: &Job, dir: &Path, key: u128) -> Result<(Sections, Meta), PassError> {
    let mut file = PartialFile::create(dir).map_err(PassError::Sink)?;
    let pass = tokenise(job, &mut |part| file.push(part))?;
    let (columns, meta) = finished(job, pass)?;
    let sections = file.finish(dir, key, &columns, &meta).map_err(PassError::Sink)?;
    Ok((sections, meta))
}

/// Completes the meta data; refuses tokens of files that are no longer those whose hash made the key.
fn finished(job: &Job, pass: Pass) -> Result<(Columns, Meta), PassError> {
    for (path, stamp) in job.set.files.iter().zip(job.stamps) {
        stamp.check_unchanged(path).map_err(PassError::Data)?;
    }
    let (truncated_rows, longest_tokens) = (pass.truncated_rows, pass.longest_tokens);
    Ok((pass.columns, Meta { truncated_rows, longest_tokens, ..Meta::of(job.survey) }))
}
