//! `config.json` of a Hugging Face model, reduced to what the engine computes.

use muster_kernels::activation::Activation;
use serde::Deserialize;
use serde_json::Value;

use super::Buckets;

/// Model family; decides parameter names, embeddings and head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// `bert`
    Bert,
    /// `roberta`
    Roberta,
    /// `xlm-roberta`: RoBERTa with another vocabulary.
    XlmRoberta,
    /// `deberta-v2`, also the type of every DeBERTa-v3.
    DebertaV2,
}

/// Shape of the task head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadKind {
    /// BERT: dense, tanh, dropout, linear.
    Bert,
    /// RoBERTa: dropout, dense, tanh, dropout, linear.
    Roberta,
    /// DeBERTa: pooler dropout, dense, activation, dropout, linear.
    Deberta(Activation),
}

/// Dropout rates.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Dropouts {
    /// Of embeddings and of the outputs of attention and feed-forward.
    pub hidden: f32,
    /// Of attention probabilities.
    pub attention: f32,
    /// Before the head's dense layer.
    pub pooler: f32,
    /// Before the last linear layer.
    pub classifier: f32,
}

/// Relative attention of DeBERTa.
#[derive(Debug, Clone, PartialEq)]
pub struct RelativeConfig {
    /// Distances to table rows.
    pub buckets: Buckets,
    /// Content-to-position term.
    pub content_to_position: bool,
    /// Position-to-content term.
    pub position_to_content: bool,
    /// The table is projected by each layer's own query and key weights.
    pub shares_projections: bool,
    /// The table goes through the encoder's LayerNorm.
    pub normed: bool,
}

/// A convolution beside the first layer (DeBERTa-v2 xlarge).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvConfig {
    /// Width in tokens, odd.
    pub kernel: usize,
    /// Activation of its output.
    pub activation: Activation,
}

/// Everything the engine needs of a model's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Family.
    pub architecture: Architecture,
    /// Rows of the word table.
    pub vocab: usize,
    /// Columns of every hidden state.
    pub hidden: usize,
    /// Columns of the word table, if they differ (projected to `hidden`).
    pub embedding: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Columns of the feed-forward.
    pub intermediate: usize,
    /// Activation of the feed-forward.
    pub activation: Activation,
    /// Rows of the position table, or the longest row that relative positions were made for.
    pub max_positions: usize,
    /// Added to token positions before the table is read (RoBERTa: padding id + 1).
    pub position_offset: usize,
    /// Whether there is an absolute position table.
    pub absolute_positions: bool,
    /// Rows of the token-type table; 0 without one.
    pub token_types: usize,
    /// The id of the padding token, whose embedding starts at zero.
    pub pad_id: usize,
    /// LayerNorm epsilon.
    pub eps: f32,
    /// Standard deviation of random weights.
    pub init_std: f32,
    /// Dropout rates.
    pub dropouts: Dropouts,
    /// Relative attention.
    pub relative: Option<RelativeConfig>,
    /// Convolution beside the first layer.
    pub conv: Option<ConvConfig>,
    /// Head.
    pub head: HeadKind,
}

/// Why a `config.json` can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not the JSON object of a model.
    #[error("config.json is not a model configuration")]
    Json(#[source] serde_json::Error),
    /// A family the engine doesn't know.
    #[error("model_type {found:?} is not supported")]
    Architecture {
        /// What the file says.
        found: String,
    },
    /// A value is missing or out of range.
    #[error("config.json: {key} {problem}")]
    Key {
        /// The key.
        key: &'static str,
        /// What is wrong and what would be right.
        problem: String,
    },
}

impl ConfigError {
    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Architecture { .. } => {
                Some("supported: bert, roberta, xlm-roberta, deberta-v2 (also DeBERTa-v3)".into())
            }
            Self::Key { key: "layer_norm_eps", .. } => {
                Some("take the value from the original model: DeBERTa 1e-7, BERT 1e-12, RoBERTa 1e-5".into())
            }
            _ => None,
        }
    }
}

