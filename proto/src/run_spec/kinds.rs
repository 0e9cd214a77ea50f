//! The choices of a run file: each a closed list of names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Defines an enum whose variants are names of the run file.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vmeta])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// The names in the run file, in order of their declaration.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The name in the run file.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

choice! {
    /// Where the encoder's weights come from.
    Init {
        /// From the model's weight files.
        Pretrained = "pretrained",
        /// Drawn from the seed: training from scratch, only `config.json` and the tokenizer are read.
        Random = "random",
    }
}

choice! {
    /// Kind of answer.
    TaskType {
        /// One of several labels: softmax and cross-entropy.
        SingleLabel = "single_label",
        /// Any number of labels: a sigmoid per label.
        MultiLabel = "multi_label",
        /// One or several numbers: mean squared error.
        Regression = "regression",
    }
}

impl TaskType {
    /// The metric that chooses the best model unless the run file names one.
    pub const fn default_metric(self) -> &'static str {
        match self {
            Self::SingleLabel => "accuracy",
            Self::MultiLabel => "f1_macro",
            Self::Regression => "mse",
        }
    }
}

/// Metrics by which the best model of a task can be chosen; classification also has `f1_<label>`.
pub const fn metric_names(kind: TaskType) -> &'static [&'static str] {
    match kind {
        TaskType::SingleLabel => &["loss", "accuracy", "f1_macro", "f1_micro", "f1_weighted", "mcc"],
        TaskType::MultiLabel => &["loss", "subset_accuracy", "f1_macro", "f1_micro", "f1_weighted"],
        TaskType::Regression => &["loss", "mse", "rmse", "mae", "pearson", "spearman"],
    }
}

choice! {
    /// Whether compute threads are bound to CPUs.
    Pin {
        /// Where the threads fill the cores that the process may use.
        Auto = "auto",
        /// Wherever each thread has a CPU of its own.
        Always = "always",
        /// Nowhere.
        Never = "never",
    }
}

choice! {
    /// Whether a rank's memory is bound to the NUMA nodes of its CPUs, beside being touched there first.
    Membind {
        /// Preferably; a system that refuses is warned about once.
        Auto = "auto",
        /// Strictly; a system that refuses is an error.
        Require = "require",
        /// No.
        Off = "off",
    }
}

choice! {
    /// What backward computes again instead of finding it in memory (PyTorch: activation checkpointing).
    Recompute {
        /// Nothing.
        Never = "never",
        /// Each encoder layer, from its input.
        Layers = "layers",
    }
}

choice! {
    /// Where the numbers of the metrics log go besides.
    ReportTo {
        /// Nowhere.
        None = "none",
        /// To event files that TensorBoard reads.
        Tensorboard = "tensorboard",
    }
}

impl Default for ReportTo {
    /// Also that of run files of earlier versions, as agents and coordinators keep them.
    fn default() -> Self {
        Self::None
    }
}

choice! {
    /// Format of the data files.
    DataFormat {
        /// By the file's extension.
        Auto = "auto",
        /// Comma-separated values with a header line.
        Csv = "csv",
        /// Tab-separated values with a header line.
        Tsv = "tsv",
        /// One JSON object per line.
        Jsonl = "jsonl",
        /// Apache Parquet.
        Parquet = "parquet",
    }
}

choice! {
    /// What happens to a row with more than `max_length` tokens.
    OnLong {
        /// It is shortened by the rules `truncation` and `keep`.
        Truncate = "truncate",
        /// It is an error.
        Error = "error",
    }
}

choice! {
    /// Which text of a pair gives way when both do not fit.
    Truncation {
        /// The longer text until both are equally long, then both; a token left over goes to the longer text, and to
        /// the second if they were equally long.
        LongestFirst = "longest_first",
        /// The first text; the second is never shortened.
        OnlyFirst = "only_first",
        /// The second text; the first is never shortened.
        OnlySecond = "only_second",
    }
}

choice! {
    /// Which part of a shortened text is kept.
    Keep {
        /// Its beginning.
        Head = "head",
        /// Its end.
        Tail = "tail",
        /// Its beginning and its end, in equal parts; an odd token goes to the beginning.
        HeadTail = "head_tail",
    }
}

choice! {
    /// Course of the learning rate after the warm-up.
    Schedule {
        /// Falls in a line to 0 at the last step.
        Linear = "linear",
        /// Stays at its peak.
        Constant = "constant",
        /// Falls along half a cosine to 0 at the last step.
        Cosine = "cosine",
    }
}

choice! {
    /// Storage type of weights and activations; sums and the optimizer are f32 in any case.
    Precision {
        /// bf16 where the CPU multiplies it natively, f32 elsewhere.
        Auto = "auto",
        /// 32-bit floats.
        F32 = "f32",
        /// bfloat16, with f32 master weights.
        Bf16 = "bf16",
    }
}

choice! {
    /// What happens at a loss or gradient that is not finite.
    OnNonFinite {
        /// Training stops and names the step, the rows and the tensor.
        Stop = "stop",
        /// The step's update is left out and counted.
        Skip = "skip",
    }
}

/// When to evaluate: `"epoch"`, `"end"`, or a number of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvalEvery {
    /// At the end of every epoch, and at the end of training.
    Epoch,
    /// Only at the end of training.
    End,
    /// Every so many steps, and at the end of training.
    Steps(u64),
}

/// How many ranks a node runs: `"numa"`, `"package"`, or a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PerNode {
    /// One for each NUMA node.
    #[default]
    Numa,
    /// One for each package (socket).
    Package,
    /// So many.
    Ranks(u32),
}

/// One column or several.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Columns(pub Vec<String>);

impl Columns {
    /// The column names, at least one.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// The only column, if there is just one.
    pub fn single(&self) -> Option<&str> {
        match self.0.as_slice() {
            [one] => Some(one),
            _ => None,
        }
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}
