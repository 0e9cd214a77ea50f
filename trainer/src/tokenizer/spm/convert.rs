//! A raw SentencePiece model as a `tokenizer.json`, for `transformers`.
//!
//! `transformers` 5 rebuilds a DeBERTa tokenizer from `spm.model` with NFC instead of the file's own character map and
//! without byte fallback, so its ids differ from those the model was trained with. A `tokenizer.json` that spells the
//! rules out gives the same ids, with three exceptions: special tokens written in a text (`[SEP]`) become special there, a
//! byte spelled out (`<0x41>`) becomes that byte's piece, and the library looks up whole grapheme clusters in the
//! character map, so some combining marks come out otherwise.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde_json::{Value, json};

use super::proto::{ModelProto, NormalizerSpec, Piece, TrainerSpec};
use super::{Kind, kind};
use crate::tokenizer::TokenizerError;

/// A special token and its id.
pub struct Named<'a> {
    /// As it is written.
    pub text: &'a str,
    /// Its id.
    pub id: u32,
}

/// The special tokens of a row: `[CLS] A [SEP]`, `[CLS] A [SEP] B [SEP]`.
pub struct Specials<'a> {
    /// Starts a row.
    pub cls: Named<'a>,
    /// Ends a text.
    pub sep: Named<'a>,
    /// Others that the tokenizer must know.
    pub others: Vec<Named<'a>>,
}

/// Converts the model file `path`; `None` if it has a rule that a `tokenizer.json` can't express.
///
/// # Errors
/// The file is damaged.
pub fn tokenizer_json(
    path: &Path,
    bytes: &[u8],
    specials: &Specials<'_>,
) -> Result<Option<Value>, TokenizerError> {
    let model = ModelProto::decode(bytes)
        .map_err(|source| TokenizerError::SpmDecode { path: path.to_path_buf(), source })?;
    let trainer = model.trainer_spec.unwrap_or_default();
    let normalizer = model.normalizer_spec.unwrap_or_default();
    if !expressible(&trainer, &normalizer, &model.pieces) {
        return Ok(None);
    }
    let unknown = model.pieces.iter().position(|p| kind(p.kind.unwrap_or(1)) == Some(Kind::Unknown));
    let vocab: Vec<Value> = model
        .pieces
        .iter()
        .map(|p| {
            json!([String::from_utf8_lossy(p.piece.as_deref().unwrap_or_default()), p.score.unwrap_or(0.0)])
        })
        .collect();
    Ok(Some(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(specials),
        "normalizer": normalizer_json(&normalizer),
        "pre_tokenizer": metaspace(),
        "post_processor": post_processor(specials),
        "decoder": metaspace(),
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": vocab,
            "byte_fallback": trainer.byte_fallback.unwrap_or(false),
        },
    })))
}

/// The rules of DeBERTa's own file; others have no equal among the library's normalizers and pre-tokenizers.
fn expressible(trainer: &TrainerSpec, normalizer: &NormalizerSpec, pieces: &[Piece]) -> bool {
    let plain = |piece: &Piece| {
        !matches!(kind(piece.kind.unwrap_or(1)), None | Some(Kind::UserDefined | Kind::Unused))
    };
    !trainer.treat_whitespace_as_suffix.unwrap_or(false)
        && normalizer.add_dummy_prefix.unwrap_or(true)
        && normalizer.remove_extra_whitespaces.unwrap_or(true)
        && normalizer.escape_whitespaces.unwrap_or(true)
        && pieces.iter().all(plain)
}

fn normalizer_json(spec: &NormalizerSpec) -> Value {
    let mut steps = Vec::new();
    if let Some(map) = spec.precompiled_charsmap.as_deref().filter(|map| !map.is_empty()) {
        steps.push(json!({ "type": "Precompiled", "precompiled_charsmap": STANDARD.encode(map) }));
    }
    steps.push(json!({ "type": "Strip", "strip_left": true, "strip_right": true }));
    steps.push(json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " }));
    json!({ "type": "Sequence", "normalizers": steps })
}

fn metaspace() -> Value {
    json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": false })
}

fn added_tokens(specials: &Specials<'_>) -> Vec<Value> {
    let mut all: Vec<&Named> = [&specials.cls, &specials.sep].into_iter().chain(&specials.others).collect();
    all.sort_by_key(|token| token.id);
    all.iter()
        .map(|token| {
            json!({
                "id": token.id, "content": token.text, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        })
        .collect()
}

fn post_processor(specials: &Specials<'_>) -> Value {
    let special = |token: &Named, kind: u32| json!({ "SpecialToken": { "id": token.text, "type_id": kind } });
    let text = |name: &str, kind: u32| json!({ "Sequence": { "id": name, "type_id": kind } });
    let (cls, sep) = (&specials.cls, &specials.sep);
    let known = |token: &Named| json!({ "id": token.text, "ids": [token.id], "tokens": [token.text] });
    json!({
        "type": "TemplateProcessing",
        "single": [special(cls, 0), text("A", 0), special(sep, 0)],
        "pair": [special(cls, 0), text("A", 0), special(sep, 0), text("B", 1), special(sep, 1)],
        "special_tokens": { cls.text: known(cls), sep.text: known(sep) },
    })
}
