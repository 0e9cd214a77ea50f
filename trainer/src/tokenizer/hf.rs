//! Tokenizers that the `tokenizers` library runs: `tokenizer.json`, BERT's `vocab.txt`, RoBERTa's `vocab.json` with
//! `merges.txt`.
//!
//! The library cuts texts into ids; truncation, padding and special tokens are ours. The places of the special
//! tokens are read once from the file's own post-processor, by sending two marked tokens through it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use muster_proto::limits::MAX_TOKENIZER_BYTES;
use serde_json::{Value, json};
use tokenizers::{Encoding as HfEncoding, Token, Tokenizer as HfTokenizer};

use super::error::TokenizerError;
use super::files;
use super::settings::Settings;
use super::template::{Part, Template};

/// Ids of the two marked tokens; no vocabulary is that large.
const FIRST_MARK: u32 = u32::MAX;
const SECOND_MARK: u32 = u32::MAX - 1;

/// Loads `tokenizer.json`.
///
/// # Errors
/// The file can't be read or does not parse.
pub(super) fn load_json(path: &Path) -> Result<HfTokenizer, TokenizerError> {
    let bytes = files::read(path, MAX_TOKENIZER_BYTES)?;
    let description: Value = serde_json::from_slice(&bytes)
        .map_err(|source| TokenizerError::Json { path: path.to_path_buf(), source })?;
    let listed = description.get("added_tokens").cloned();
    let tokenizer = build(path, description)?;
    for added in listed.as_ref().and_then(Value::as_array).into_iter().flatten() {
        let (Some(token), Some(id)) = (added["content"].as_str(), added["id"].as_u64()) else { continue };
        let given = tokenizer.token_to_id(token).map(u64::from);
        if given != Some(id) {
            // As in `transformers`: the vocabulary's id counts.
            tracing::warn!(file = %path.display(), token, listed = id, given, "added token has another id than listed");
        }
    }
    Ok(tokenizer)
}

/// Builds the tokenizer of BERT from `vocab.txt`, one token a line, the line is the id.
///
/// # Errors
/// The file can't be read, or lacks `[UNK]`, `[CLS]` or `[SEP]` (or what the settings call them).
pub(super) fn load_vocab_txt(path: &Path, settings: &Settings) -> Result<HfTokenizer, TokenizerError> {
    let text = files::read_text(path)?;
    let vocab: serde_json::Map<String, Value> = text
        .strip_suffix('\n')
        .unwrap_or(&text)
        .split('\n')
        .enumerate()
        .map(|(id, line)| (line.strip_suffix('\r').unwrap_or(line).to_owned(), json!(id)))
        .collect();
    let unknown = settings.special("unk_token", "[UNK]")?;
    let cls = special_id(path, &vocab, "cls_token", settings.special("cls_token", "[CLS]")?)?;
    let sep = special_id(path, &vocab, "sep_token", settings.special("sep_token", "[SEP]")?)?;
    special_id(path, &vocab, "unk_token", unknown.clone())?;
    let lowercase = settings.switch("do_lower_case", true)?;
    let description = json!({
        "version": "1.0",
        "added_tokens": special_tokens(&vocab, settings, "[MASK]", "[PAD]", [&unknown, &cls.0, &sep.0])?,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": settings.switch("tokenize_chinese_chars", true)?,
            "strip_accents": settings.raw("strip_accents"),
            "lowercase": lowercase,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "BertProcessing", "sep": sep, "cls": cls },
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    });
    build(path, description)
}

/// Builds the tokenizer of RoBERTa from `vocab.json` and `merges.txt`.
///
/// # Errors
/// A file can't be read or is malformed, or the vocabulary lacks `<s>`, `</s>` or `<unk>`.
pub(super) fn load_vocab_merges(dir: &Path, settings: &Settings) -> Result<HfTokenizer, TokenizerError> {
    let path = dir.join("vocab.json");
    let vocab: serde_json::Map<String, Value> =
        serde_json::from_slice(&files::read(&path, MAX_TOKENIZER_BYTES)?)
            .map_err(|source| TokenizerError::Json { path: path.clone(), source })?;
    let merges = merges(&dir.join("merges.txt"))?;
    let unknown = settings.special("unk_token", "<unk>")?;
    let cls = special_id(&path, &vocab, "cls_token", settings.special("cls_token", "<s>")?)?;
    let sep = special_id(&path, &vocab, "sep_token", settings.special("sep_token", "</s>")?)?;
    special_id(&path, &vocab, "unk_token", unknown.clone())?;
    let add_prefix_space = settings.switch("add_prefix_space", false)?;
    let trim_offsets = true;
    let description = json!({
        "version": "1.0",
        "added_tokens": special_tokens(&vocab, settings, "<mask>", "<pad>", [&unknown, &cls.0, &sep.0])?,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": add_prefix_space,
            "trim_offsets": trim_offsets,
            "use_regex": true,
        },
        "post_processor": {
            "type": "RobertaProcessing",
            "sep": sep,
            "cls": cls,
            "trim_offsets": trim_offsets,
            "add_prefix_space": add_prefix_space,
        },
        "model": {
            "type": "BPE",
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": false,
            "vocab": vocab,
            "merges": merges,
        },
    });
    build(&path, description)
}

