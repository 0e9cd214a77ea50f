//! What a model adds around a raw SentencePiece file: special tokens, id offsets, what is done to a text before.

use std::path::Path;

use muster_proto::limits::MAX_SPM_BYTES;
use serde_json::{Value, json};
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

use super::error::TokenizerError;
use super::files::TokenizerFile;
use super::settings::Settings;
use super::spm::Spm;
use super::spm::convert::{Named, Specials, tokenizer_json};
use super::template::{Part, Template};
use super::{SpecialIds, files};

/// A SentencePiece model with the conventions of the model family that uses it.
#[derive(Debug)]
pub(super) struct Raw {
    spm: Spm,
    family: Family,
    lower_case: bool,
    split_by_punct: bool,
    pub special: SpecialIds,
    /// Ids below it exist; `[MASK]` may lie above the pieces.
    pub vocab_size: usize,
}

/// Whose conventions apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// Ids as in the file; `[CLS]`, `[SEP]`, `[PAD]` are pieces, `[MASK]` follows the last piece.
    Deberta,
    /// Ids of fairseq: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, every piece moved up by one, `<mask>` last.
    XlmRoberta,
}

impl Raw {
    /// Loads `spm.model` of DeBERTa-v2 or v3.
    ///
    /// # Errors
    /// The file can't be read or used, or lacks `[CLS]` or `[SEP]`.
    pub fn deberta(path: &Path, settings: &Settings) -> Result<Self, TokenizerError> {
        let spm = read(path)?;
        let lookup = |role: &'static str, default| -> Result<_, TokenizerError> {
            let token = settings.special(role, default)?;
            let id = spm.piece_id(&token).or_else(|| settings.added_id(&token));
            Ok((id, token))
        };
        let needed = |role, default| match lookup(role, default)? {
            (Some(id), _) => Ok(Some(id)),
            (None, token) => Err(TokenizerError::SpecialMissing { role, token, path: path.to_path_buf() }),
        };
        let special = SpecialIds {
            cls: needed("cls_token", "[CLS]")?,
            sep: needed("sep_token", "[SEP]")?,
            pad: lookup("pad_token", "[PAD]")?.0,
            unk: Some(spm.unknown_id()),
            // The original vocabulary has no mask; every implementation appends it.
            mask: lookup("mask_token", "[MASK]")?.0.or(Some(spm.piece_count() as u32)),
        };
        let added = settings.added().map(|(_, id)| id).chain(special.mask);
        let vocab_size = added.map(|id| id as usize + 1).fold(spm.piece_count(), usize::max);
        Ok(Self {
            spm,
            family: Family::Deberta,
            lower_case: settings.switch("do_lower_case", false)?,
            split_by_punct: settings.switch("split_by_punct", false)?,
            special,
            vocab_size,
        })
    }

    /// Loads `sentencepiece.bpe.model` of XLM-RoBERTa (a unigram model in spite of its name).
    ///
    /// # Errors
    /// The file can't be read or used.
    pub fn xlm_roberta(path: &Path) -> Result<Self, TokenizerError> {
        let spm = read(path)?;
        if spm.unknown_id() != 0 {
            let reason =
                format!("the unknown piece has the id {}, expected 0 as fairseq writes it", spm.unknown_id());
            return Err(TokenizerError::Invalid { path: path.to_path_buf(), reason });
        }
        let mask = spm.piece_count() as u32 + 1;
        let special = SpecialIds { cls: Some(0), pad: Some(1), sep: Some(2), unk: Some(3), mask: Some(mask) };
        let vocab_size = mask as usize + 1;
        Ok(Self {
            spm,
            family: Family::XlmRoberta,
            lower_case: false,
            split_by_punct: false,
            special,
            vocab_size,
        })
    }

    /// The places of the special tokens around one text and around a pair.
    pub fn templates(&self) -> (Template, Template) {
        let cls = Part::Special(self.special.cls.expect("checked when the model was loaded"));
        let sep = Part::Special(self.special.sep.expect("checked when the model was loaded"));
        let single = vec![(cls, 0), (Part::First, 0), (sep, 0)];
        let pair = match self.family {
            Family::Deberta => vec![(cls, 0), (Part::First, 0), (sep, 0), (Part::Second, 1), (sep, 1)],
            Family::XlmRoberta => {
                vec![(cls, 0), (Part::First, 0), (sep, 0), (sep, 0), (Part::Second, 0), (sep, 0)]
            }
        };
        let sound = "these templates have their texts in order and types 0, 1";
        (
            Template::new(single, &[Part::First]).expect(sound),
            Template::new(pair, &[Part::First, Part::Second]).expect(sound),
        )
    }

    /// Encodes `text` without special tokens.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let lower;
        let text = if self.lower_case {
            lower = text.to_lowercase();
            &lower
        } else {
            text
        };
        let mut ids = Vec::new();
        if self.split_by_punct {
            for word in split_by_punctuation(text) {
                self.spm.encode(&word, &mut ids);
            }
        } else {
            self.spm.encode(text, &mut ids);
        }
        if self.family == Family::XlmRoberta {
            for id in &mut ids {
                *id = if *id == 0 { 3 } else { *id + 1 };
            }
        }
        ids
    }

    /// `tokenizer.json` and its settings for `transformers`; nothing where the rules of this file have no equal there.
    ///
    /// # Errors
    /// The model file at `path` is no longer readable.
    pub fn converted(&self, path: &Path, max_length: usize) -> Result<Vec<TokenizerFile>, TokenizerError> {
        if self.lower_case || self.split_by_punct {
            return Ok(Vec::new());
        }
        let names = [
            ("cls_token", "[CLS]", self.special.cls),
            ("sep_token", "[SEP]", self.special.sep),
            ("pad_token", "[PAD]", self.special.pad),
            ("unk_token", "[UNK]", self.special.unk),
            ("mask_token", "[MASK]", self.special.mask),
        ];
        let texts = names.map(|(_, default, id)| {
            let text = id.and_then(|id| self.spm.piece(id)).unwrap_or_else(|| default.to_owned());
            (text, id)
        });
        let mut known = texts.iter().filter_map(|(text, id)| Some(Named { text, id: (*id)? }));
        let sound = "checked when the model was loaded";
        let (cls, sep) = (known.next().expect(sound), known.next().expect(sound));
        let specials = Specials { cls, sep, others: known.collect() };
        let bytes = files::read(path, MAX_SPM_BYTES)?;
        let Some(json) = tokenizer_json(path, &bytes, &specials)? else { return Ok(Vec::new()) };
        let mut settings = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": texts[0].0,
            "eos_token": texts[1].0,
            "model_max_length": max_length,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        });
        for ((role, ..), (text, id)) in names.iter().zip(&texts) {
            if id.is_some() {
                settings[*role] = json!(text);
            }
        }
        let made =
            |name, value: &Value| TokenizerFile::Made { name, bytes: format!("{value:#}\n").into_bytes() };
        Ok(vec![made("tokenizer.json", &json), made("tokenizer_config.json", &settings)])
    }

    /// The largest id that a text can give.
    pub fn max_text_id(&self) -> u32 {
        match self.family {
            Family::Deberta => self.spm.piece_count() as u32 - 1,
            Family::XlmRoberta => self.spm.piece_count() as u32,
        }
    }

    /// The text of a token that a row can hold, for messages.
    pub fn token(&self, id: u32) -> Option<String> {
        self.spm.piece(match self.family {
            Family::Deberta => id,
            Family::XlmRoberta => id.saturating_sub(1),
        })
    }

    /// Bytes that differ whenever two settings do.
    pub fn signature(&self) -> [u8; 3] {
        [self.family as u8, u8::from(self.lower_case), u8::from(self.split_by_punct)]
    }

    /// What the file holds, for people.
    pub fn describe(&self) -> String {
        let family = match self.family {
            Family::Deberta => "DeBERTa",
            Family::XlmRoberta => "XLM-RoBERTa",
        };
        let fallback = if self.spm.has_byte_fallback() { ", byte fallback" } else { "" };
        format!(
            "raw SentencePiece unigram model with {} pieces{fallback}, {family} ids",
            self.spm.piece_count()
        )
    }
}

fn read(path: &Path) -> Result<Spm, TokenizerError> {
    Spm::parse(path, &files::read(path, MAX_SPM_BYTES)?)
}

/// Cuts a text so that every punctuation character stands alone.
fn split_by_punctuation(text: &str) -> Vec<String> {
    let mut words = PreTokenizedString::from(text);
    match Punctuation::new(SplitDelimiterBehavior::Isolated).pre_tokenize(&mut words) {
        Ok(()) => words
            .get_splits(OffsetReferential::Original, OffsetType::None)
            .into_iter()
            .map(|(word, _, _)| word.to_owned())
            .collect(),
        // Splitting on a character class has no way to fail; the whole text is one word then.
        Err(_) => vec![text.to_owned()],
    }
}
