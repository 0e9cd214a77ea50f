//! The files of a model directory: which vocabulary is there, and reading it within a bound.

use std::path::{Path, PathBuf};

use muster_proto::limits::MAX_TOKENIZER_BYTES;

use super::error::TokenizerError;
use crate::bounded::{self, ReadError};

/// A vocabulary that can be read, in order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// Raw SentencePiece model of DeBERTa-v2 and v3.
    DebertaSpm,
    /// Everything in one file.
    TokenizerJson,
    /// Raw SentencePiece model of XLM-RoBERTa.
    XlmRobertaSpm,
    /// WordPiece vocabulary of BERT.
    VocabTxt,
    /// Byte-level BPE of RoBERTa.
    VocabMerges,
}

impl Source {
    const ALL: [Self; 5] =
        [Self::DebertaSpm, Self::TokenizerJson, Self::XlmRobertaSpm, Self::VocabTxt, Self::VocabMerges];

    /// The files that hold the vocabulary.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::DebertaSpm => &["spm.model"],
            Self::TokenizerJson => &["tokenizer.json"],
            Self::XlmRobertaSpm => &["sentencepiece.bpe.model"],
            Self::VocabTxt => &["vocab.txt"],
            Self::VocabMerges => &["vocab.json", "merges.txt"],
        }
    }

    /// Model types whose special tokens and id offsets are known for this file; empty if any will do.
    fn model_types(self) -> &'static [&'static str] {
        match self {
            Self::DebertaSpm => &["deberta-v2", "deberta-v3"],
            Self::XlmRobertaSpm => &["xlm-roberta"],
            _ => &[],
        }
    }

    /// Finds the preferred source in `dir`. A raw SentencePiece file is passed over when the configuration names a
    /// model that uses it otherwise.
    ///
    /// # Errors
    /// Nothing is there that can be read.
    pub fn find(dir: &Path, model_type: Option<&str>) -> Result<Self, TokenizerError> {
        let usable = |source: &Self| {
            let types = source.model_types();
            model_type.is_none_or(|name| types.is_empty() || types.contains(&name))
                && source.names().iter().all(|name| dir.join(name).is_file())
        };
        Self::ALL.into_iter().find(usable).ok_or_else(|| TokenizerError::NothingFound {
            dir: dir.to_path_buf(),
            looked_for: Self::ALL.iter().map(|source| source.described()).collect(),
        })
    }

    fn described(self) -> String {
        let names = self.names().join(" + ");
        match self.model_types().first() {
            Some(model_type) => format!("{names} ({model_type})"),
            None => names,
        }
    }
}

/// Files that belong to a tokenizer beside its vocabulary.
pub(crate) const COMPANIONS: [&str; 3] =
    ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"];

/// The files of which one (or, for the last two together, both) makes a tokenizer.
pub(crate) fn vocabularies() -> impl Iterator<Item = &'static str> {
    Source::ALL.into_iter().flat_map(|source| source.names().iter().copied())
}

/// A file of the tokenizer of a saved model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerFile {
    /// Copied from the source model.
    Copy(PathBuf),
    /// Made by the conversion of a raw SentencePiece model.
    Made {
        /// File name.
        name: &'static str,
        /// Content.
        bytes: Vec<u8>,
    },
}

impl TokenizerFile {
    /// Its name in a model folder; empty for a path that has none.
    pub fn name(&self) -> std::borrow::Cow<'_, str> {
        match self {
            Self::Copy(path) => path.file_name().unwrap_or_default().to_string_lossy(),
            Self::Made { name, .. } => (*name).into(),
        }
    }

    /// Its size; 0 if it can't be read now.
    pub fn len_bytes(&self) -> u64 {
        match self {
            Self::Copy(path) => std::fs::metadata(path).map_or(0, |meta| meta.len()),
            Self::Made { bytes, .. } => bytes.len() as u64,
        }
    }
}

/// Every tokenizer file in `dir`, whether it is read or not: an exported model carries all of them.
pub(super) fn all_in(dir: &Path) -> Vec<PathBuf> {
    vocabularies().chain(COMPANIONS).map(|name| dir.join(name)).filter(|path| path.is_file()).collect()
}

/// Reads a file of at most `limit` bytes.
///
/// # Errors
/// The file can't be read or is larger.
pub(super) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, TokenizerError> {
    let path = path.to_path_buf();
    bounded::read(&path, limit).map_err(|error| match error {
        ReadError::Io(source) => TokenizerError::Read { path, source },
        ReadError::TooLarge { bytes, limit } => TokenizerError::TooLarge { path, bytes, limit },
    })
}

/// Reads a text file of at most [`MAX_TOKENIZER_BYTES`].
///
/// # Errors
/// The file can't be read, is larger, or is not UTF-8.
pub(super) fn read_text(path: &Path) -> Result<String, TokenizerError> {
    String::from_utf8(read(path, MAX_TOKENIZER_BYTES)?).map_err(|error| TokenizerError::Invalid {
        path: path.to_path_buf(),
        reason: format!("byte {} is not UTF-8", error.utf8_error().valid_up_to()),
    })
}
