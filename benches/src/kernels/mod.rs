//! Times single kernels: products, attention, AdamW, LayerNorm.
//!
//! As a table, or one case per line of standard input: `benches/peers/kernels_torch.py` asks for a case, times the same work
//! in PyTorch, and asks again, so that both see the same machine.

mod time;

use std::io::{BufRead, Write};

use anyhow::{Context, Result, bail};
use half::bf16;
use muster_kernels::{Element, Pool, linear, peak};
use serde::Serialize;

use crate::schema::{Better, Metric, Point};
use crate::stats::median;
use time::{Timing, time_adamw, time_attention, time_linear, time_norm};

/// One kernel at one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// y = x Wᵀ (`pass` forward), dx = dy W (`dx`) or dW += dyᵀ x (`dw`): rows, inputs, outputs.
    Linear { pass: Pass, rows: usize, inputs: usize, outputs: usize },
    /// Forward and backward of DeBERTa attention: sequences, length, heads, columns of a head.
    Attention { sequences: usize, length: usize, heads: usize, dim: usize },
    /// One update of so many parameters.
    AdamW { parameters: usize },
    /// Forward and backward of residual + LayerNorm: rows, columns.
    Norm { rows: usize, cols: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    Forward,
    Input,
    Weight,
}

/// What was measured, for programs that ask case by case.
#[derive(Debug, Serialize)]
struct Timed {
    case: String,
    /// Median seconds of one call.
    seconds: f64,
    /// 1e9 floating-point operations per second, for products and attention.
    gflops: f64,
    /// 1e9 bytes per second of memory that must move, for the others.
    gbytes: f64,
    /// Bytes by which the first call made this process grow, inputs and outputs apart.
    grown: u64,
}

/// A case with the work that it does in a call.
struct Work {
    timing: Timing,
    flops: f64,
    bytes: f64,
}

/// Every case of the table: the square of the textbooks, then the shapes of MiniLM and DeBERTa-v3-large at 512 tokens.
const TABLE: [&str; 18] = [
    "linear f32 forward 1024 1024 1024",
    "linear f32 dx 1024 1024 1024",
    "linear f32 dw 1024 1024 1024",
    "linear f32 forward 512 384 1536",
    "linear f32 dx 512 384 1536",
    "linear f32 dw 512 384 1536",
    "linear f32 forward 512 1024 4096",
    "linear f32 dx 512 1024 4096",
    "linear f32 dw 512 1024 4096",
    "linear bf16 forward 1024 1024 1024",
    "linear bf16 forward 512 1024 4096",
    "linear bf16 dx 512 1024 4096",
    "linear bf16 dw 512 1024 4096",
    "attention f32 32 32 16 64",
    "attention f32 8 128 16 64",
    "attention f32 2 512 16 64",
    "adamw f32 33554432",
    "norm f32 16384 1024",
];

fn cases(only: &str) -> impl Iterator<Item = &'static str> {
    TABLE.into_iter().filter(move |name| name.contains(only))
}

/// Prints the names of the cases.
#[allow(clippy::print_stdout, reason = "the names are the program's output")]
pub fn list(only: &str) -> Result<()> {
    cases(only).for_each(|name| println!("{name}"));
    Ok(())
}

/// Measures every case of a family (or of all) whose name contains `only`, round by round, each round beside the yardsticks
/// of the machine.
///
/// # Errors
/// A system that refuses threads.
pub fn points(threads: usize, family: &str, only: &str, rounds: usize) -> Result<Vec<Point>> {
    let pool = Pool::new(threads)?;
    let names: Vec<&str> = cases(only).filter(|name| name.starts_with(family)).collect();
    let mut columns: Vec<Column> = names.iter().map(|_| Column::default()).collect();
    for _ in 0..rounds.max(1) {
        let yardsticks = (peak::measure_fma_peak(&pool), peak::measure_memory_bandwidth(&pool));
        for (name, column) in names.iter().zip(&mut columns) {
            column.push(&run(&pool, name)?, yardsticks);
        }
    }
    Ok(names.iter().zip(columns).map(|(name, column)| column.point(name, threads)).collect())
}

/// The rounds of one case.
#[derive(Default)]
struct Column {
    seconds: Vec<Vec<f64>>,
    gflops: Vec<Vec<f64>>,
    gbytes: Vec<Vec<f64>>,
    of_peak: Vec<Vec<f64>>,
    best_of_peak: Vec<Vec<f64>>,
    of_memory: Vec<Vec<f64>>,
    grown: Vec<Vec<f64>>,
}

