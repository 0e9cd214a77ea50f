//! Texts to token ids, exactly as the pretrained model saw them.
//!
//! Which vocabulary of a model directory is used, in this order:
//!
//! 1. `spm.model` of a DeBERTa-v2 or v3 model: the raw SentencePiece file, read directly. It is the definition of
//!    that model's ids; converted files differ from it in white space, normalization and byte fallback.
//! 2. `tokenizer.json`, through the `tokenizers` library; its post-processor places the special tokens, its
//!    truncation and padding are switched off.
//! 3. `sentencepiece.bpe.model` of XLM-RoBERTa, raw, with the id offset of fairseq.
//! 4. `vocab.txt` (BERT WordPiece), with `do_lower_case`, `strip_accents` and `tokenize_chinese_chars` of
//!    `tokenizer_config.json`.
//! 5. `vocab.json` with `merges.txt` (RoBERTa byte-level BPE).
//!
//! Text that looks like a special token (`[CLS]`) is ordinary text for a raw SentencePiece file, as it is in the
//! reference library; in the other formats it becomes the special token, as it does in `transformers`.
//!
//! Invariants: a tokenizer never changes after it is loaded and may be used from any number of threads; nothing is
//! built per call; no thread is started and no process is forked. Not done here: padding (rows are packed), and
//! character offsets.

mod error;
pub(crate) mod files;
mod hf;
mod raw;
mod settings;
mod spm;
mod template;
mod truncate;

use std::path::{Path, PathBuf};

use muster_proto::limits::MAX_TOKENIZER_BYTES;
use tokenizers::Tokenizer as HfTokenizer;
use xxhash_rust::xxh3::Xxh3;

pub use self::error::TokenizerError;
use self::files::Source;
pub use self::files::TokenizerFile;
use self::raw::Raw;
use self::settings::Settings;
pub use self::spm::Spm;
use self::template::Template;
pub use self::truncate::TruncationRule;
pub use crate::batch::Encoding;

/// A loaded tokenizer.
pub struct Tokenizer {
    engine: Engine,
    source: Source,
    single: Template,
    pair: Template,
    special: SpecialIds,
    vocab_size: usize,
    fingerprint: u64,
    /// The vocabulary's first file.
    vocabulary: PathBuf,
    files: Vec<PathBuf>,
}

enum Engine {
    Raw(Box<Raw>),
    Hf(Box<HfTokenizer>),
}

/// Ids of the special tokens, where the vocabulary has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpecialIds {
    /// First token of every row.
    pub cls: Option<u32>,
    /// Ends each text.
    pub sep: Option<u32>,
    /// Padding; never produced here, but exported configurations name it.
    pub pad: Option<u32>,
    /// Stands for what the vocabulary can't express.
    pub unk: Option<u32>,
    /// Hides a token in pretraining.
    pub mask: Option<u32>,
}

/// What a row consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Texts {
    /// One text.
    One,
    /// Two texts.
    Pair,
}

impl Tokenizer {
    /// Loads the tokenizer of a model directory.
    ///
    /// # Errors
    /// No vocabulary is there (the error lists what was looked for), or a file is unreadable, too large, damaged or
    /// inconsistent.
    pub fn load(dir: &Path) -> Result<Self, TokenizerError> {
        let settings = Settings::load(dir)?;
        let source = Source::find(dir, settings.model_type.as_deref())?;
        let vocabulary: Vec<PathBuf> = source.names().iter().map(|name| dir.join(name)).collect();
        let path = &vocabulary[0];
        let engine = match source {
            Source::DebertaSpm => Engine::Raw(Box::new(Raw::deberta(path, &settings)?)),
            Source::XlmRobertaSpm => Engine::Raw(Box::new(Raw::xlm_roberta(path)?)),
            Source::TokenizerJson => Engine::Hf(Box::new(hf::load_json(path)?)),
            Source::VocabTxt => Engine::Hf(Box::new(hf::load_vocab_txt(path, &settings)?)),
            Source::VocabMerges => Engine::Hf(Box::new(hf::load_vocab_merges(dir, &settings)?)),
        };
        let ((single, pair), special, vocab_size) = match &engine {
            Engine::Raw(raw) => (raw.templates(), raw.special, raw.vocab_size),
            Engine::Hf(hf) => {
                let ids = hf.get_vocab(true);
                let vocab_size = ids.values().max().map_or(0, |&id| id as usize + 1);
                (hf::templates(path, hf)?, special_of(hf, &settings)?, vocab_size)
            }
        };
        let mut tokenizer = Self {
            engine,
            source,
            single,
            pair,
            special,
            vocab_size,
            fingerprint: 0,
            vocabulary: path.clone(),
            files: files::all_in(dir),
        };
        tokenizer.fingerprint = tokenizer.hash(&vocabulary, &settings)?;
        Ok(tokenizer)
    }

