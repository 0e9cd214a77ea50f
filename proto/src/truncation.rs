//! How a row that is longer than the limit is shortened: which text gives way, and which part of it is kept.

use serde::{Deserialize, Serialize};

/// Which text of a pair gives way when both do not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truncation {
    /// The longer text until both are equally long, then both; a token left over goes to the longer text, and to the
    /// second if they were equally long.
    #[default]
    LongestFirst,
    /// The first text; the second is never shortened.
    OnlyFirst,
    /// The second text; the first is never shortened.
    OnlySecond,
}

/// Which part of a shortened text is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Its beginning.
    #[default]
    Head,
    /// Its end.
    Tail,
    /// Its beginning and its end, in equal parts; an odd token goes to the beginning.
    HeadTail,
}
