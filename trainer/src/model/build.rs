//! Lays out a model's parameters under their Hugging Face names, in forward order.

use std::sync::Arc;

use super::config::{Architecture, Config};
use super::{ConvLayer, Embeddings, Head, Layer, Model, RelativeTable};
use crate::params::{LayerNorm, Layout, Linear, ParamId, ParamKind, Table};

/// Names that differ between families.
struct Names {
    base: &'static str,
    query: &'static str,
    key: &'static str,
    value: &'static str,
    head_dense: &'static str,
    head_out: &'static str,
}

fn names(architecture: Architecture) -> Names {
    let bert = Names {
        base: "bert",
        query: "query",
        key: "key",
        value: "value",
        head_dense: "bert.pooler.dense",
        head_out: "classifier",
    };
    match architecture {
        Architecture::Bert => bert,
        Architecture::Roberta | Architecture::XlmRoberta => {
            Names { base: "roberta", head_dense: "classifier.dense", head_out: "classifier.out_proj", ..bert }
        }
        Architecture::DebertaV2 => Names {
            base: "deberta",
            query: "query_proj",
            key: "key_proj",
            value: "value_proj",
            head_dense: "pooler.dense",
            head_out: "classifier",
        },
    }
}

/// Adds parameters to a layout; `head` marks what a pretrained encoder may lack.
struct Builder<'c> {
    config: &'c Config,
    layout: Layout,
    head: bool,
}