    /// Encodes a text, or a pair, into a row of at most `rule.max_length` tokens.
    ///
    /// # Errors
    /// `max_length` leaves no room for text, the rule protects a text that does not fit, or the library fails.
    pub fn encode(
        &self,
        text: &str,
        pair: Option<&str>,
        rule: &TruncationRule,
    ) -> Result<Encoding, TokenizerError> {
        let texts = if pair.is_some() { Texts::Pair } else { Texts::One };
        let room = self.room(rule, texts)?;
        let template = self.template(texts);
        let specials = template.special_count();
        let mut first = self.encode_text(text)?;
        let mut second = pair.map(|pair| self.encode_text(pair)).transpose()?;
        let (first_len, second_len) = (first.len(), second.as_ref().map(Vec::len));
        let kept = truncate::kept_lengths(rule.strategy, first_len, second_len, room);
        let Some((keep_first, keep_second)) = kept else {
            return Err(TokenizerError::CannotTruncate {
                strategy: rule.strategy,
                max_length: rule.max_length,
                first: first_len,
                second: second_len.unwrap_or(0),
                specials,
            });
        };
        truncate::cut(&mut first, keep_first, rule.keep);
        if let Some(second) = &mut second {
            truncate::cut(second, keep_second, rule.keep);
        }
        let full_len = first_len + second_len.unwrap_or(0) + specials;
        Ok(template.fill(&first, second.as_deref().unwrap_or_default(), full_len))
    }

