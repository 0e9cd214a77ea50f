//! The table of every key. Unknown keys are checked against it, and so is `docs/run-file.md`.

use crate::nearest;

/// One key of the run file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Name with its section: `train.learning_rate`; top-level keys have none.
    pub name: &'static str,
    /// What may be written.
    pub kind: &'static str,
    /// Value when the key is absent; `required` where there is none.
    pub default: &'static str,
}

const fn key(name: &'static str, kind: &'static str, default: &'static str) -> Key {
    Key { name, kind, default }
}

/// Names of the tables of a run file.
pub(super) const SECTIONS: &[&str] = &["model", "task", "data", "train", "eval", "checkpoint", "ranks"];

const DROPOUT: &str = "number, 0 <= p < 1";
const FILES: &str = "path or list of paths";

/// Every key, in the order of the documentation.
pub const KEYS: &[Key] = &[
    key("version", "1", "required"),
    key("name", "text", "the run file's name"),
    key("seed", "whole number", "42"),
    key("output_dir", "path", "runs/<name>"),
    key("model.path", "path or hub name", "required"),
    key("model.revision", "text", "the hub's main branch"),
    key("model.init", "pretrained | random", "pretrained"),
    key("model.hidden_dropout", DROPOUT, "the model's config.json"),
    key("model.attention_dropout", DROPOUT, "the model's config.json"),
    key("model.classifier_dropout", DROPOUT, "the model's config.json"),
    key("task.type", "single_label | multi_label | regression", "required"),
    key("task.labels", "list of texts", "labels of the training data, sorted"),
    key("task.threshold", "number, 0 < p < 1", "0.5"),
    key("data.train", FILES, "required"),
    key("data.eval", FILES, "none"),
    key("data.eval_fraction", "number, 0 < f < 1", "none"),
    key("data.test", FILES, "none"),
    key("data.format", "auto | csv | tsv | jsonl | parquet", "auto"),
    key("data.text", "column", "text"),
    key("data.text_pair", "column", "none"),
    key("data.label", "column or list of columns", "label"),
    key("data.label_separator", "text", "|"),
    key("data.max_length", "whole number, 5 to 32768", "256"),
    key("data.truncation", "longest_first | only_first | only_second", "longest_first"),
    key("data.keep", "head | tail | head_tail", "head"),
    key("data.on_long", "truncate | error", "truncate"),
    key("data.cache_dir", "path", "muster in the user's cache directory"),
    key("train.epochs", "number > 0", "one of epochs and max_steps is required"),
    key("train.max_steps", "whole number >= 1", "one of epochs and max_steps is required"),
    key("train.global_batch", "whole number >= 1", "32"),
    key("train.micro_batch_tokens", "auto or whole number >= 1", "auto"),
    key("train.learning_rate", "number > 0", "2e-5"),
    key("train.schedule", "linear | constant | cosine", "linear"),
    key("train.warmup_steps", "whole number", "none"),
    key("train.warmup_ratio", "number, 0 <= r < 1", "0.1"),
    key("train.weight_decay", "number >= 0", "0.01"),
    key("train.beta1", "number, 0 <= b < 1", "0.9"),
    key("train.beta2", "number, 0 <= b < 1", "0.999"),
    key("train.epsilon", "number > 0", "1e-8"),
    key("train.max_grad_norm", "number >= 0, 0 turns it off", "1.0"),
    key("train.precision", "auto | f32 | bf16", "auto"),
    key("train.threads", "auto or whole number >= 1", "auto"),
    key("train.pin", "auto | always | never", "auto"),
    key("train.recompute", "never | layers", "never"),
    key("train.on_non_finite", "stop | skip", "stop"),
    key("train.log_every_steps", "whole number >= 1", "10"),
    key("train.report_to", "none | tensorboard", "none"),
    key("eval.every", "epoch | end | whole number of steps", "epoch"),
    key("eval.metric", "metric", "accuracy, f1_macro or mse"),
    key("eval.early_stopping_patience", "whole number >= 1", "never stops early"),
    key("eval.early_stopping_min_delta", "number >= 0", "0"),
    key("checkpoint.every_steps", "whole number >= 1", "at every evaluation"),
    key("checkpoint.keep_last", "whole number >= 1", "2"),
    key("ranks.per_node", "numa | package | whole number >= 1", "numa"),
    key("ranks.nodes", "whole number >= 1", "all that are free at the start"),
    key("ranks.min", "whole number >= 1", "1"),
    key("ranks.max", "whole number >= 1", "those of the start"),
    key("ranks.patience_s", "whole number >= 1 (seconds)", "60"),
    key("ranks.membind", "auto | require | off", "auto"),
];

/// The entry of the table for a dotted name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|k| k.name == name)
}

/// The valid key that an unknown one was probably meant to be.
///
/// The same word in another section comes first, then the nearest spelling within a third of the length.
pub(super) fn nearest_key(unknown: &str) -> Option<&'static str> {
    let last = unknown.rsplit('.').next().unwrap_or(unknown);
    let same_word = KEYS.iter().find(|k| k.name.rsplit('.').next() == Some(last));
    if let Some(found) = same_word {
        return Some(found.name);
    }
    nearest(unknown, KEYS.iter().map(|k| k.name)).or_else(|| {
        nearest(last, KEYS.iter().filter_map(|k| k.name.rsplit('.').next())).and_then(by_last_word)
    })
}

fn by_last_word(word: &str) -> Option<&'static str> {
    KEYS.iter().map(|k| k.name).find(|name| name.rsplit('.').next() == Some(word))
}
