//! The run file: what to train, on what, and how.
//!
//! [`RunSpec::load`] reads a TOML file of `version = 1`. Every problem of the file is found before anything else
//! is read, and all of them are reported together with line and column. The reference of all keys is
//! `docs/run-file.md`; the one table it is checked against is [`KEYS`].
//!
//! Nothing here looks at the data, the model or the machine.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use error::{Place, Problem, SpecError};
pub use kinds::{
    Columns, DataFormat, EvalEvery, Init, Keep, Membind, OnLong, OnNonFinite, PerNode, Pin, Precision,
    Recompute, ReportTo, Schedule, TaskType, Truncation, metric_names,
};
pub use schema::{KEYS, Key};

mod error;
mod kinds;
mod parse;
mod reader;
mod schema;
#[cfg(test)]
mod tests;
mod validate;

/// Version of the run file that is read and written.
pub const VERSION: u32 = 1;

/// Text between the labels of one multi-label column, unless another one is given.
pub const DEFAULT_LABEL_SEPARATOR: &str = "|";

/// One training run, as its run file describes it, with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// Version of the format; always [`VERSION`] after loading.
    pub version: u32,
    /// Name for logs and reports; default: the run file's name without its extension.
    pub name: String,
    /// Seed of every random stream; default 42.
    pub seed: u64,
    /// Directory of checkpoints, logs and the trained model; default `runs/<name>` beside the run file.
    pub output_dir: PathBuf,
    /// Which model to start from.
    pub model: ModelSpec,
    /// What the model should learn to answer.
    pub task: TaskSpec,
    /// Files, columns and how texts become token sequences.
    pub data: DataSpec,
    /// The optimizer and the length of the run.
    pub train: TrainSpec,
    /// When to evaluate, and by what to choose the best model.
    pub eval: EvalSpec,
    /// When to save, and how many checkpoints to keep.
    pub checkpoint: CheckpointSpec,
    /// How many ranks train, and where; it changes speed, never the result.
    #[serde(default)]
    pub ranks: RanksSpec,
}

/// `[model]`: which model to start from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Directory with `config.json`, weights and tokenizer, or a hub name such as `microsoft/deberta-v3-base`.
    pub path: String,
    /// Branch, tag or commit of a hub model; default: the hub's main branch.
    pub revision: Option<String>,
    /// Where the encoder's weights come from; default pretrained.
    pub init: Init,
    /// Probability of dropping a hidden element, 0 <= p < 1; default: the model's configuration.
    pub hidden_dropout: Option<f32>,
    /// Probability of dropping an attention weight, 0 <= p < 1; default: the model's configuration.
    pub attention_dropout: Option<f32>,
    /// Probability of dropping an input of the classifier, 0 <= p < 1; default: the model's configuration.
    pub classifier_dropout: Option<f32>,
}

/// `[task]`: what the model should learn to answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// Kind of answer, key `type`; required, never guessed from the number of labels.
    #[serde(rename = "type")]
    pub kind: TaskType,
    /// Labels in the order of the model's outputs; default: those of the training data, sorted.
    pub labels: Option<Vec<String>>,
    /// Probability from which a label of a multi-label task counts as given; default 0.5.
    pub threshold: f32,
}

/// `[data]`: files, columns and how texts become token sequences.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSpec {
    /// Training files, read in this order.
    pub train: Vec<PathBuf>,
    /// Evaluation files; excludes `eval_fraction`.
    pub eval: Option<Vec<PathBuf>>,
    /// Share of the training rows held out for evaluation, 0 < f < 1; excludes `eval`.
    pub eval_fraction: Option<f64>,
    /// Files for the final test of the best model.
    pub test: Option<Vec<PathBuf>>,
    /// File format; default auto: by the file's extension.
    pub format: DataFormat,
    /// Column of the text; default `text`.
    pub text: String,
    /// Column of the second text of a pair; default: single texts.
    pub text_pair: Option<String>,
    /// Column or columns of the label; default `label`.
    pub label: Columns,
    /// Text between labels of one multi-label column; default `|`, and only there.
    pub label_separator: Option<String>,
    /// Longest sequence in tokens, special tokens included; default 256.
    pub max_length: usize,
    /// Which text of a pair is shortened; default longest_first.
    pub truncation: Truncation,
    /// Which part of a shortened text is kept; default head.
    pub keep: Keep,
    /// What happens to rows over `max_length`; default truncate.
    pub on_long: OnLong,
    /// Directory of the token cache; default: `muster` in the user's cache directory.
    pub cache_dir: Option<PathBuf>,
}

