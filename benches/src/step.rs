//! Times whole training steps: forward, backward, clipping, AdamW.

use std::time::Instant;

use anyhow::Result;
use muster_kernels::pool::Pool;
use muster_kernels::{Element, peak, rng};
use muster_proto::Step;
use muster_trainer::batch::{MicroBatch, Targets};
use muster_trainer::engine::{Engine, Hyper, Update};
use muster_trainer::model::{Model, random_weights};
use serde::Serialize;

use crate::shapes::{BANKING77_LENGTHS, Shape};

/// Classes of banking77.
const CLASSES: usize = 77;

/// What was measured for one shape and one precision.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// Shape name.
    pub model: &'static str,
    /// `f32` or `bf16`.
    pub precision: &'static str,
    /// Compute threads.
    pub threads: usize,
    /// Rows of the global batch.
    pub rows: usize,
    /// Median seconds per step.
    pub step_s: f64,
    /// Every timed step, in seconds.
    pub samples_s: Vec<f64>,
    /// Rows per second.
    pub rows_per_s: f64,
    /// Real tokens per second; there are no others.
    pub tokens_per_s: f64,
    /// 1e9 operations per second of the counted work ([`Shape::step_flops`]).
    pub gflops: f64,
    /// `gflops` over the FMA peak measured just before, in percent.
    pub peak_percent: f64,
}

/// How to measure.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Compute threads.
    pub threads: usize,
    /// Rows of the global batch.
    pub rows: usize,
    /// Timed steps; one more goes first.
    pub steps: usize,
}

/// Runs `settings.steps` steps of `shape` on random rows of banking77's lengths.
pub fn measure<E: Element>(shape: &Shape, settings: Settings, precision: &'static str) -> Result<Measured> {
    let pool = Pool::new(settings.threads)?;
    let peak = peak::measure_fma_peak(&pool);
    let config = shape.config();
    let model = Model::new(config, CLASSES);
    let weights = random_weights(&pool, &model, 1);
    let hyper = Hyper { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    let mut engine = Engine::<E>::new(model, weights, hyper, 1, pool);
    let mut samples = Vec::new();
    let (mut tokens, mut flops) = (0usize, 0.0);
    for step in 0..=settings.steps {
        let batch = batch(&engine, settings.rows, step as u64);
        let start = Instant::now();
        engine.train(&batch, Step(step as u64), settings.rows);
        engine.apply(&Update { number: step as u64 + 1, learning_rate: 1e-5, max_grad_norm: Some(1.0) });
        // The first step allocates every buffer.
        if step > 0 {
            samples.push(start.elapsed().as_secs_f64());
            tokens += batch.tokens();
            flops += shape.step_flops(&lengths(&batch));
        }
    }
    let mut sorted = samples.clone();
    sorted.sort_by(f64::total_cmp);
    // Like the peer: mean work over the median time, which a busy moment of the machine doesn't move.
    let step_s = sorted[sorted.len() / 2];
    let per_s = |work: f64| work / samples.len() as f64 / step_s;
    let gflops = per_s(flops) / 1e9;
    Ok(Measured {
        model: shape.name,
        precision,
        threads: settings.threads,
        rows: settings.rows,
        step_s,
        rows_per_s: settings.rows as f64 / step_s,
        tokens_per_s: per_s(tokens as f64),
        samples_s: samples,
        gflops,
        peak_percent: 100.0 * gflops / peak,
    })
}

fn lengths(batch: &MicroBatch) -> Vec<u32> {
    batch.offsets.windows(2).map(|w| w[1] - w[0]).collect()
}

/// Rows of random tokens; lengths are drawn from the quantiles.
fn batch<E: Element>(engine: &Engine<E>, rows: usize, step: u64) -> MicroBatch {
    let key = rng::mix(7, step);
    let vocab = engine.model().config().vocab as u64;
    let mut batch = MicroBatch {
        ids: Vec::new(),
        type_ids: Vec::new(),
        positions: Vec::new(),
        offsets: vec![0],
        row_ids: (0..rows as u64).collect(),
        targets: Targets::Class(
            (0..rows as u64).map(|r| rng::below(key, r, CLASSES as u64) as u32).collect(),
        ),
    };
    for row in 0..rows as u64 {
        let quantile = rng::below(key, 1000 + row, BANKING77_LENGTHS.len() as u64);
        batch.positions.extend(0..BANKING77_LENGTHS[quantile as usize]);
        batch.offsets.push(batch.positions.len() as u32);
    }
    batch.ids = (0..batch.positions.len() as u64).map(|t| rng::below(key, 5000 + t, vocab) as u32).collect();
    batch.type_ids = vec![0; batch.ids.len()];
    batch
}
