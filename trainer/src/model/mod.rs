//! Transformer encoders with a classification or regression head, as plain forward code over the tape.
//!
//! A [`Model`] knows the architecture and where each parameter lies; it holds no weights. BERT, RoBERTa, XLM-R and
//! DeBERTa-v2/v3 differ in their embeddings, in the relative terms of their attention and in their head; the encoder
//! layer is one. Adding an architecture means writing a configuration and a layout, never a backward.

mod buckets;
mod build;
mod config;
mod forward;
mod init;

use std::sync::Arc;

pub use buckets::{Buckets, bucket};
pub use config::{Architecture, Config, ConfigError, Dropouts, HeadKind, RelativeConfig};
pub use init::{random_head, random_weights};

use crate::params::{LayerNorm, Layout, Linear, Table};

/// An architecture with the places of its parameters.
#[derive(Debug, Clone)]
pub struct Model {
    config: Config,
    layout: Arc<Layout>,
    embeddings: Embeddings,
    relative: Option<RelativeTable>,
    layers: Vec<Layer>,
    conv: Option<ConvLayer>,
    head: Head,
}

#[derive(Debug, Clone)]
struct Embeddings {
    word: Table,
    position: Option<Table>,
    token_type: Option<Table>,
    project: Option<Linear>,
    norm: LayerNorm,
}

#[derive(Debug, Clone)]
struct RelativeTable {
    table: Table,
    norm: Option<LayerNorm>,
    buckets: Buckets,
}

#[derive(Debug, Clone)]
struct Layer {
    /// Rows `0..H` of this layer are the query projection, `H..2H` key, `2H..3H` value.
    qkv: Linear,
    /// Projections of the relative table; absent without relative attention.
    position_key: Option<Linear>,
    position_query: Option<Linear>,
    attention_out: Linear,
    attention_norm: LayerNorm,
    up: Linear,
    down: Linear,
    output_norm: LayerNorm,
}

#[derive(Debug, Clone)]
struct ConvLayer {
    linear: Linear,
    kernel: usize,
    norm: LayerNorm,
}

#[derive(Debug, Clone)]
struct Head {
    dense: Linear,
    out: Linear,
}

impl Model {
    /// The table of word embeddings: the first parameter.
    pub fn words(&self) -> &Table {
        &self.embeddings.word
    }

    /// Lays out the parameters of `config` with a head of `outputs` columns.
    pub fn new(config: Config, outputs: usize) -> Self {
        build::build(config, outputs)
    }

    /// Columns of the encoder's values: the usual, and the most of any operand of a product.
    pub fn widths(&self) -> (usize, usize) {
        let c = &self.config;
        let unfolded = c.conv.as_ref().map_or(0, |conv| conv.kernel * c.hidden);
        (c.hidden, c.intermediate.max(3 * c.hidden).max(unfolded))
    }

    /// Rows of the relative table that sequences of up to `longest` tokens use.
    pub fn slots(&self, longest: usize) -> usize {
        self.relative.as_ref().map_or(0, |relative| relative.buckets.slots(longest).count)
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where each parameter lies.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Columns of the logits.
    pub fn outputs(&self) -> usize {
        self.head.out.outputs
    }
}
