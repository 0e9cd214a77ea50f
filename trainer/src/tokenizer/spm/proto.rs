//! The part of SentencePiece's `ModelProto` that encoding needs; every other field is skipped.
//!
//! Texts are read as bytes: the format promises no UTF-8, and a damaged file must give an error, never a panic.

use prost::Message;

/// `ModelProto`: the whole model file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pub pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    pub trainer_spec: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    pub normalizer_spec: Option<NormalizerSpec>,
}

/// `ModelProto.SentencePiece`: one entry of the vocabulary; its index is its id.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Piece {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub piece: Option<Vec<u8>>,
    #[prost(float, optional, tag = "2")]
    pub score: Option<f32>,
    #[prost(int32, optional, tag = "3")]
    pub kind: Option<i32>,
}

/// `TrainerSpec`: how the model was trained, as far as it matters for use.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrainerSpec {
    #[prost(int32, optional, tag = "3")]
    pub model_type: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    pub treat_whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35")]
    pub byte_fallback: Option<bool>,
}

/// `NormalizerSpec`: what happens to a text before it is cut into pieces.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NormalizerSpec {
    #[prost(bytes = "vec", optional, tag = "2")]
    pub precompiled_charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    pub add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub escape_whitespaces: Option<bool>,
}