impl Column {
    fn push(&mut self, work: &Work, (fma, memory): (f64, f64)) {
        let samples = &work.timing.samples;
        let rate = |amount: f64| samples.iter().map(|s| amount / s / 1e9).collect::<Vec<f64>>();
        self.seconds.push(samples.clone());
        self.grown.push(vec![work.timing.grown as f64]);
        // The share of the yardstick that was measured in this round: one number, whose noise is that of rounds.
        if work.flops > 0.0 {
            let rates = rate(work.flops);
            self.of_peak.push(vec![median(&rates) / fma]);
            // As the yardstick is the best of its passes: this one holds on a busy machine.
            self.best_of_peak.push(vec![rates.iter().copied().fold(0.0, f64::max) / fma]);
            self.gflops.push(rates);
        } else {
            let rates = rate(work.bytes);
            self.of_memory.push(vec![median(&rates) / memory]);
            self.gbytes.push(rates);
        }
    }

    fn point(self, name: &str, threads: usize) -> Point {
        let series = name.split(' ').next().unwrap_or_default();
        let mut point = Point::new(series, name, "muster")
            .dim("threads", threads as f64)
            .metric(Metric::new("seconds", "s", Better::Lower, self.seconds));
        let mut add = |name: &str, unit: &str, samples: Vec<Vec<f64>>| {
            if !samples.is_empty() {
                point.metrics.push(Metric::new(name, unit, Better::Higher, samples));
            }
        };
        add("gflops", "GFLOP/s", self.gflops);
        add("of_fma_peak", "ratio", self.of_peak);
        add("best_of_fma_peak", "ratio", self.best_of_peak);
        add("gbytes_per_s", "GB/s", self.gbytes);
        add("of_memory_bandwidth", "ratio", self.of_memory);
        point.metric(Metric::new("grown_bytes", "B", Better::Lower, self.grown))
    }
}

/// Answers each line of standard input with a line of JSON.
///
/// # Errors
/// A case that is none.
#[allow(clippy::print_stdout, reason = "the answers are the program's output")]
pub fn serve(threads: usize) -> Result<()> {
    let pool = Pool::new(threads)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let work = run(&pool, line.trim())?;
        let seconds = median(&work.timing.samples);
        let rate = |amount: f64| amount / seconds / 1e9;
        let timed = Timed {
            case: line.trim().to_owned(),
            seconds,
            gflops: rate(work.flops),
            gbytes: rate(work.bytes),
            grown: work.timing.grown,
        };
        println!("{}", serde_json::to_string(&timed)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn run(pool: &Pool, name: &str) -> Result<Work> {
    let words: Vec<&str> = name.split_whitespace().collect();
    let hint = || format!("unknown case {name:?}; one is {:?}", TABLE[0]);
    let (case, dtype) = parse(&words).with_context(hint)?;
    match dtype {
        "f32" => Ok(time::<f32>(pool, case)),
        "bf16" => Ok(time::<bf16>(pool, case)),
        _ => bail!(hint()),
    }
}

fn parse<'a>(words: &[&'a str]) -> Option<(Case, &'a str)> {
    let number = |i: usize| words.get(i)?.parse::<usize>().ok().filter(|&n| n > 0);
    let case = match *words.first()? {
        "linear" => {
            let pass = match *words.get(2)? {
                "forward" => Pass::Forward,
                "dx" => Pass::Input,
                "dw" => Pass::Weight,
                _ => return None,
            };
            Case::Linear { pass, rows: number(3)?, inputs: number(4)?, outputs: number(5)? }
        }
        "attention" => {
            Case::Attention { sequences: number(2)?, length: number(3)?, heads: number(4)?, dim: number(5)? }
        }
        "adamw" => Case::AdamW { parameters: number(2)? },
        "norm" => Case::Norm { rows: number(2)?, cols: number(3)? },
        _ => return None,
    };
    Some((case, words.get(1)?))
}

fn time<E: Element>(pool: &Pool, case: Case) -> Work {
    match case {
        Case::Linear { pass, rows, inputs, outputs } => {
            let shape = linear::Shape { rows, inputs, outputs };
            let flops = 2.0 * (rows * inputs * outputs) as f64;
            Work { timing: time_linear::<E>(pool, pass, shape), flops, bytes: 0.0 }
        }
        Case::Attention { sequences, length, heads, dim } => {
            let n = length as f64;
            let slots = (2.0 * n - 1.0).min(n + 256.0);
            let flops = 3.0 * 4.0 * n * (n + slots) * (sequences * heads * dim) as f64;
            Work { timing: time_attention::<E>(pool, sequences, length, (heads, dim)), flops, bytes: 0.0 }
        }
        Case::AdamW { parameters } => {
            Work { timing: time_adamw(pool, parameters), flops: 0.0, bytes: 32.0 * parameters as f64 }
        }
        // Forward reads x and the residual and writes the sum and y; backward reads dy and the sum and writes both
        // gradients.
        Case::Norm { rows, cols } => {
            let bytes = (8 * rows * cols * E::DTYPE.bytes()) as f64;
            Work { timing: time_norm::<E>(pool, rows, cols), flops: 0.0, bytes }
        }
    }
}
