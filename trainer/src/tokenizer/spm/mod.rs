//! A raw SentencePiece model file (`spm.model`, `sentencepiece.bpe.model`): a text in, the ids of `spm_encode` out.
//!
//! Supported: unigram models with any normalizer, byte fallback, user-defined, control and unused pieces. Not
//! supported, with an error that says so: BPE, word and character models. Text that looks like a control symbol
//! (`[CLS]`) is ordinary text here, as it is in the reference library.

mod charsmap;
pub(super) mod convert;
mod normalizer;
mod proto;
mod trie;
mod unigram;

use std::collections::HashMap;
use std::path::Path;

use prost::Message;

use self::normalizer::Normalizer;
use self::proto::ModelProto;
use self::unigram::{Score, Unigram};
use super::error::TokenizerError;

/// A loaded SentencePiece model.
#[derive(Debug)]
pub struct Spm {
    normalizer: Normalizer,
    unigram: Unigram,
    unknown_id: u32,
    /// Id of each byte's piece, when unknown characters fall back to bytes.
    bytes: Option<Box<[u32; 256]>>,
    pieces: HashMap<Vec<u8>, u32>,
    piece_count: usize,
}

/// `ModelProto.SentencePiece.Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Spm {
    /// Reads a model from the bytes of the file `path` (used in messages only).
    ///
    /// # Errors
    /// Damaged or inconsistent file, or another model type than unigram; `path` is named.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, TokenizerError> {
        let model = ModelProto::decode(bytes)
            .map_err(|source| TokenizerError::SpmDecode { path: path.to_path_buf(), source })?;
        match model.trainer_spec.as_ref().and_then(|spec| spec.model_type).unwrap_or(1) {
            1 => Self::build(model)
                .map_err(|reason| TokenizerError::Invalid { path: path.to_path_buf(), reason }),
            other => {
                let found = match other {
                    2 => "BPE".to_owned(),
                    3 => "word".to_owned(),
                    4 => "character".to_owned(),
                    number => format!("unknown (number {number})"),
                };
                Err(TokenizerError::SpmModelType { path: path.to_path_buf(), found })
            }
        }
    }

    fn build(mut model: ModelProto) -> Result<Self, String> {
        let trainer = model.trainer_spec.take().unwrap_or_default();
        let normalizer = model.normalizer_spec.take().unwrap_or_default();
        let vocabulary = Vocabulary::read(&model)?;
        let unknown_id = vocabulary.unknown_id.ok_or("no piece has the type UNKNOWN")?;
        let bytes = match (trainer.byte_fallback.unwrap_or(false), vocabulary.byte_count) {
            (true, 256) => Some(vocabulary.bytes),
            (true, found) => {
                return Err(format!("byte fallback is on, but {found} of 256 byte pieces are there"));
            }
            (false, 0) => None,
            (false, found) => return Err(format!("{found} byte pieces are there, but byte fallback is off")),
        };
        let normalizer = Normalizer::new(
            normalizer,
            trainer.treat_whitespace_as_suffix.unwrap_or(false),
            vocabulary.user_defined,
        )?;
        let unigram = Unigram::new(vocabulary.keys, vocabulary.scores, unknown_id);
        let pieces = vocabulary.by_text.into_iter().map(|(text, id)| (text.to_vec(), id)).collect();
        Ok(Self { normalizer, unigram, unknown_id, bytes, pieces, piece_count: model.pieces.len() })
    }

    /// Encodes `text` and appends the ids to `out`; no special token is added.
    pub fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let normalized = self.normalizer.normalize(text);
        let mut after_unknown = false;
        for span in self.unigram.segment(&normalized) {
            let unknown = span.id == self.unknown_id;
            match &self.bytes {
                Some(bytes) if unknown => {
                    out.extend(normalized[span.from..span.to].iter().map(|&byte| bytes[usize::from(byte)]));
                }
                // A run of unknown characters is one unknown token.
                _ if unknown && after_unknown => {}
                _ => out.push(span.id),
            }
            after_unknown = unknown;
        }
    }

    /// Counts the pieces; ids are below it.
    pub fn piece_count(&self) -> usize {
        self.piece_count
    }

    /// The id of a piece of any type.
    pub fn piece_id(&self, piece: &str) -> Option<u32> {
        self.pieces.get(piece.as_bytes()).copied()
    }

    /// The text of a piece. Cost: a walk over the vocabulary; for messages.
    pub fn piece(&self, id: u32) -> Option<String> {
        let found = self.pieces.iter().find(|(_, piece_id)| **piece_id == id);
        found.map(|(text, _)| String::from_utf8_lossy(text).into_owned())
    }

    /// The id of an unknown token.
    pub fn unknown_id(&self) -> u32 {
        self.unknown_id
    }

    /// Tells whether unknown characters become byte pieces.
    pub fn has_byte_fallback(&self) -> bool {
        self.bytes.is_some()
    }
}

