//! Peak memory of a training step, as a function of sizes alone.
//!
//! The terms follow what the tape keeps for backward: per layer and token the fused query-key-value (3H), the
//! attention output (H), both LayerNorm inputs and outputs (4H) and the feed-forward before and after its
//! activation (2I); with recomputation the output of each layer (H) and one layer whole. Attention probabilities are
//! never stored. Buffers are as large as the largest micro-batch needs and are reused where the columns agree
//! (`tape/buffer.rs`), so the sum of the terms is what is resident.

use muster_kernels::DType;
use muster_proto::run_spec::Recompute;

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
    /// What backward computes again.
    pub recompute: Recompute,
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
const PROCESS_BYTES: u64 = 70 << 20;
/// Stack, packing buffers and attention tiles of a thread, in bytes.
const THREAD_BYTES: u64 = 8 << 20;

impl MemoryEstimate {
    /// Sum of all parts, in bytes.
    pub fn total(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// What stays whatever the micro-batch: everything but activations and logits.
    pub fn fixed(&self) -> u64 {
        let varying = ["activations", "backward", "packed operands", "logits"];
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
    // Gradients of the last layer, when nothing is free yet: of its output, of the residual beside it, and of query, key
    // and value. Those of the relative table are summed in f32 before they are rounded.
    let backward = tokens * 5 * hidden * element + slots(model, storage) * hidden * (2 * 4 + 4 * element);
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
        ],
    }
}

/// Rows of the relative table that distances up to the longest row can use.
fn slots(model: &ModelDims, storage: &Storage) -> u64 {
    (2 * storage.longest as u64).min(model.relative_rows as u64)
}

fn saved_bytes(model: &ModelDims, storage: &Storage) -> u64 {
    let element = storage.dtype.bytes() as u64;
    let (tokens, hidden, wide) = (storage.tokens as u64, model.hidden as u64, model.intermediate as u64);
    let layers = model.layers as u64;
    // Row maxima of attention and statistics of two LayerNorms are f32.
    let per_token = (8 * hidden + 2 * wide) * element + 4 * model.heads as u64 + 16;
    // The slots in use, dropped out and projected twice.
    let layer = tokens * per_token + slots(model, storage) * 3 * hidden * element;
    let encoder = match storage.recompute {
        Recompute::Never => layers * layer,
        Recompute::Layers => layers * tokens * hidden * element + layer,
    };
    // Before and after their LayerNorms.
    let embedded = (tokens + slots(model, storage)) * 2 * hidden * element;
    let conv = match model.conv_kernel as u64 {
        0 => 0,
        kernel => tokens * (kernel + 4) * hidden * element,
    };
    encoder + embedded + conv
}
