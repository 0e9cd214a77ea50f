//! Which files of a hub model Muster needs, and whether a folder has them.

use std::collections::BTreeSet;
use std::path::Path;

use crate::export::CONFIG;
use crate::tokenizer::files::{COMPANIONS, vocabularies};
use crate::weights::{FOREIGN, LOOKED_FOR, is_plain_name, read_index};

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
    let lacking = |what, looked_for, foreign| Lacking { what, looked_for, foreign };
    if !has(&CONFIG) {
        return Err(lacking(CONFIG, vec![CONFIG], Vec::new()));
    }
    let tokenizer: Vec<&str> = vocabularies().filter(has).collect();
    if tokenizer.is_empty() {
        return Err(lacking("tokenizer", vocabularies().collect(), Vec::new()));
    }
    let Some(weights) = LOOKED_FOR.into_iter().find(has) else {
        let foreign = FOREIGN.into_iter().filter(has).map(str::to_owned).collect();
        return Err(lacking("weights", LOOKED_FOR.to_vec(), foreign));
    };
    let extras = COMPANIONS.into_iter().filter(has);
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
    has(CONFIG) && vocabularies().any(has) && weights
}