/// `[train]`: the optimizer and the length of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainSpec {
    /// Passes over the training data; may be a fraction. Exactly one of this and `max_steps` is given.
    pub epochs: Option<f64>,
    /// Optimizer steps in all. Exactly one of this and `epochs` is given.
    pub max_steps: Option<u64>,
    /// Rows of one optimizer step, over all ranks; default 32.
    pub global_batch: usize,
    /// Tokens computed at once; default `"auto"` (`None`): from the caches and the memory limit.
    pub micro_batch_tokens: Option<usize>,
    /// Peak learning rate; default 2e-5.
    pub learning_rate: f64,
    /// Course of the learning rate after the warm-up; default linear (to 0 at the last step).
    pub schedule: Schedule,
    /// Steps over which the rate rises from 0 to its peak; excludes `warmup_ratio`.
    pub warmup_steps: Option<u64>,
    /// Share of all steps used for the warm-up; default 0.1 unless `warmup_steps` is given.
    pub warmup_ratio: Option<f64>,
    /// Decoupled weight decay of matrices and tables (not of biases and norms); default 0.01.
    pub weight_decay: f64,
    /// AdamW's decay rate of the first moment; default 0.9.
    pub beta1: f64,
    /// AdamW's decay rate of the second moment; default 0.999.
    pub beta2: f64,
    /// AdamW's term in the denominator; default 1e-8.
    pub epsilon: f64,
    /// Largest norm of the whole gradient; larger ones are scaled down. Default 1; `None` (0 in the file): off.
    pub max_grad_norm: Option<f64>,
    /// Storage type of weights and activations; default auto.
    pub precision: Precision,
    /// Compute threads; default `"auto"` (`None`): what the process may use.
    pub threads: Option<usize>,
    /// Whether each compute thread is bound to a CPU; default `auto`.
    pub pin: Pin,
    /// What backward computes again instead of keeping it; default never.
    pub recompute: Recompute,
    /// What happens at a loss or gradient that is not finite; default stop.
    pub on_non_finite: OnNonFinite,
    /// Steps between two lines of the metrics log; default 10.
    pub log_every_steps: u64,
    /// Where the numbers of the metrics log go besides; default none.
    #[serde(default)]
    pub report_to: ReportTo,
}

/// `[eval]`: when to evaluate, and by what to choose the best model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvalSpec {
    /// When to evaluate; default epoch.
    pub every: EvalEvery,
    /// Metric of the best model; default accuracy, f1_macro (multi-label) or mse (regression).
    pub metric: Option<String>,
    /// Evaluations without improvement after which training stops; default: never.
    pub early_stopping_patience: Option<u32>,
    /// Smallest change of the metric that counts as an improvement, in the metric's unit; default 0.
    pub early_stopping_min_delta: f64,
}

/// `[checkpoint]`: when to save, and how many checkpoints to keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointSpec {
    /// Steps between checkpoints; default (`None`): at every evaluation.
    pub every_steps: Option<u64>,
    /// Checkpoints kept beside the best one, at least 1; default 2.
    pub keep_last: usize,
}

/// `[ranks]`: how many ranks train under a coordinator, and where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RanksSpec {
    /// Ranks of each node; default numa.
    pub per_node: PerNode,
    /// How many nodes; default (`None`): all that are free when the run starts.
    pub nodes: Option<u32>,
    /// Fewest ranks that train; with fewer the run waits, then saves and goes back to the queue. Default 1.
    pub min: Option<u32>,
    /// Most ranks; default: those of the start. Nodes that come later are taken in up to this number.
    pub max: Option<u32>,
    /// Seconds that a rank may keep the others waiting before they give it up; default 60.
    pub patience_s: u32,
    /// Whether each rank's memory is bound to its NUMA nodes; default auto.
    #[serde(default = "membind_default")]
    pub membind: Membind,
}

fn membind_default() -> Membind {
    Membind::Auto
}

impl Default for RanksSpec {
    fn default() -> Self {
        Self {
            per_node: PerNode::default(),
            nodes: None,
            min: None,
            max: None,
            patience_s: PATIENCE_S,
            membind: Membind::Auto,
        }
    }
}

/// Seconds that a rank may keep the others waiting, where the run file does not say. A checkpoint of a large model on a
/// slow disk takes that long.
const PATIENCE_S: u32 = 60;

impl EvalSpec {
    /// The metric of the best model: the chosen one, or the default of the task.
    pub fn metric_or_default(&self, kind: TaskType) -> &str {
        self.metric.as_deref().unwrap_or(kind.default_metric())
    }
}
