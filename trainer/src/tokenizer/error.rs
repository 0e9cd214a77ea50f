//! What can go wrong when a tokenizer is loaded or used, with the fix where there is one.

use std::path::PathBuf;

use muster_proto::run_spec::Truncation;

/// A failure of the tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The model directory holds no tokenizer.
    #[error("no tokenizer in {}: looked for {}", dir.display(), looked_for.join(", "))]
    NothingFound {
        /// The model directory.
        dir: PathBuf,
        /// What would have been read, in order of preference.
        looked_for: Vec<String>,
    },
    /// A file could not be read.
    #[error("can't read tokenizer file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file is larger than any tokenizer.
    #[error("tokenizer file {} has {bytes} bytes, more than the limit of {limit}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The largest size accepted.
        limit: u64,
    },
    /// A JSON file does not parse.
    #[error("tokenizer file {} is not valid JSON", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// A SentencePiece file is not a protobuf message.
    #[error("{} is not a SentencePiece model, or it is damaged", path.display())]
    SpmDecode {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: prost::DecodeError,
    },
    /// A SentencePiece model of a type that is not supported.
    #[error("{} is a SentencePiece model of type {found}; only unigram models are supported", path.display())]
    SpmModelType {
        /// The file.
        path: PathBuf,
        /// Its model type.
        found: String,
    },
    /// A file parses, but its content makes no sense.
    #[error("tokenizer file {} is inconsistent: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The `tokenizers` library refuses the file.
    #[error("can't load the tokenizer in {}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A setting has the wrong type.
    #[error("{}: `{key}` must be {expected}, found {found}", path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What would be right.
        expected: &'static str,
        /// The value found, as JSON.
        found: String,
    },
    /// A special token the model needs is not in the vocabulary.
    #[error("the {role} token {token:?} is not in the vocabulary of {}", path.display())]
    SpecialMissing {
        /// `cls_token`, `sep_token`, ...
        role: &'static str,
        /// Its text.
        token: String,
        /// The vocabulary's file.
        path: PathBuf,
    },
    /// The limit leaves no room for text.
    #[error("max_length is {max_length}, but {specials} special tokens are added to every {texts}")]
    NoRoom {
        /// The limit in tokens.
        max_length: usize,
        /// Special tokens around the text or the pair.
        specials: usize,
        /// "text" or "pair of texts".
        texts: &'static str,
    },
    /// The rule protects a text that is too long by itself.
    #[error(
        "the row can't be shortened to {max_length} tokens by `{strategy}`: the first text has {first} tokens, the second \
         {second}, and {specials} are special"
    )]
    CannotTruncate {
        /// The rule.
        strategy: Truncation,
        /// The limit in tokens.
        max_length: usize,
        /// Tokens of the first text.
        first: usize,
        /// Tokens of the second text, 0 if there is none.
        second: usize,
        /// Special tokens of the row.
        specials: usize,
    },
    /// The library failed on a text.
    #[error("can't tokenize the text {text:?}")]
    Encode {
        /// Its beginning.
        text: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tokenizer gives ids that the embedding has no row for.
    #[error("the tokenizer gives token {token:?} the id {id}, but the model's embedding has {rows} rows")]
    RowsTooFew {
        /// The token with the largest id.
        token: String,
        /// Its id.
        id: u32,
        /// Rows of the embedding.
        rows: usize,
    },
}

impl TokenizerError {
    /// Says what the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NothingFound { .. } => {
                "copy the tokenizer files of the pretrained model into this directory; nothing needs to be converted"
            }
            Self::SpmDecode { .. } => {
                "compare the size with the original; a file of some 130 bytes is a git-lfs pointer, not the model"
            }
            Self::SpmModelType { .. } => "provide a tokenizer.json for this model",
            Self::NoRoom { .. } => "raise data.max_length",
            Self::CannotTruncate { strategy: Truncation::OnlySecond, second: 0, .. } => {
                "there is no second text: use truncation = \"longest_first\" or set data.text_pair"
            }
            Self::CannotTruncate { .. } => "use truncation = \"longest_first\" or raise data.max_length",
            Self::RowsTooFew { .. } => {
                "the tokenizer and the weights belong to different models, or tokens were added to the tokenizer only"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}
