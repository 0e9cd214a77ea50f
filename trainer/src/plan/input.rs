//! What a plan is made from.

use muster_proto::run_spec::RunSpec;

use crate::topology::HostFacts;

/// Everything a plan depends on.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// The run file.
    pub spec: &'a RunSpec,
    /// The model.
    pub model: &'a ModelDims,
    /// The training data.
    pub data: &'a DatasetStats,
    /// The machine.
    pub host: &'a HostFacts,
    /// Its instructions.
    pub cpu: &'a CpuFacts,
}

/// Sizes of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelDims {
    /// Family, such as `deberta-v2`.
    pub architecture: String,
    /// Columns of hidden states.
    pub hidden: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Attention heads.
    pub heads: usize,
    /// Columns of the feed-forward.
    pub intermediate: usize,
    /// Rows of the relative position table (2 * span); 0 without relative attention.
    pub relative_rows: usize,
    /// Width of the convolution beside the first layer, in tokens; 0 without one.
    pub conv_kernel: usize,
    /// Longest row in tokens; `None` where positions are only relative.
    pub max_row: Option<usize>,
    /// Columns of the output: labels or regression targets.
    pub outputs: usize,
    /// All trainable numbers.
    pub parameters: u64,
    /// Those in word, position and token-type tables.
    pub embedding_parameters: u64,
}

impl ModelDims {
    /// Parameters that are multiplied with every token.
    pub fn backbone(&self) -> u64 {
        self.parameters.saturating_sub(self.embedding_parameters)
    }
}

/// What is known of the training data after tokenizing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DatasetStats {
    /// Training rows.
    pub rows: u64,
    /// Their tokens, after truncation.
    pub tokens: u64,
    /// Tokens of the longest row, after truncation.
    pub longest: usize,
    /// Tokens of the largest global batch of the run; no micro-batch needs to be larger.
    pub largest_step: usize,
    /// Rows that were truncated.
    pub truncated: u64,
    /// Evaluation rows.
    pub eval_rows: u64,
}

impl DatasetStats {
    /// Mean tokens of a row.
    pub fn mean_tokens(&self) -> f64 {
        self.tokens as f64 / self.rows.max(1) as f64
    }
}

/// The instruction sets that matter for the choice of precision, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuFacts {
    /// The strongest that the CPU has.
    pub best: String,
    /// The one whose kernels run.
    pub kernels: String,
    /// Whether those kernels multiply bf16 only by widening it to f32.
    pub bf16_is_emulated: bool,
}
