//! How many tokens are computed at once.
//!
//! The size changes speed and memory, never the result. Weights are streamed from memory once per micro-batch, so
//! it should not be small; the widest activation should stay in the last-level cache, so it should not be large.

use muster_kernels::DType;

use super::PlanInput;
use super::memory::{Storage, estimate};

/// Below this many tokens streaming the weights dominates.
const LEAST: usize = 512;
/// Above this many nothing is gained on any cache.
const MOST: usize = 8_192;
/// Sizes are multiples of this many tokens.
const STEP: usize = 64;
/// Assumed where the kernel doesn't tell the last-level cache, in bytes.
const ASSUMED_CACHE_BYTES: u64 = 16 << 20;

/// No CPU has more level 3 cache per core; virtual machines show all of the host's, which others use too.
const MOST_CACHE_BYTES_PER_CPU: u64 = 16 << 20;

/// A micro-batch size and its reason.
pub(super) struct MicroBatch {
    pub(super) tokens: usize,
    pub(super) reason: String,
}

/// The size that the run file gives, or the one that cache and memory allow.
pub(super) fn choose(input: &PlanInput<'_>, dtype: DType, threads: usize) -> MicroBatch {
    let longest = input.data.longest.max(1);
    if let Some(tokens) = input.spec.train.micro_batch_tokens {
        let reason = match tokens < longest {
            true => format!("train.micro_batch_tokens is {tokens}; the longest row is computed alone"),
            false => "train.micro_batch_tokens".into(),
        };
        return MicroBatch { tokens: tokens.max(longest), reason };
    }
    let (cache, from) = match (input.host.l3, input.host.l2_bytes) {
        (Some((bytes, cpus)), _) => (bytes.min(MOST_CACHE_BYTES_PER_CPU * cpus as u64), "of level 3 cache"),
        (None, Some(bytes)) => (bytes, "of level 2 cache"),
        (None, None) => (ASSUMED_CACHE_BYTES, "of assumed cache"),
    };
    let row_bytes = input.model.intermediate.max(3 * input.model.hidden) * dtype.bytes();
    let by_cache = (cache as usize / row_bytes.max(1)).clamp(LEAST, MOST);
    let mib = cache as f64 / f64::from(1 << 20);
    let mut chosen = MicroBatch {
        tokens: round_down(by_cache),
        reason: format!(
            "the widest activation ({row_bytes} B a token) fits the {mib:.0} MiB {from}, {LEAST} to {MOST} tokens"
        ),
    };
    let step_tokens = input.data.largest_step;
    if step_tokens < chosen.tokens {
        chosen.tokens = step_tokens;
        chosen.reason =
            format!("the whole global batch at once: the largest of this run has {step_tokens} tokens");
    }
    if chosen.tokens < longest {
        chosen.tokens = longest;
        chosen.reason = "the longest row; rows are never split".into();
    }
    if let Some(tokens) = shrink(input, dtype, threads, chosen.tokens) {
        chosen.reason =
            format!("memory: {} tokens would be best for the cache but do not fit", chosen.tokens);
        chosen.tokens = tokens;
    }
    chosen
}

/// The largest smaller size that fits the usable memory; `None` if the size fits or nothing would.
pub(super) fn shrink(input: &PlanInput<'_>, dtype: DType, threads: usize, tokens: usize) -> Option<usize> {
    let usable = input.host.memory.usable();
    let fits = |tokens: usize| {
        let storage = storage(input, dtype, threads, tokens);
        estimate(input.model, &storage).total() <= usable
    };
    let least = input.data.longest.max(1);
    if usable == 0 || fits(tokens) || !fits(least) {
        return None;
    }
    // The estimate grows with the tokens, so the border can be found by halving, in steps.
    let (mut fitting, mut failing) = (least / STEP, tokens.div_ceil(STEP));
    while failing - fitting > 1 {
        let middle = fitting + (failing - fitting) / 2;
        match fits(middle * STEP) {
            true => fitting = middle,
            false => failing = middle,
        }
    }
    Some((fitting * STEP).max(least))
}

/// How a micro-batch of so many tokens is stored.
pub(super) fn storage(input: &PlanInput<'_>, dtype: DType, threads: usize, tokens: usize) -> Storage {
    let rows = input.spec.train.global_batch.min(tokens);
    let packed_bytes = if dtype == DType::Bf16 && !input.cpu.bf16_is_emulated { 2 } else { 4 };
    let recompute = input.spec.train.recompute;
    Storage { dtype, tokens, longest: input.data.longest, rows, threads, packed_bytes, recompute }
}

fn round_down(tokens: usize) -> usize {
    if tokens < STEP { tokens } else { tokens / STEP * STEP }
}