/// The keys as the file has them.
#[derive(Deserialize)]
struct Raw {
    model_type: Option<String>,
    vocab_size: Option<usize>,
    hidden_size: Option<usize>,
    embedding_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    intermediate_size: Option<usize>,
    hidden_act: Option<String>,
    max_position_embeddings: Option<usize>,
    type_vocab_size: Option<usize>,
    pad_token_id: Option<usize>,
    layer_norm_eps: Option<f64>,
    initializer_range: Option<f64>,
    hidden_dropout_prob: Option<f32>,
    attention_probs_dropout_prob: Option<f32>,
    classifier_dropout: Option<f32>,
    cls_dropout: Option<f32>,
    pooler_dropout: Option<f32>,
    pooler_hidden_act: Option<String>,
    pooler_hidden_size: Option<usize>,
    position_embedding_type: Option<String>,
    position_biased_input: Option<bool>,
    relative_attention: Option<bool>,
    position_buckets: Option<i64>,
    max_relative_positions: Option<i64>,
    norm_rel_ebd: Option<String>,
    share_att_key: Option<bool>,
    pos_att_type: Option<Value>,
    conv_kernel_size: Option<usize>,
    conv_act: Option<String>,
    conv_groups: Option<usize>,
}

fn key(key: &'static str, problem: impl Into<String>) -> ConfigError {
    ConfigError::Key { key, problem: problem.into() }
}

fn required(name: &'static str, value: Option<usize>) -> Result<usize, ConfigError> {
    match value {
        Some(0) => Err(key(name, "is 0")),
        Some(value) if value > MAX_SIZE => Err(key(name, format!("is {value}; at most {MAX_SIZE}"))),
        Some(value) => Ok(value),
        None => Err(key(name, "is missing")),
    }
}

/// No supported model comes near it; keeps products of sizes inside 64 bits.
const MAX_SIZE: usize = 1 << 24;

fn activation(name: &'static str, value: Option<&str>, default: &str) -> Result<Activation, ConfigError> {
    match value.unwrap_or(default) {
        "gelu" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        "tanh" => Ok(Activation::Tanh),
        "silu" | "swish" => Ok(Activation::Silu),
        other => Err(key(name, format!("{other:?} is not one of gelu, gelu_new, relu, tanh, silu"))),
    }
}

fn rate(name: &'static str, value: Option<f32>, default: f32) -> Result<f32, ConfigError> {
    let rate = value.unwrap_or(default);
    if (0.0..1.0).contains(&rate) {
        Ok(rate)
    } else {
        Err(key(name, format!("is {rate}; it must be in [0, 1)")))
    }
}

impl Config {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// An unsupported family, a missing key that has no safe default (LayerNorm epsilon of DeBERTa among them), or
    /// sizes that don't fit each other.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let raw: Raw = serde_json::from_str(text).map_err(ConfigError::Json)?;
        let architecture = match raw.model_type.as_deref() {
            Some("bert") => Architecture::Bert,
            Some("roberta") => Architecture::Roberta,
            Some("xlm-roberta") => Architecture::XlmRoberta,
            Some("deberta-v2") => Architecture::DebertaV2,
            other => return Err(ConfigError::Architecture { found: other.unwrap_or("(missing)").into() }),
        };
        let config = raw.sizes(architecture)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if !self.hidden.is_multiple_of(self.heads) {
            let problem = format!("{} does not divide hidden_size {}", self.heads, self.hidden);
            return Err(key("num_attention_heads", problem));
        }
        if self.pad_id >= self.vocab {
            return Err(key(
                "pad_token_id",
                format!("is {}, outside the vocabulary of {}", self.pad_id, self.vocab),
            ));
        }
        if let Some(conv) = &self.conv
            && conv.kernel.is_multiple_of(2)
        {
            return Err(key("conv_kernel_size", format!("is {}; it must be odd", conv.kernel)));
        }
        Ok(())
    }

    /// Columns of one attention head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// The longest row in tokens that the model accepts; `None` where positions are only relative.
    pub fn max_row(&self) -> Option<usize> {
        self.absolute_positions.then(|| self.max_positions - self.position_offset)
    }
}

