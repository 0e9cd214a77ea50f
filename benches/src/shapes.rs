//! The models and row lengths that benchmarks of steps run: shapes only, weights are random.

use muster_trainer::model::Config;

/// Row lengths in tokens: 64 quantiles of the banking77 training texts (10,003 bank customer queries) under the MiniLM
/// tokenizer; their mean is 16.2. Short texts with a long tail are what padding wastes most on.
pub const BANKING77_LENGTHS: [u32; 64] = [
    7, 8, 8, 9, 9, 9, 9, 9, 10, 10, 10, 10, 10, 11, 11, 11, 11, 11, 11, 11, 12, 12, 12, 12, 12, 12, 13, 13,
    13, 13, 13, 13, 14, 14, 14, 14, 14, 14, 15, 15, 15, 15, 16, 16, 16, 16, 17, 17, 18, 18, 19, 19, 20, 21,
    22, 23, 25, 27, 29, 32, 36, 39, 45, 55,
];

/// A model shape.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Name on the command line and in the table.
    pub name: &'static str,
    /// Encoder layers.
    pub layers: usize,
    hidden: usize,
    heads: usize,
    intermediate: usize,
    vocab: usize,
    deberta: bool,
}

/// Every shape. DeBERTa-v3-large is cut to 4 of its 24 layers, so that a step fits a laptop; `tiny` is for trying the
/// benchmarks themselves.
pub const SHAPES: [Shape; 4] = [
    Shape {
        name: "minilm-l6",
        layers: 6,
        hidden: 384,
        heads: 12,
        intermediate: 1536,
        vocab: 30_522,
        deberta: false,
    },
    Shape {
        name: "deberta-v3-xsmall",
        layers: 12,
        hidden: 384,
        heads: 6,
        intermediate: 1536,
        vocab: 128_100,
        deberta: true,
    },
    Shape {
        name: "deberta-v3-large-4",
        layers: 4,
        hidden: 1024,
        heads: 16,
        intermediate: 4096,
        vocab: 128_100,
        deberta: true,
    },
    Shape { name: "tiny", layers: 2, hidden: 128, heads: 4, intermediate: 256, vocab: 1_000, deberta: true },
];

impl Shape {
    /// Rows of the word table.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The configuration as its Hugging Face repository has it.
    pub fn config(&self) -> Config {
        Config::parse(&self.config_json()).expect("the benchmark's own configuration is valid")
    }

    /// The text of its `config.json`.
    pub fn config_json(&self) -> String {
        let family = if self.deberta {
            r#""model_type":"deberta-v2","layer_norm_eps":1e-7,"relative_attention":true,"position_buckets":256,
               "norm_rel_ebd":"layer_norm","share_att_key":true,"pos_att_type":"p2c|c2p","max_relative_positions":-1,
               "position_biased_input":false,"type_vocab_size":0,"pooler_hidden_act":"gelu","pooler_dropout":0"#
        } else {
            r#""model_type":"bert","layer_norm_eps":1e-12,"type_vocab_size":2"#
        };
        let Self { layers, hidden, heads, intermediate, vocab, .. } = self;
        format!(
            r#"{{{family},"hidden_size":{hidden},"num_hidden_layers":{layers},"num_attention_heads":{heads},
               "intermediate_size":{intermediate},"vocab_size":{vocab},"max_position_embeddings":512,"pad_token_id":0}}"#
        )
    }

    /// Floating-point operations of forward and backward over rows of these lengths: the linear layers and the
    /// products of attention, with DeBERTa's two relative terms over the table rows in use. Elementwise passes, the
    /// optimizer and recomputed work don't count.
    pub fn step_flops(&self, lengths: &[u32]) -> f64 {
        let (h, wide) = (self.hidden as f64, self.intermediate as f64);
        let per_token = 2.0 * (4.0 * h * h + 2.0 * h * wide);
        let longest = f64::from(lengths.iter().copied().max().unwrap_or(0));
        let mut layer = 0.0;
        for &n in lengths {
            let n = f64::from(n);
            layer += n * per_token + 4.0 * n * n * h;
            if self.deberta {
                layer += 4.0 * n * (2.0 * n - 1.0) * h;
            }
        }
        if self.deberta {
            layer += 2.0 * (2.0 * longest - 1.0) * 2.0 * h * h;
        }
        3.0 * layer * self.layers as f64
    }
}
