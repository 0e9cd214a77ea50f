//! Random weights, each a pure function of (seed, parameter name, element).

use muster_kernels::{Pool, memory, rng};

use super::Model;
use crate::params::{Param, ParamKind};

/// Numbers that one task draws; some 30 ns each.
const DRAWN: usize = 4096;

impl Model {
    /// Fills one parameter as Hugging Face initialises it: normal matrices and tables, zero biases and padding row,
    /// unit gains. The same seed gives the same numbers whatever else the model holds.
    fn init_param(&self, pool: &Pool, seed: u64, param: &Param, values: &mut [f32]) {
        match param.kind {
            ParamKind::Bias => values.fill(0.0),
            ParamKind::Gain => values.fill(1.0),
            ParamKind::Matrix | ParamKind::Embedding | ParamKind::Conv => {
                let key = rng::mix(seed, name_key(&param.name));
                let parts = values.chunks_mut(DRAWN).zip((0..).step_by(DRAWN));
                pool.each(parts, |(values, first)| {
                    for (value, i) in values.iter_mut().zip(first..) {
                        *value = rng::normal(key, i) * self.config.init_std;
                    }
                });
                if param.range == self.embeddings.word.range {
                    let cols = self.config.embedding;
                    values[self.config.pad_id * cols..][..cols].fill(0.0);
                }
            }
        }
    }
}

/// Weights for training from scratch, in arena order.
pub fn random_weights(pool: &Pool, model: &Model, seed: u64) -> Vec<f32> {
    drawn(pool, model, seed, |_| true)
}

/// A new head over an empty encoder, in arena order, for pretrained weights to be read into. The head is that of
/// [`random_weights`]; drawing the encoder too, only to overwrite it, would take many seconds for a large model.
pub fn random_head(pool: &Pool, model: &Model, seed: u64) -> Vec<f32> {
    drawn(pool, model, seed, |param| param.head)
}

fn drawn(pool: &Pool, model: &Model, seed: u64, wanted: impl Fn(&Param) -> bool) -> Vec<f32> {
    let mut weights = memory::zeroed(model.layout.arena_len());
    for param in model.layout.params().iter().filter(|param| wanted(param)) {
        model.init_param(pool, seed, param, &mut weights[param.range.clone()]);
    }
    weights
}

fn name_key(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}
