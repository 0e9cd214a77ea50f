//! Times whole training steps: forward, backward, clipping, AdamW.

use std::time::Instant;

use anyhow::{Result, ensure};
use half::bf16;
use muster_kernels::pool::Pool;
use muster_kernels::{Element, peak, rng};
use muster_proto::Step;
use muster_trainer::batch::{MicroBatch, Targets};
use muster_trainer::engine::{Engine, Hyper, Update};
use muster_trainer::model::{Model, random_weights};

use crate::schema::{Better, Metric, Point};
use crate::shapes::{BANKING77_LENGTHS, SHAPES, Shape};
use crate::stats::median;

/// Classes of banking77.
const CLASSES: usize = 77;

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

/// Measures every shape whose name contains `only`, in f32 and bf16, round by round.
///
/// # Errors
/// A system that refuses threads.
pub fn points(settings: Settings, only: &str, rounds: usize) -> Result<Vec<Point>> {
    let shapes: Vec<&Shape> =
        SHAPES.iter().filter(|s| s.name.contains(only) && (s.name != "tiny" || only == "tiny")).collect();
    ensure!(
        !shapes.is_empty(),
        "no shape contains {only:?}; there are {}",
        SHAPES.map(|s| s.name).join(", ")
    );
    let mut columns: Vec<Vec<Measured>> = shapes.iter().flat_map(|_| [Vec::new(), Vec::new()]).collect();
    for _ in 0..rounds.max(1) {
        for (shape, pair) in shapes.iter().zip(columns.chunks_exact_mut(2)) {
            pair[0].push(measure::<f32>(shape, settings)?);
            pair[1].push(measure::<bf16>(shape, settings)?);
        }
    }
    let names = shapes.iter().flat_map(|shape| [(shape.name, "f32"), (shape.name, "bf16")]);
    Ok(names
        .zip(columns)
        .map(|((model, precision), rounds)| point(model, precision, settings, rounds))
        .collect())
}

fn point(model: &str, precision: &str, settings: Settings, rounds: Vec<Measured>) -> Point {
    let column = |pick: fn(&Measured) -> Vec<f64>| rounds.iter().map(pick).collect::<Vec<_>>();
    // Mean work over each step's time: rows differ in length, and a busy moment of the machine is one sample.
    let rate = |work: fn(&Measured) -> f64, of: fn(&Measured) -> f64| {
        let per_s = |m: &Measured| m.seconds.iter().map(|s| work(m) / s / of(m)).collect::<Vec<f64>>();
        rounds.iter().map(per_s).collect::<Vec<_>>()
    };
    let higher = |name, unit, samples| Metric::new(name, unit, Better::Higher, samples);
    let peak = rounds.iter().map(|m| vec![m.flops / median(&m.seconds) / 1e9 / m.peak]).collect();
    Point::new(model, &format!("{model} {precision}"), "muster")
        .dim("threads", settings.threads as f64)
        .dim("rows", settings.rows as f64)
        .metric(higher("samples_per_s", "1/s", rate(|m| m.rows, |_| 1.0)))
        .metric(higher("tokens_per_s", "1/s", rate(|m| m.tokens, |_| 1.0)))
        .metric(higher("gflops", "GFLOP/s", rate(|m| m.flops, |_| 1e9)))
        .metric(higher("of_fma_peak", "ratio", peak))
        .metric(Metric::new("step_s", "s", Better::Lower, column(|m| m.seconds.clone())))
}

/// One round of one shape; work is the mean of its steps.
struct Measured {
    seconds: Vec<f64>,
    rows: f64,
    tokens: f64,
    /// Counted by [`Shape::step_flops`].
    flops: f64,
    /// The FMA peak measured just before, in GFLOP/s.
    peak: f64,
}

fn measure<E: Element>(shape: &Shape, settings: Settings) -> Result<Measured> {
    let pool = Pool::new(settings.threads)?;
    let peak = peak::measure_fma_peak(&pool);
    let config = shape.config();
    let model = Model::new(config, CLASSES);
    let weights = random_weights(&pool, &model, 1);
    let hyper = Hyper { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    let mut engine = Engine::<E>::new(model, weights, hyper, 1, pool);
    let mut seconds = Vec::new();
    let (mut tokens, mut flops) = (0usize, 0.0);
    for step in 0..=settings.steps {
        let batch = batch(&engine, settings.rows, step as u64);
        let start = Instant::now();
        engine.train(&batch, Step(step as u64), settings.rows);
        engine.apply(&Update { number: step as u64 + 1, learning_rate: 1e-5, max_grad_norm: Some(1.0) });
        // The first step allocates every buffer.
        if step > 0 {
            seconds.push(start.elapsed().as_secs_f64());
            tokens += batch.tokens();
            flops += shape.step_flops(&lengths(&batch));
        }
    }
    let count = seconds.len().max(1) as f64;
    Ok(Measured {
        seconds,
        rows: settings.rows as f64,
        tokens: tokens as f64 / count,
        flops: flops / count,
        peak,
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
