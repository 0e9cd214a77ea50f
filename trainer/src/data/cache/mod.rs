//! Tokens of a data set: tokenised once, stored in a file named after content and settings, mapped into memory.
//!
//! A file is trusted only after every byte of it was checked; a damaged or foreign one is rebuilt with a warning. If
//! the cache directory can't be written or is full, the tokens stay in memory, with a warning.
//!
//! Memory while building: the chunks in flight, and per row 20 bytes + targets; the ids too when there is no file.

mod format;
mod sections;
mod store;
#[cfg(test)]
mod tests;
mod tokenise;
mod write;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use muster_proto::run_spec::OnLong;

use crate::batch::Encoding;
pub use store::{StoreOrigin, TokenStore};

/// Tokenises a text or a pair; called from several threads at once.
pub type Encode<'a> = dyn Fn(&str, Option<&str>) -> Result<Encoding, String> + Sync + 'a;

/// How far building is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildProgress {
    /// The files are hashed to find out whether they are known.
    Hashing {
        /// Bytes of all files so far.
        bytes_done: u64,
    },
    /// First pass; the total is not known yet.
    Checking {
        /// Rows read.
        rows_done: u64,
    },
    /// Second pass.
    Tokenising {
        /// Rows tokenised.
        rows_done: u64,
        /// All rows.
        rows: u64,
        /// Tokens so far.
        tokens: u64,
    },
}

/// How a store is built and where it is kept.
pub struct BuildOptions<'a> {
    /// Directory of token files (created); `None` keeps tokens in memory.
    pub cache_dir: Option<&'a Path>,
    /// Tokenising threads.
    pub threads: usize,
    /// Rows over the length limit.
    pub on_long: OnLong,
    /// Identity of the tokenizer's files.
    pub tokenizer_fingerprint: u64,
    /// Identity of the truncation rule and whatever else changes ids.
    pub rule_fingerprint: u64,
    /// Set by Ctrl-C; looked at between chunks.
    pub stop: &'a AtomicBool,
    /// Told after every chunk.
    pub progress: &'a (dyn Fn(BuildProgress) + Sync),
}
