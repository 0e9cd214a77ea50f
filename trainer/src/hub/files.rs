//! Which files of a hub model Muster needs, and whether a folder has them.

use std::collections::BTreeSet;
use std::path::Path;

use crate::weights::{LOOKED_FOR, is_plain_name, read_index};

/// Name of the model's configuration.
pub(super) const CONFIG: &str = "config.json";
/// Any of these makes a tokenizer.
pub(super) const TOKENIZERS: [&str; 5] =
    ["tokenizer.json", "spm.model", "sentencepiece.bpe.model", "vocab.txt", "vocab.json"];
/// Small files that belong to a tokenizer, fetched when they exist.
const TOKENIZER_EXTRAS: [&str; 4] =
    ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"];
/// Weights of other frameworks, named when nothing else is there.
const FOREIGN: [&str; 4] = ["tf_model.h5", "rust_model.ot", "flax_model.msgpack", "model.onnx"];

/// Files to fetch, weights last: what has weights is complete.
pub(super) struct Wanted {
    /// Configuration and tokenizer.
    pub small: Vec<String>,
    /// The weight file or the index of its shards.
    pub weights: String,
}

/// What a model lacks.
pub(super) struct Lacking {
    pub what: &'static str,
    pub looked_for: Vec<&'static str>,
    pub foreign: Vec<String>,
}

/// Picks the files to fetch from the list of all files of a model.
pub(super) fn choose(available: &BTreeSet<String>) -> Result<Wanted, Lacking> {
    let has = |name: &&str| available.contains(*name);
    let lacking = |what, looked_for: &[&'static str], foreign| Lacking {
        what,
        looked_for: looked_for.to_vec(),
        foreign,
    };
    if !has(&CONFIG) {
        return Err(lacking("config.json", &[CONFIG], Vec::new()));
    }
    let tokenizer: Vec<&str> = TOKENIZERS.into_iter().filter(has).collect();
    if tokenizer.is_empty() {
        return Err(lacking("tokenizer", &TOKENIZERS, Vec::new()));
    }
    let Some(weights) = LOOKED_FOR.into_iter().find(has) else {
        let foreign = FOREIGN.into_iter().filter(has).map(str::to_owned).collect();
        return Err(lacking("weights", &LOOKED_FOR, foreign));
    };
    let extras = TOKENIZER_EXTRAS.into_iter().filter(has);
    let small = std::iter::once(CONFIG).chain(tokenizer).chain(extras).map(str::to_owned).collect();
    Ok(Wanted { small, weights: weights.to_owned() })
}

/// Names of the shards that an index lists; `None` if it can't be used.
pub(super) fn shards(index: &Path) -> Option<BTreeSet<String>> {
    let shards: BTreeSet<String> = read_index(index).ok()?.into_values().collect();
    shards.iter().all(|name| is_plain_name(name)).then_some(shards)
}

/// Tells whether a folder has a configuration, a tokenizer and all weights.
pub(super) fn is_complete(dir: &Path) -> bool {
    let has = |name: &str| dir.join(name).exists();
    let weights = LOOKED_FOR.into_iter().find(|name| has(name)).is_some_and(|name| {
        !name.ends_with(".index.json")
            || shards(&dir.join(name)).is_some_and(|shards| shards.iter().all(|shard| has(shard)))
    });
    has(CONFIG) && TOKENIZERS.into_iter().any(has) && weights
}
