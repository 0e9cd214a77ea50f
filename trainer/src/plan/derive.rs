//! The derivation itself: decisions in the order in which they follow from each other.

use muster_kernels::DType;
use muster_proto::run_spec::Recompute;

use super::input::PlanInput;
use super::memory::{MemoryEstimate, Storage, estimate};
use super::recipe::published_peak_rate;
use super::steps::{Steps, steps};
use super::{micro_batch, precision, units};
use crate::topology::{CpuBudget, Pinning, cpu_budget, pinning};

/// A derived value and why it is this one.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Decision {
    /// What was decided.
    pub name: &'static str,
    /// The value, with its unit.
    pub value: String,
    /// Why.
    pub reason: String,
}

/// Everything a run derives before it reads weights.
#[derive(Debug, Clone, PartialEq)]
pub struct DerivedPlan {
    /// Compute threads and their CPUs.
    pub cpus: CpuBudget,
    /// Whether those threads are bound to those CPUs.
    pub pinning: Pinning,
    /// Storage type of weights and activations.
    pub dtype: DType,
    /// Tokens of the largest micro-batch.
    pub micro_batch_tokens: usize,
    /// Steps of the run.
    pub steps: Steps,
    /// Peak memory of a step.
    pub memory: MemoryEstimate,
    /// Bytes of the f32 gradients of a step.
    pub gradient_bytes: u64,
    /// Bytes that a step moves between memory and the CPU, at least.
    pub traffic_bytes: u64,
    /// Floating point operations of a step, on average.
    pub flops: f64,
    /// All values with their reasons, for people.
    pub decisions: Vec<Decision>,
    /// What will probably go wrong.
    pub warnings: Vec<String>,
    /// Why the run can't start, if it can't.
    pub refusal: Option<PlanError>,
}

/// Why a run can't start on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Its peak does not fit.
    #[error(
        "a training step needs {} of memory but only {} can be used: {usable_from}; the need is {parts}",
        units::bytes(*needed),
        units::bytes(*usable)
    )]
    Memory {
        /// Estimated peak in bytes.
        needed: u64,
        /// What the process can take, in bytes.
        usable: u64,
        /// What sets that bound.
        usable_from: String,
        /// The estimate, part by part.
        parts: String,
        /// What would help.
        suggestion: String,
    },
}

impl PlanError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Memory { suggestion, .. } => Some(suggestion.clone()),
        }
    }
}

impl DerivedPlan {
    /// Passes only a plan that can run.
    ///
    /// # Errors
    /// The refusal, with numbers and a suggestion.
    pub fn admit(&self) -> Result<(), PlanError> {
        self.refusal.clone().map_or(Ok(()), Err)
    }

    /// The storage type as the run file spells it.
    pub fn precision(&self) -> &'static str {
        dtype_name(self.dtype)
    }

    fn decide(&mut self, name: &'static str, value: String, reason: impl Into<String>) {
        self.decisions.push(Decision { name, value, reason: reason.into() });
    }
}

/// Derives the plan of a run.
pub fn derive(input: &PlanInput<'_>) -> DerivedPlan {
    let train = &input.spec.train;
    let cpus = cpu_budget(input.host, train.threads);
    let pinning = pinning(&cpus, train.pin);
    let precision = precision::choose(train.precision, input.cpu);
    let micro = micro_batch::choose(input, precision.dtype, cpus.threads);
    let storage = micro_batch::storage(input, precision.dtype, cpus.threads, micro.tokens);
    let mut plan = DerivedPlan {
        dtype: precision.dtype,
        micro_batch_tokens: micro.tokens,
        steps: steps(train, input.data.rows),
        memory: estimate(input.model, &storage),
        gradient_bytes: 4 * input.model.parameters,
        traffic_bytes: 0,
        flops: 0.0,
        decisions: Vec::new(),
        warnings: [cpus.warning.clone(), pinning.warning.clone(), precision.warning]
            .into_iter()
            .flatten()
            .collect(),
        refusal: None,
        cpus,
        pinning,
    };
    plan.decide("threads", plan.cpus.threads.to_string(), plan.cpus.reason.clone());
    plan.decide("pinning", plan.pinning.describe(), plan.pinning.reason.clone());
    plan.decide("precision", dtype_name(precision.dtype).into(), precision.reason);
    plan.decide("micro-batch", format!("{} tokens", micro.tokens), micro.reason);
    decide_steps(&mut plan, input);
    decide_rate(&mut plan, input);
    decide_cost(&mut plan, input);
    decide_memory(&mut plan, input);
    plan
}

fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::Bf16 => "bf16",
    }
}

fn decide_steps(plan: &mut DerivedPlan, input: &PlanInput<'_>) {
    let (train, data, steps) = (&input.spec.train, input.data, plan.steps);
    let rows =
        format!("{} rows, {:.1} tokens on average, longest {}", data.rows, data.mean_tokens(), data.longest);
    plan.decide("training data", format!("{} tokens", units::count(data.tokens)), rows);
    let batch = train.global_batch;
    plan.decide(
        "steps per epoch",
        steps.per_epoch.to_string(),
        format!("{} rows / global batch {batch}, rounded up", data.rows),
    );
    let why = match (train.max_steps, train.epochs) {
        (Some(_), _) => "train.max_steps".to_owned(),
        (None, epochs) => format!("{} epochs of {} steps", epochs.unwrap_or(0.0), steps.per_epoch),
    };
    plan.decide("steps", steps.total.to_string(), why);
    let why = match (train.warmup_steps, train.warmup_ratio) {
        (Some(_), _) => "train.warmup_steps".to_owned(),
        (None, ratio) => format!("{} of {} steps, rounded up", ratio.unwrap_or(0.0), steps.total),
    };
    plan.decide("warm-up", format!("{} steps", steps.warmup), why);
    if data.truncated > 0 {
        let share = 100.0 * data.truncated as f64 / data.rows.max(1) as f64;
        let length = input.spec.data.max_length;
        plan.warnings.push(format!(
            "{} rows ({share:.1} %) are longer than {length} tokens and truncated",
            data.truncated
        ));
    }
}