    /// Encodes a text as it is: no special tokens, no truncation.
    ///
    /// # Errors
    /// The library fails on the text.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &self.engine {
            Engine::Raw(raw) => Ok(raw.encode(text)),
            Engine::Hf(hf) => hf::encode(hf, text),
        }
    }

    /// Checks, before any row is read, that `rule` leaves room for text.
    ///
    /// # Errors
    /// `max_length` is not larger than the number of special tokens.
    pub fn check_rule(&self, rule: &TruncationRule, texts: Texts) -> Result<(), TokenizerError> {
        self.room(rule, texts).map(|_| ())
    }

    /// Checks that the embedding has a row for every id a text can give. More rows than tokens are fine
    /// (DeBERTa-v3 has 128,100 rows and 128,001 tokens).
    ///
    /// # Errors
    /// Names the token with the largest id, the id and the rows.
    pub fn check_rows(&self, embedding_rows: usize) -> Result<(), TokenizerError> {
        let specials = self.pair.specials().chain(self.single.specials()).max().unwrap_or(0);
        let id = match &self.engine {
            Engine::Raw(raw) => raw.max_text_id().max(specials),
            Engine::Hf(_) => (self.vocab_size as u32).saturating_sub(1).max(specials),
        };
        if (id as usize) < embedding_rows {
            return Ok(());
        }
        let token = match &self.engine {
            Engine::Raw(raw) => raw.token(id),
            Engine::Hf(hf) => hf.id_to_token(id),
        };
        Err(TokenizerError::RowsTooFew { token: token.unwrap_or_default(), id, rows: embedding_rows })
    }

    /// Number of ids: the largest id of any token, added ones included, plus one.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Hash of everything that decides ids: the vocabulary files' content, the settings that were used, the places
    /// of the special tokens. Settings that play no part in it (names, limits, padding) don't change it.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The tokenizer files of a model saved with this tokenizer: those of the directory, and for a raw DeBERTa file
    /// also a `tokenizer.json` with the same ids, without which `transformers` computes others.
    ///
    /// # Errors
    /// The model file is no longer there.
    pub fn files(&self, max_length: usize) -> Result<Vec<TokenizerFile>, TokenizerError> {
        let copies = self.files.iter().cloned().map(TokenizerFile::Copy);
        let made = match (&self.engine, self.source) {
            (Engine::Raw(raw), Source::DebertaSpm) => raw.converted(&self.vocabulary, max_length)?,
            _ => Vec::new(),
        };
        let replaced = |file: &TokenizerFile| made.iter().any(|made| made.name() == file.name());
        Ok(copies.filter(|file| !replaced(file)).chain(made.iter().cloned()).collect())
    }

    /// Ids of the special tokens.
    pub fn special(&self) -> SpecialIds {
        self.special
    }

    /// Says what was loaded, for people.
    pub fn describe(&self) -> String {
        let names = self.source.names().join(" + ");
        let what = match (&self.engine, self.source) {
            (Engine::Raw(raw), _) => raw.describe(),
            (_, Source::VocabTxt) => "WordPiece vocabulary of BERT".to_owned(),
            (_, Source::VocabMerges) => "byte-level BPE of RoBERTa".to_owned(),
            _ => "tokenizers library".to_owned(),
        };
        format!("{names}: {what}, {} ids", self.vocab_size)
    }

    fn template(&self, texts: Texts) -> &Template {
        match texts {
            Texts::One => &self.single,
            Texts::Pair => &self.pair,
        }
    }

    /// Tokens left for text; at least one.
    fn room(&self, rule: &TruncationRule, texts: Texts) -> Result<usize, TokenizerError> {
        let specials = self.template(texts).special_count();
        match rule.max_length.checked_sub(specials) {
            Some(room) if room > 0 => Ok(room),
            _ => Err(TokenizerError::NoRoom {
                max_length: rule.max_length,
                specials,
                texts: if texts == Texts::Pair { "pair of texts" } else { "text" },
            }),
        }
    }

    fn hash(&self, vocabulary: &[PathBuf], settings: &Settings) -> Result<u64, TokenizerError> {
        let mut hash = Xxh3::new();
        let mut field = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for (path, name) in vocabulary.iter().zip(self.source.names()) {
            field(name.as_bytes());
            field(&files::read(path, MAX_TOKENIZER_BYTES)?);
        }
        match &self.engine {
            Engine::Raw(raw) => field(&raw.signature()),
            Engine::Hf(_) if self.source != Source::TokenizerJson => field(settings.signature().as_bytes()),
            Engine::Hf(_) => {}
        }
        field(&self.single.signature());
        field(&self.pair.signature());
        Ok(hash.digest())
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({})", self.describe())
    }
}

/// Special tokens by the names in the settings, else by the names BERT and RoBERTa use.
fn special_of(hf: &HfTokenizer, settings: &Settings) -> Result<SpecialIds, TokenizerError> {
    let find = |role: &str, usual: [&str; 2]| -> Result<Option<u32>, TokenizerError> {
        let named = settings.special(role, usual[0])?;
        Ok(hf.token_to_id(&named).or_else(|| hf.token_to_id(usual[1])))
    };
    Ok(SpecialIds {
        cls: find("cls_token", ["[CLS]", "<s>"])?,
        sep: find("sep_token", ["[SEP]", "</s>"])?,
        pad: find("pad_token", ["[PAD]", "<pad>"])?,
        unk: find("unk_token", ["[UNK]", "<unk>"])?,
        mask: find("mask_token", ["[MASK]", "<mask>"])?,
    })
}