/// Reads `merges.txt`: two tokens a line, best first, after an optional `#version` line.
fn merges(path: &Path) -> Result<Vec<[String; 2]>, TokenizerError> {
    let text = files::read_text(path)?;
    let mut merges = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with("#version") {
            continue;
        }
        match line.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
                merges.push([left.to_owned(), right.to_owned()]);
            }
            _ => {
                let reason =
                    format!("line {} is not two tokens with a blank between them: {line:?}", index + 1);
                return Err(TokenizerError::Invalid { path: path.to_path_buf(), reason });
            }
        }
    }
    Ok(merges)
}

fn special_id(
    path: &Path,
    vocab: &serde_json::Map<String, Value>,
    role: &'static str,
    token: String,
) -> Result<(String, u64), TokenizerError> {
    match vocab.get(&token).and_then(Value::as_u64) {
        Some(id) => Ok((token, id)),
        None => Err(TokenizerError::SpecialMissing { role, token, path: path.to_path_buf() }),
    }
}

/// The special tokens as `tokenizer.json` lists them: they are matched in texts before anything else.
fn special_tokens(
    vocab: &serde_json::Map<String, Value>,
    settings: &Settings,
    mask: &str,
    pad: &str,
    [unknown, cls, sep]: [&str; 3],
) -> Result<Vec<Value>, TokenizerError> {
    let mask = settings.special("mask_token", mask)?;
    let pad = settings.special("pad_token", pad)?;
    let roles = [
        ("unk_token", unknown),
        ("sep_token", sep),
        ("pad_token", pad.as_str()),
        ("cls_token", cls),
        ("mask_token", mask.as_str()),
    ];
    let known = roles.into_iter().filter_map(|(role, token)| {
        let id = vocab.get(token)?;
        let flag = |name| settings.special_flag(role, name);
        Some(json!({
            "id": id,
            "content": token,
            "single_word": flag("single_word"),
            "lstrip": flag("lstrip"),
            "rstrip": flag("rstrip"),
            "normalized": flag("normalized"),
            "special": true,
        }))
    });
    Ok(known.collect())
}

/// Lets the library build the tokenizer, without what is not used here: decoder, truncation, padding.
fn build(path: &Path, mut description: Value) -> Result<HfTokenizer, TokenizerError> {
    if let Value::Object(parts) = &mut description {
        for unused in ["decoder", "truncation", "padding"] {
            parts.remove(unused);
        }
    }
    guarded(|| Ok(serde_json::from_value(description)?))
        .map_err(|source| TokenizerError::Load { path: path.to_path_buf(), source })
}

/// Runs the library; some of its checks of malformed files panic, which is an error like any other here.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(format!("the tokenizers library panicked: {message}").into())
    })
}

/// The places of the special tokens around one text and around a pair.
///
/// # Errors
/// The post-processor fails, or puts the texts where a row can't have them.
pub(super) fn templates(
    path: &Path,
    tokenizer: &HfTokenizer,
) -> Result<(Template, Template), TokenizerError> {
    let mark = |id, kind| HfEncoding::from_tokens(vec![Token::new(id, "a".to_owned(), (0, 1))], kind);
    let template = |second: Option<HfEncoding>, texts: &[Part]| {
        let row = guarded(|| tokenizer.post_process(mark(FIRST_MARK, 0), second, true))
            .map_err(|source| TokenizerError::Load { path: path.to_path_buf(), source })?;
        let parts = row.get_ids().iter().zip(row.get_type_ids()).map(|(&id, &kind)| match id {
            FIRST_MARK => (Part::First, kind),
            SECOND_MARK => (Part::Second, kind),
            id => (Part::Special(id), kind),
        });
        Template::new(parts.collect(), texts)
            .map_err(|reason| TokenizerError::Invalid { path: path.to_path_buf(), reason })
    };
    Ok((template(None, &[Part::First])?, template(Some(mark(SECOND_MARK, 1)), &[Part::First, Part::Second])?))
}

/// Encodes `text` without special tokens.
///
/// # Errors
/// The library fails, as it does for an unknown word when the vocabulary has no unknown token.
pub(super) fn encode(tokenizer: &HfTokenizer, text: &str) -> Result<Vec<u32>, TokenizerError> {
    match guarded(|| tokenizer.encode_fast(text, false)) {
        Ok(encoding) => Ok(encoding.get_ids().to_vec()),
        Err(source) => Err(TokenizerError::Encode { text: text.chars().take(60).collect(), source }),
    }
}