impl Raw {
    fn sizes(&self, architecture: Architecture) -> Result<Config, ConfigError> {
        let deberta = architecture == Architecture::DebertaV2;
        let roberta = matches!(architecture, Architecture::Roberta | Architecture::XlmRoberta);
        let hidden = required("hidden_size", self.hidden_size)?;
        let pad_id = self.pad_token_id.unwrap_or(if roberta { 1 } else { 0 });
        let position_offset = if roberta { pad_id + 1 } else { 0 };
        let absolute = if deberta { self.position_biased_input.unwrap_or(true) } else { true };
        if let Some(kind) = self.position_embedding_type.as_deref()
            && kind != "absolute"
        {
            return Err(key(
                "position_embedding_type",
                format!("{kind:?} is not supported; only \"absolute\""),
            ));
        }
        let max_positions = required("max_position_embeddings", self.max_position_embeddings)?;
        if max_positions <= position_offset {
            return Err(key(
                "max_position_embeddings",
                format!("is {max_positions}, not above {position_offset}"),
            ));
        }
        let eps = match (self.layer_norm_eps, deberta) {
            (Some(eps), _) => eps,
            (None, false) => 1e-12,
            (None, true) => {
                return Err(key("layer_norm_eps", "is missing, and a wrong one changes every result"));
            }
        };
        let dropouts = self.dropouts(deberta)?;
        Ok(Config {
            architecture,
            vocab: required("vocab_size", self.vocab_size)?,
            hidden,
            embedding: self.embedding_size.filter(|_| deberta).unwrap_or(hidden),
            layers: required("num_hidden_layers", self.num_hidden_layers)?,
            heads: required("num_attention_heads", self.num_attention_heads)?,
            intermediate: required("intermediate_size", self.intermediate_size)?,
            activation: activation("hidden_act", self.hidden_act.as_deref(), "gelu")?,
            max_positions,
            position_offset,
            absolute_positions: absolute,
            token_types: self.type_vocab_size.unwrap_or(if deberta { 0 } else { 2 }),
            pad_id,
            eps: eps as f32,
            init_std: self.initializer_range.unwrap_or(0.02) as f32,
            dropouts,
            relative: if deberta { self.relative(max_positions)? } else { None },
            conv: if deberta { self.conv()? } else { None },
            head: self.head(architecture, hidden)?,
        })
    }

    fn dropouts(&self, deberta: bool) -> Result<Dropouts, ConfigError> {
        let hidden = rate("hidden_dropout_prob", self.hidden_dropout_prob, 0.1)?;
        let (name, classifier) = match deberta {
            true => ("cls_dropout", self.cls_dropout),
            false => ("classifier_dropout", self.classifier_dropout),
        };
        Ok(Dropouts {
            hidden,
            attention: rate("attention_probs_dropout_prob", self.attention_probs_dropout_prob, 0.1)?,
            pooler: rate("pooler_dropout", self.pooler_dropout, 0.0)?,
            classifier: rate(name, classifier, hidden)?,
        })
    }

    fn relative(&self, max_positions: usize) -> Result<Option<RelativeConfig>, ConfigError> {
        if !self.relative_attention.unwrap_or(false) {
            return Ok(None);
        }
        let max_distance = match self.max_relative_positions {
            Some(max) if max >= 1 => max as usize,
            _ => max_positions,
        };
        let bucket_count = self.position_buckets.filter(|&n| n > 0).unwrap_or(0) as usize;
        if bucket_count == 1 || (bucket_count > 0 && max_distance <= bucket_count / 2 + 1) {
            let problem = format!("is {bucket_count}, too many for distances up to {max_distance}");
            return Err(key("position_buckets", problem));
        }
        let span = if bucket_count > 0 { bucket_count } else { max_distance };
        let terms = self.position_terms()?;
        let has = |term: &str| terms.iter().any(|t| t == term);
        Ok(Some(RelativeConfig {
            buckets: Buckets { span, bucket_count, max_distance },
            content_to_position: has("c2p"),
            position_to_content: has("p2c"),
            shares_projections: self.share_att_key.unwrap_or(false),
            normed: self.norm_rel_ebd.as_deref().unwrap_or("none").to_lowercase().contains("layer_norm"),
        }))
    }

