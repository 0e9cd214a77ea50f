//! Peak memory of a training step, as a function of sizes alone.
//!
//! The terms follow what the tape keeps for backward: per layer and token the fused query-key-value (3H), the
//! attention output (H), both LayerNorm inputs and outputs (4H) and the feed-forward before and after its
//! activation (2I). Attention probabilities are never stored.

use muster_kernels::DType;

use super::{ModelDims, units};

/// How weights are stored and how much is computed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storage {
    /// Storage type of weights and activations.
    pub dtype: DType,
    /// Tokens of the largest micro-batch.
    pub tokens: usize,
    /// Tokens of the longest row.
    pub longest: usize,
    /// Most rows of a micro-batch.
    pub rows: usize,
    /// Compute threads.
    pub threads: usize,
    /// Bytes of an element of a packed operand: 2 where bf16 is multiplied as it is, else 4.
    pub packed_bytes: usize,
}

/// One use of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The peak of a step, part by part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// The parts, in order of their life.
    pub parts: Vec<Part>,
}

/// The program itself, tokenizer and loader included, in bytes.
const PROCESS_BYTES: u64 = 96 << 20;
/// Stack, packing buffers and attention tiles of a thread, in bytes.
const THREAD_BYTES: u64 = 8 << 20;
/// Share of the activations that size classes and recycled buffers of other lengths add, in percent.
const SLACK_PERCENT: u64 = 30;

impl MemoryEstimate {
    /// Sum of all parts, in bytes.
    pub fn total(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// What stays whatever the micro-batch: everything but activations, logits and slack.
    pub fn fixed(&self) -> u64 {
        let varying = ["activations", "backward", "packed operands", "logits", "slack"];
        self.parts.iter().filter(|part| !varying.contains(&part.name)).map(|part| part.bytes).sum()
    }

    /// All parts in words, largest first.
    pub fn describe(&self) -> String {
        let mut parts: Vec<&Part> = self.parts.iter().filter(|part| part.bytes > 0).collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let words: Vec<String> =
            parts.iter().map(|p| format!("{} {}", p.name, units::bytes(p.bytes))).collect();
        words.join(", ")
    }
}

/// Estimates the peak of a training step.
pub fn estimate(model: &ModelDims, storage: &Storage) -> MemoryEstimate {
    let parameters = model.parameters;
    let element = storage.dtype.bytes() as u64;
    let (tokens, rows) = (storage.tokens as u64, storage.rows as u64);
    let (hidden, wide) = (model.hidden as u64, model.intermediate as u64);
    let master = match storage.dtype {
        DType::F32 => 0,
        DType::Bf16 => 4 * parameters,
    };
    let saved = saved_bytes(model, storage);
    // Gradients of the widest place, the feed-forward, beside those that wait for the residual.
    let backward = tokens * (2 * wide + 4 * hidden) * element;
    // Operands of the largest product, packed: activations or their gradients, and a weight or again activations.
    let widest = wide.max(3 * hidden);
    let packed = storage.packed_bytes as u64 * (tokens * widest + (hidden * widest).max(tokens * widest));
    let part = |name, bytes| Part { name, bytes };
    MemoryEstimate {
        parts: vec![
            part("process", PROCESS_BYTES + THREAD_BYTES * storage.threads as u64),
            part("weights", element * parameters),
            part("master weights", master),
            part("moments", 8 * parameters),
            part("gradients", 4 * parameters),
            part("activations", saved),
            part("backward", backward),
            part("packed operands", packed),
            part("logits", 2 * 4 * rows * model.outputs as u64),
            part("slack", (saved + backward) * SLACK_PERCENT / 100),
        ],
    }
}

fn saved_bytes(model: &ModelDims, storage: &Storage) -> u64 {
    let element = storage.dtype.bytes() as u64;
    let (tokens, hidden, wide) = (storage.tokens as u64, model.hidden as u64, model.intermediate as u64);
    let heads = model.heads as u64;
    // Row maxima of attention and statistics of two LayerNorms are f32.
    let per_token = (8 * hidden + 2 * wide) * element + 4 * heads + 16;
    // Rows of the relative table that distances up to the longest row can use, dropped out and projected twice.
    let active = (2 * storage.longest as u64).min(model.relative_rows as u64);
    let relative = active * 3 * hidden * element;
    let embedded = tokens * 2 * hidden * element;
    let conv = match model.conv_kernel as u64 {
        0 => 0,
        kernel => tokens * (kernel + 4) * hidden * element,
    };
    model.layers as u64 * (tokens * per_token + relative) + embedded + conv
}