/// The pieces of a model file, sorted by use.
struct Vocabulary<'a> {
    keys: Vec<(&'a [u8], u32)>,
    scores: Vec<Score>,
    user_defined: Vec<(&'a [u8], u32)>,
    by_text: HashMap<&'a [u8], u32>,
    unknown_id: Option<u32>,
    bytes: Box<[u32; 256]>,
    byte_count: usize,
}

impl<'a> Vocabulary<'a> {
    fn read(model: &'a ModelProto) -> Result<Self, String> {
        let mut vocabulary = Self {
            keys: Vec::new(),
            scores: vec![Score::Unused; model.pieces.len()],
            user_defined: Vec::new(),
            by_text: HashMap::with_capacity(model.pieces.len()),
            unknown_id: None,
            bytes: Box::new([u32::MAX; 256]),
            byte_count: 0,
        };
        let mut reserved = HashMap::new();
        for (id, piece) in model.pieces.iter().enumerate() {
            let text = piece.piece.as_deref().unwrap_or_default();
            let at = |reason: &str| format!("piece {id} ({:?}) {reason}", String::from_utf8_lossy(text));
            let kind = kind(piece.kind.unwrap_or(1)).ok_or_else(|| at("has an unknown type"))?;
            if text.is_empty() {
                return Err(format!("piece {id} is empty"));
            }
            let id = id as u32;
            // The reference keeps two name spaces; one text may be in both, but only once in each.
            let names = match kind {
                Kind::Normal | Kind::UserDefined | Kind::Unused => &mut vocabulary.by_text,
                _ => &mut reserved,
            };
            if names.insert(text, id).is_some() {
                return Err(at("is defined twice"));
            }
            vocabulary.add(id, text, kind, piece.score.unwrap_or(0.0)).map_err(at)?;
        }
        vocabulary.by_text.extend(reserved);
        Ok(vocabulary)
    }

    fn add(&mut self, id: u32, text: &'a [u8], kind: Kind, score: f32) -> Result<(), &'static str> {
        match kind {
            Kind::Normal => self.scores[id as usize] = Score::Normal(score),
            Kind::UserDefined => {
                self.scores[id as usize] = Score::UserDefined;
                self.user_defined.push((text, id));
            }
            Kind::Unused | Kind::Control => {}
            Kind::Unknown if self.unknown_id.is_some() => return Err("is a second unknown piece"),
            Kind::Unknown => self.unknown_id = Some(id),
            Kind::Byte => {
                let byte = byte_of(text).ok_or("is a byte piece, but not <0x00> to <0xFF>")?;
                self.bytes[usize::from(byte)] = id;
                self.byte_count += 1;
            }
        }
        if matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Unused) {
            self.keys.push((text, id));
        }
        Ok(())
    }
}

fn kind(number: i32) -> Option<Kind> {
    Some(match number {
        1 => Kind::Normal,
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        5 => Kind::Unused,
        6 => Kind::Byte,
        _ => return None,
    })
}

/// The byte of a piece like `<0x0A>`; capital digits only, so that no byte has two pieces.
fn byte_of(piece: &[u8]) -> Option<u8> {
    let digits = piece.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let upper = digits.len() == 2 && digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'A'..=b'F'));
    upper.then(|| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())?
}