/// Case 28: a high rate or no warm-up lets a model collapse to the most frequent label.
fn decide_rate(plan: &mut DerivedPlan, input: &PlanInput<'_>) {
    let rate = input.spec.train.learning_rate;
    let init = input.spec.model.init;
    let (published, size) = published_peak_rate(input.model, init);
    let backbone = units::count(input.model.backbone());
    plan.decide(
        "learning rate",
        format!("{rate:e}"),
        format!("published rates of {size} go up to {published:e}; the backbone has {backbone}"),
    );
    if rate > published {
        plan.warnings.push(format!(
            "learning rate {rate:e} is above the published range of {size}, up to {published:e}: the model may \
             collapse to the most frequent label"
        ));
    }
    if plan.steps.warmup == 0 {
        plan.warnings.push(
            "there is no warm-up: the first steps run at the full learning rate and may destroy the model; set \
             train.warmup_ratio = 0.1"
                .into(),
        );
    }
}

fn decide_cost(plan: &mut DerivedPlan, input: &PlanInput<'_>) {
    let (model, data) = (input.model, input.data);
    let step_tokens =
        data.mean_tokens() * input.spec.train.global_batch.min(data.rows.max(1) as usize) as f64;
    let micro_batches = (step_tokens / plan.micro_batch_tokens as f64).ceil().max(1.0) as u64;
    let element = plan.dtype.bytes() as u64;
    // Forward and the input gradient read every weight of the backbone, the weight gradient is read and written.
    let passes = micro_batches * model.backbone() * (2 * element + 8);
    // AdamW reads gradient, weight and two moments and writes the last three, and the rounded copy where there is one.
    let rounded = if plan.dtype == DType::Bf16 { 2 } else { 0 };
    let update = model.parameters * (16 + 12 + rounded);
    plan.traffic_bytes = passes + update;
    // 2 FLOPs per parameter and token forward, 4 backward; attention adds 2 products each way of the mean row.
    let attention = 12.0 * model.layers as f64 * model.hidden as f64 * data.mean_tokens();
    plan.flops = step_tokens * (6.0 * model.backbone() as f64 + attention);
    let (tokens, flops) = (step_tokens.round(), plan.flops / 1e9);
    plan.decide(
        "micro-batches per step",
        micro_batches.to_string(),
        format!("{tokens} tokens in a mean step"),
    );
    plan.decide(
        "work per step",
        format!("{flops:.1} GFLOP"),
        "6 per backbone parameter and token, and attention",
    );
    plan.decide(
        "memory traffic per step",
        units::bytes(plan.traffic_bytes),
        format!("weights and gradients {}, optimizer {}", units::bytes(passes), units::bytes(update)),
    );
    plan.decide(
        "gradients per step",
        units::bytes(plan.gradient_bytes),
        format!("{} parameters in f32; one rank sends nothing", units::count(model.parameters)),
    );
}

/// Case 69: refuse before the kernel kills the process at its longest micro-batch.
fn decide_memory(plan: &mut DerivedPlan, input: &PlanInput<'_>) {
    let usable = input.host.memory.usable();
    let needed = plan.memory.total();
    let reason = format!("{}; {}", plan.memory.describe(), input.host.memory.describe());
    plan.decide("peak memory", units::bytes(needed), reason);
    if usable == 0 {
        plan.warnings.push("the kernel tells no memory size; the peak is not checked".into());
    } else if needed > usable {
        plan.refusal = Some(PlanError::Memory {
            needed,
            usable,
            usable_from: input.host.memory.describe(),
            parts: plan.memory.describe(),
            suggestion: suggestion(plan, input),
        });
    }
}

fn suggestion(plan: &DerivedPlan, input: &PlanInput<'_>) -> String {
    let (dtype, threads) = (plan.dtype, plan.cpus.threads);
    if let Some(tokens) = micro_batch::shrink(input, dtype, threads, plan.micro_batch_tokens) {
        return format!("train.micro_batch_tokens = {tokens} would fit, and so would \"auto\"");
    }
    let fits = |storage: &Storage| estimate(input.model, storage).total() <= input.host.memory.usable();
    let longest = micro_batch::storage(input, dtype, threads, input.data.longest.max(1));
    if fits(&Storage { recompute: Recompute::Layers, ..longest }) {
        return "train.recompute = \"layers\" would fit with train.micro_batch_tokens = \"auto\"".into();
    }
    let mut shorter = input.data.longest / 2;
    while shorter >= muster_proto::limits::MIN_SEQUENCE_TOKENS {
        let storage = micro_batch::storage(input, dtype, threads, shorter);
        if fits(&Storage { longest: shorter, ..storage }) {
            return format!(
                "data.max_length = {shorter} would fit with train.micro_batch_tokens = {shorter}"
            );
        }
        shorter /= 2;
    }
    format!(
        "weights, gradients and optimizer alone take {}: use a smaller model, or give the process at least {}",
        units::bytes(plan.memory.fixed()),
        units::bytes(plan.memory.total())
    )
}