impl Builder<'_> {
    fn push(&mut self, name: String, shape: &[usize], kind: ParamKind) -> ParamId {
        self.layout.push(name, shape, kind, self.head)
    }

    fn table(&mut self, name: String, rows: usize, cols: usize) -> Table {
        let id = self.push(format!("{name}.weight"), &[rows, cols], ParamKind::Embedding);
        Table { range: self.layout.get(id).range.clone(), rows, cols }
    }

    fn linear(&mut self, name: &str, inputs: usize, outputs: usize) -> Linear {
        self.stacked(&[name.to_owned()], inputs, outputs)
    }

    /// Layers of the same input that read as one: their weights lie end to end, then their biases.
    fn stacked(&mut self, names: &[String], inputs: usize, outputs: usize) -> Linear {
        let mut all = |suffix: &str, shape: &[usize], kind| {
            let ids: Vec<ParamId> = names
                .iter()
                .enumerate()
                .map(|(i, name)| {
                    let name = format!("{name}.{suffix}");
                    match i {
                        0 => self.layout.push(name, shape, kind, self.head),
                        _ => self.layout.push_adjacent(name, shape, kind, self.head),
                    }
                })
                .collect();
            self.layout.span(ids[0], ids[ids.len() - 1])
        };
        let weight = all("weight", &[outputs, inputs], ParamKind::Matrix);
        let bias = Some(all("bias", &[outputs], ParamKind::Bias));
        Linear { weight, bias, inputs, outputs: outputs * names.len() }
    }

    fn norm(&mut self, name: &str) -> LayerNorm {
        let gain = self.push(format!("{name}.weight"), &[self.config.hidden], ParamKind::Gain);
        let shift = self.push(format!("{name}.bias"), &[self.config.hidden], ParamKind::Bias);
        LayerNorm {
            gain: self.layout.get(gain).range.clone(),
            shift: self.layout.get(shift).range.clone(),
            eps: self.config.eps,
        }
    }

    fn embeddings(&mut self, base: &str) -> Embeddings {
        let c = self.config;
        let word = self.table(format!("{base}.embeddings.word_embeddings"), c.vocab, c.embedding);
        let position = c.absolute_positions.then(|| {
            self.table(format!("{base}.embeddings.position_embeddings"), c.max_positions, c.embedding)
        });
        let token_type = (c.token_types > 0).then(|| {
            self.table(format!("{base}.embeddings.token_type_embeddings"), c.token_types, c.embedding)
        });
        let project = (c.embedding != c.hidden).then(|| {
            let name = format!("{base}.embeddings.embed_proj.weight");
            let id = self.push(name, &[c.hidden, c.embedding], ParamKind::Matrix);
            let weight = self.layout.get(id).range.clone();
            Linear { weight, bias: None, inputs: c.embedding, outputs: c.hidden }
        });
        let norm = self.norm(&format!("{base}.embeddings.LayerNorm"));
        Embeddings { word, position, token_type, project, norm }
    }

    fn relative(&mut self, base: &str) -> Option<RelativeTable> {
        let relative = self.config.relative.clone()?;
        let rows = 2 * relative.buckets.span;
        let table = self.table(format!("{base}.encoder.rel_embeddings"), rows, self.config.hidden);
        let norm = relative.normed.then(|| self.norm(&format!("{base}.encoder.LayerNorm")));
        Some(RelativeTable { table, norm, buckets: relative.buckets })
    }

    fn layer(&mut self, prefix: &str, names: &Names) -> Layer {
        let (h, wide) = (self.config.hidden, self.config.intermediate);
        let attention = format!("{prefix}.attention.self");
        let parts = [names.query, names.key, names.value].map(|part| format!("{attention}.{part}"));
        let qkv = self.stacked(&parts, h, h);
        let (position_key, position_query) = match self.config.relative.clone() {
            None => (None, None),
            Some(relative) => {
                let mut project = |wanted: bool, row: usize, name: &str| {
                    wanted.then(|| match relative.shares_projections {
                        true => qkv.rows(row, h),
                        false => self.linear(&format!("{attention}.{name}"), h, h),
                    })
                };
                let key = project(relative.content_to_position, h, "pos_key_proj");
                (key, project(relative.position_to_content, 0, "pos_query_proj"))
            }
        };
        Layer {
            qkv,
            position_key,
            position_query,
            attention_out: self.linear(&format!("{prefix}.attention.output.dense"), h, h),
            attention_norm: self.norm(&format!("{prefix}.attention.output.LayerNorm")),
            up: self.linear(&format!("{prefix}.intermediate.dense"), h, wide),
            down: self.linear(&format!("{prefix}.output.dense"), wide, h),
            output_norm: self.norm(&format!("{prefix}.output.LayerNorm")),
        }
    }

    fn conv(&mut self, base: &str) -> Option<ConvLayer> {
        let conv = self.config.conv?;
        let h = self.config.hidden;
        let name = format!("{base}.encoder.conv.conv");
        let weight = self.push(format!("{name}.weight"), &[h, h, conv.kernel], ParamKind::Conv);
        let bias = self.push(format!("{name}.bias"), &[h], ParamKind::Bias);
        let linear = Linear {
            weight: self.layout.get(weight).range.clone(),
            bias: Some(self.layout.get(bias).range.clone()),
            inputs: h * conv.kernel,
            outputs: h,
        };
        let norm = self.norm(&format!("{base}.encoder.conv.LayerNorm"));
        Some(ConvLayer { linear, kernel: conv.kernel, norm })
    }
}

/// Lays out every parameter of `config` and a head of `outputs` columns.
pub(super) fn build(config: Config, outputs: usize) -> Model {
    let names = names(config.architecture);
    let mut b = Builder { config: &config, layout: Layout::default(), head: false };
    let embeddings = b.embeddings(names.base);
    let relative = b.relative(names.base);
    let mut layers = Vec::with_capacity(config.layers);
    let mut conv = None;
    for i in 0..config.layers {
        layers.push(b.layer(&format!("{}.encoder.layer.{i}", names.base), &names));
        if i == 0 {
            conv = b.conv(names.base);
        }
    }
    b.head = true;
    let dense = b.linear(names.head_dense, config.hidden, config.hidden);
    let out = b.linear(names.head_out, config.hidden, outputs);
    let layout = Arc::new(b.layout);
    Model { config, layout, embeddings, relative, layers, conv, head: Head { dense, out } }
}