    /// `pos_att_type` is `"p2c|c2p"` in the original files and a list in newer ones.
    fn position_terms(&self) -> Result<Vec<String>, ConfigError> {
        let terms: Vec<String> = match &self.pos_att_type {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(s)) => s.split('|').map(|t| t.trim().to_lowercase()).collect(),
            Some(Value::Array(list)) => {
                list.iter().map(|t| t.as_str().unwrap_or_default().trim().to_lowercase()).collect()
            }
            Some(other) => {
                return Err(key("pos_att_type", format!("is {other}; it must be a string or a list")));
            }
        };
        match terms.iter().find(|t| !matches!(t.as_str(), "" | "c2p" | "p2c")) {
            Some(term) => Err(key("pos_att_type", format!("has {term:?}; known are \"c2p\" and \"p2c\""))),
            None => Ok(terms),
        }
    }

    fn conv(&self) -> Result<Option<ConvConfig>, ConfigError> {
        let Some(kernel) = self.conv_kernel_size.filter(|&k| k > 0) else { return Ok(None) };
        match self.conv_groups {
            None | Some(1) => {}
            Some(groups) => return Err(key("conv_groups", format!("is {groups}; only 1 is supported"))),
        }
        Ok(Some(ConvConfig { kernel, activation: activation("conv_act", self.conv_act.as_deref(), "tanh")? }))
    }

    fn head(&self, architecture: Architecture, hidden: usize) -> Result<HeadKind, ConfigError> {
        match architecture {
            Architecture::Bert => Ok(HeadKind::Bert),
            Architecture::Roberta | Architecture::XlmRoberta => Ok(HeadKind::Roberta),
            Architecture::DebertaV2 => {
                if let Some(size) = self.pooler_hidden_size.filter(|&size| size != hidden) {
                    return Err(key(
                        "pooler_hidden_size",
                        format!("is {size}; it must equal hidden_size {hidden}"),
                    ));
                }
                activation("pooler_hidden_act", self.pooler_hidden_act.as_deref(), "gelu")
                    .map(HeadKind::Deberta)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V3: &str = r#"{"model_type":"deberta-v2","vocab_size":128100,"hidden_size":1024,"num_hidden_layers":24,
        "num_attention_heads":16,"intermediate_size":4096,"hidden_act":"gelu","layer_norm_eps":1e-7,
        "max_position_embeddings":512,"max_relative_positions":-1,"relative_attention":true,"position_buckets":256,
        "norm_rel_ebd":"layer_norm","share_att_key":true,"pos_att_type":"p2c|c2p","position_biased_input":false,
        "type_vocab_size":0,"pooler_hidden_act":"gelu","pooler_dropout":0}"#;

    #[test]
    fn deberta_v3_large_reads_as_published() {
        let config = Config::parse(V3).unwrap();
        let relative = config.relative.clone().unwrap();
        assert_eq!(relative.buckets, Buckets { span: 256, bucket_count: 256, max_distance: 512 });
        assert!(relative.content_to_position && relative.position_to_content && relative.shares_projections);
        assert!(!config.absolute_positions && config.token_types == 0 && config.conv.is_none());
        assert_eq!(config.max_row(), None);
        let listed = V3.replace("\"p2c|c2p\"", "[\"p2c\", \"c2p\"]");
        assert_eq!(Config::parse(&listed).unwrap(), config);
    }

    #[test]
    fn a_deberta_without_epsilon_is_refused() {
        // facts/cases.md 12
        let error = Config::parse(&V3.replace("\"layer_norm_eps\":1e-7,", "")).unwrap_err();
        assert!(error.to_string().contains("layer_norm_eps is missing"), "{error}");
        assert!(error.hint().unwrap().contains("1e-7"));
    }

    #[test]
    fn wrong_values_name_their_key() {
        for (from, to, expected) in [
            ("deberta-v2", "gpt2", "model_type \"gpt2\" is not supported"),
            (
                "\"hidden_size\":1024",
                "\"hidden_size\":1000",
                "num_attention_heads 16 does not divide hidden_size 1000",
            ),
            ("\"p2c|c2p\"", "\"p2c|p2p\"", "pos_att_type has \"p2p\""),
            ("\"hidden_act\":\"gelu\"", "\"hidden_act\":\"mish\"", "hidden_act \"mish\" is not one of"),
            ("\"vocab_size\":128100,", "", "vocab_size is missing"),
            ("\"pooler_dropout\":0", "\"pooler_dropout\":1", "pooler_dropout is 1; it must be in [0, 1)"),
        ] {
            let error = Config::parse(&V3.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
