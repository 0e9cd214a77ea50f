//! What a run must know to continue as if it had never stopped, besides its arenas.
//!
//! Every member is required: a file without one is refused by name, never filled with a default. Floats are
//! written as text so that they come back bit by bit.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::error::CheckpointError;
use crate::params::Layout;

/// Version of `state.json`.
pub const STATE_FORMAT: u32 = 1;

/// Scalar state of a run after `step` finished steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Version of this structure, [`STATE_FORMAT`].
    pub format: u32,
    /// Finished optimizer steps.
    pub step: u64,
    /// Epoch of the next step, from 0.
    pub epoch: u64,
    /// Rows consumed, counted over the global order of all epochs; the same for every number of ranks.
    pub cursor_rows: u64,
    /// Rows of a global batch, which must not change.
    pub global_batch: u64,
    /// Seed of all random streams.
    pub seed: u64,
    /// Best evaluation so far.
    #[serde(deserialize_with = "Option::deserialize")]
    pub best: Option<Best>,
    /// Evaluations in a row without improvement.
    pub evaluations_without_improvement: u32,
    /// Totals since the first step.
    pub totals: Totals,
    /// Results of all evaluations, oldest first.
    pub evaluations: Vec<Evaluation>,
    /// What must be the same when the run continues.
    pub fingerprints: Fingerprints,
}

/// The evaluation that decides which model is the best.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Name of the metric.
    pub metric: String,
    /// Its value.
    #[serde(with = "exact")]
    pub value: f64,
    /// Step after which it was measured; its checkpoint is never pruned.
    pub step: u64,
}

/// Sums since the first step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Rows trained on.
    pub rows: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Steps skipped because a gradient was not finite.
    pub skipped_steps: u64,
    /// Time spent training, in milliseconds.
    pub train_ms: u64,
}

/// Result of one evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// Step after which it ran.
    pub step: u64,
    /// Metrics by name.
    #[serde(with = "exact::map")]
    pub metrics: BTreeMap<String, f64>,
}

/// Hashes of what must not change between stop and start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprints {
    /// The parts of the run file that change results.
    #[serde(with = "hex")]
    pub run: u64,
    /// The training rows.
    #[serde(with = "hex")]
    pub data: u64,
    /// The tokenizer.
    #[serde(with = "hex")]
    pub tokenizer: u64,
    /// Label names in order.
    #[serde(with = "hex")]
    pub labels: u64,
    /// Names, shapes and places of the parameters; see [`layout_fingerprint`].
    #[serde(with = "hex")]
    pub layout: u64,
}

impl Fingerprints {
    /// Checks that a run may continue from a checkpoint with fingerprints `self`.
    ///
    /// # Errors
    /// [`CheckpointError::Changed`] naming the first difference.
    pub fn check(&self, now: &Self) -> Result<(), CheckpointError> {
        let pairs = [
            ("model", self.layout, now.layout),
            ("labels", self.labels, now.labels),
            ("tokenizer", self.tokenizer, now.tokenizer),
            ("data", self.data, now.data),
            ("run file", self.run, now.run),
        ];
        match pairs.into_iter().find(|(_, saved, now)| saved != now) {
            Some((what, saved, now)) => Err(CheckpointError::Changed { what, saved, now }),
            None => Ok(()),
        }
    }
}

/// Hashes names, shapes and ranges of a layout: equal only if arenas mean the same.
pub fn layout_fingerprint(layout: &Layout) -> u64 {
    let mut hash = Xxh3::new();
    for param in layout.params() {
        hash.update(format!("{} {:?} {:?}\n", param.name, param.shape, param.range).as_bytes());
    }
    hash.update(&layout.arena_len().to_le_bytes());
    hash.digest()
}

impl State {
    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("the state has text keys and finite numbers only")
    }

    pub(super) fn from_json(path: &Path, text: &[u8]) -> Result<Self, CheckpointError> {
        let members = |source| CheckpointError::Members { path: path.to_owned(), source };
        let value: Value = serde_json::from_slice(text).map_err(members)?;
        // The version first: another version may well have other members.
        if let Some(found) =
            value.get("format").and_then(Value::as_u64).filter(|&found| found != u64::from(STATE_FORMAT))
        {
            return Err(CheckpointError::Format { path: path.to_owned(), found, expected: STATE_FORMAT });
        }
        serde_json::from_value(value).map_err(members)
    }
}

/// Floats as text: exact on the way back, and NaN stays NaN.
mod exact {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &f64, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|_| D::Error::custom(format!("`{text}` is not a number")))
    }

    pub mod map {
        use std::collections::BTreeMap;

        use serde::{Deserialize, Deserializer, Serializer, de::Error};

        pub fn serialize<S: Serializer>(map: &BTreeMap<String, f64>, out: S) -> Result<S::Ok, S::Error> {
            out.collect_map(map.iter().map(|(name, value)| (name, value.to_string())))
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
            let texts = BTreeMap::<String, String>::deserialize(from)?;
            let parse = |(name, text): (String, String)| match text.parse() {
                Ok(value) => Ok((name, value)),
                Err(_) => Err(D::Error::custom(format!("`{name}`: `{text}` is not a number"))),
            };
            texts.into_iter().map(parse).collect()
        }
    }
}

/// 64-bit hashes as 16 hexadecimal digits.
pub(super) mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &u64, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&format_args!("{value:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16).map_err(|_| D::Error::custom(format!("`{text}` is not a hash")))
    }
}
