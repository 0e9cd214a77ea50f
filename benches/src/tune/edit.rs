//! Writes a choice into a run file, whose comments and order stay.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;
use toml_edit::{DocumentMut, value};

use crate::scaling::table;

/// Settings of a run that change its speed and not its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Ranks of a node.
    pub ranks: usize,
    /// `train.micro_batch_tokens`.
    pub micro_batch_tokens: usize,
    /// `train.threads`; none: `auto`.
    pub threads: Option<usize>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = if self.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", self.ranks) };
        write!(f, "{ranks}, micro-batches of {} tokens, ", self.micro_batch_tokens)?;
        match self.threads {
            Some(threads) => write!(f, "{threads} threads"),
            None => f.write_str("threads auto"),
        }
    }
}

/// The run file with the choice in it.
///
/// # Errors
/// A text that is no TOML, or has something else than tables where tables belong.
pub fn tuned(text: &str, choice: &Choice, samples_per_s: f64) -> Result<String> {
    let mut document: DocumentMut = text.parse().context("it is no TOML")?;
    let train = table(&mut document, "train")?;
    train["micro_batch_tokens"] = value(choice.micro_batch_tokens as i64);
    if let Some(item) = train.get_mut("micro_batch_tokens").and_then(|item| item.as_value_mut()) {
        item.decor_mut().set_suffix(format!(" # muster tune: {samples_per_s:.1} samples/s"));
    }
    if let Some(threads) = choice.threads {
        train["threads"] = value(threads as i64);
    }
    table(&mut document, "ranks")?["per_node"] = value(choice.ranks as i64);
    Ok(document.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_proto::RunSpec;
    use std::path::Path;

    #[test]
    fn comments_stay_and_the_result_is_a_run_file() {
        let text = "# headlines\nversion = 1\n[model]\npath = \"m\" # small\n[task]\ntype = \"single_label\"\n[data]\ntrain = \"t.csv\"\n\
            [train] # how\nepochs = 2\nmicro_batch_tokens = \"auto\" # planned\n";
        let choice = Choice { ranks: 2, micro_batch_tokens: 256, threads: Some(3) };
        let edited = tuned(text, &choice, 51.25).expect("edited");
        assert!(
            edited.starts_with("# headlines\n")
                && edited.contains("# small")
                && edited.contains("[train] # how"),
            "{edited}"
        );
        let spec = RunSpec::parse(&edited, Path::new("tuned.toml")).expect("a run file");
        assert_eq!((spec.train.micro_batch_tokens, spec.train.threads), (Some(256), Some(3)));
        assert!(edited.contains("per_node = 2") && edited.contains("51.2 samples/s"), "{edited}");
        assert!(tuned("train = 5", &choice, 1.0).is_err());
    }
}
