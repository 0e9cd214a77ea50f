//! Times single kernels: products, attention, AdamW, LayerNorm.
//!
//! As a table, or one case per line of standard input: `benches/peers/kernels_torch.py` asks for a case, times the same work
//! in PyTorch, and asks again, so that both see the same machine.

use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use half::bf16;
use muster_kernels::attention::{self, Relative, RelativeGrad, Terms};
use muster_kernels::gemm::Scratch;
use muster_kernels::optim::{self, AdamW, Arenas};
use muster_kernels::{Cx, Element, Pool, dropout, linear, norm, peak, rng};
use muster_trainer::model::Buckets;
use serde::Serialize;

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

/// What was measured.
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

/// Prints the table.
#[allow(clippy::print_stdout, reason = "the report is the program's output")]
pub fn table(threads: usize, only: &str) -> Result<()> {
    let pool = Pool::new(threads)?;
    let (fma, bandwidth) = (peak::measure_fma_peak(&pool), peak::measure_memory_bandwidth(&pool));
    println!(
        "{} threads, {}: f32 FMA peak {fma:.0} GFLOP/s, memory {bandwidth:.1} GB/s\n",
        threads,
        pool.isa()
    );
    println!("| kernel | ms | GFLOP/s | of FMA peak | GB/s | of memory |");
    println!("|---|---|---|---|---|---|");
    for name in cases(only) {
        let t = run(&pool, name)?;
        let part = |x: f64, of: f64| {
            if x > 0.0 { format!("{x:.0} | {:.0} %", 100.0 * x / of) } else { " | ".into() }
        };
        println!(
            "| {name} | {:.3} | {} | {} |",
            1e3 * t.seconds,
            part(t.gflops, fma),
            part(t.gbytes, bandwidth)
        );
    }
    Ok(())
}

/// Answers each line of standard input with a line of JSON.
#[allow(clippy::print_stdout, reason = "the answers are the program's output")]
pub fn serve(threads: usize) -> Result<()> {
    let pool = Pool::new(threads)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        println!("{}", serde_json::to_string(&run(&pool, line.trim())?)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn run(pool: &Pool, name: &str) -> Result<Timed> {
    let words: Vec<&str> = name.split_whitespace().collect();
    let hint = || format!("unknown case {name:?}; one is {:?}", TABLE[0]);
    let (case, dtype) = parse(&words).with_context(hint)?;
    match dtype {
        "f32" => time::<f32>(pool, name, case),
        "bf16" => time::<bf16>(pool, name, case),
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

fn time<E: Element>(pool: &Pool, name: &str, case: Case) -> Result<Timed> {
    let ((seconds, grown), flops, bytes) = match case {
        Case::Linear { pass, rows, inputs, outputs } => {
            let shape = linear::Shape { rows, inputs, outputs };
            (time_linear::<E>(pool, pass, shape), 2.0 * (rows * inputs * outputs) as f64, 0.0)
        }
        Case::Attention { sequences, length, heads, dim } => {
            let n = length as f64;
            let slots = (2.0 * n - 1.0).min(n + 256.0);
            let flops = 3.0 * 4.0 * n * (n + slots) * (sequences * heads * dim) as f64;
            (time_attention::<E>(pool, sequences, length, (heads, dim)), flops, 0.0)
        }
        Case::AdamW { parameters } => (time_adamw(pool, parameters), 0.0, 32.0 * parameters as f64),
        // Forward reads x and the residual and writes the sum and y; backward reads dy and the sum and writes both
        // gradients.
        Case::Norm { rows, cols } => {
            (time_norm::<E>(pool, rows, cols), 0.0, (8 * rows * cols * E::DTYPE.bytes()) as f64)
        }
    };
    let rate = |work: f64| work / seconds / 1e9;
    Ok(Timed { case: name.to_owned(), seconds, gflops: rate(flops), gbytes: rate(bytes), grown })
}

/// Median seconds of a call, over some 300 ms and at least 5 calls, and by how many bytes the process grew in one more
/// that goes first.
fn median(mut call: impl FnMut()) -> (f64, u64) {
    let grown = growth(&mut call);
    let start = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < 5 || (start.elapsed() < Duration::from_millis(300) && samples.len() < 1000) {
        let begin = Instant::now();
        call();
        samples.push(begin.elapsed().as_secs_f64());
    }
    samples.sort_by(f64::total_cmp);
    (samples[samples.len() / 2], grown)
}

/// Resident bytes at the peak of a call above those before it; zero where Linux doesn't tell.
fn growth(call: impl FnOnce()) -> u64 {
    let resident = |field: &str| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).map_or(0, |kib| 1024 * kib)
    };
    // 5 resets the peak, VmHWM.
    let reset = std::fs::write("/proc/self/clear_refs", "5");
    let before = resident("VmRSS");
    call();
    if reset.is_ok() { resident("VmHWM").saturating_sub(before) } else { 0 }
}

fn noise<E: Element>(len: usize) -> Vec<E> {
    (0..len as u64).map(|i| E::from_f32(rng::uniform(1, i) as f32 - 0.5)).collect()
}

fn time_linear<E: Element>(pool: &Pool, pass: Pass, shape: linear::Shape) -> (f64, u64) {
    let linear::Shape { rows, inputs, outputs } = shape;
    let mut scratch = Scratch::default();
    let mut cx = Cx { pool, scratch: &mut scratch };
    let (mut x, weight) = (noise::<E>(rows * inputs), noise::<E>(outputs * inputs));
    let (mut y, mut dweight) = (noise::<E>(rows * outputs), vec![0.0_f32; outputs * inputs]);
    match pass {
        Pass::Forward => median(|| linear::forward(&mut cx, shape, &x, &weight, None, &mut y)),
        Pass::Input => median(|| linear::backward_input(&mut cx, shape, &y, &weight, &mut x)),
        Pass::Weight => median(|| linear::backward_weight(&mut cx, shape, &x, &y, &mut dweight, None)),
    }
}

fn time_attention<E: Element>(
    pool: &Pool,
    sequences: usize,
    length: usize,
    (heads, dim): (usize, usize),
) -> (f64, u64) {
    let (tokens, hidden) = (sequences * length, heads * dim);
    let offsets: Vec<u32> = (0..=sequences).map(|s| (s * length) as u32).collect();
    let slots = Buckets { span: 256, bucket_count: 256, max_distance: 512 }.slots(length);
    let (qkv, table) = (noise::<E>(tokens * 3 * hidden), noise::<E>(slots.count * hidden));
    let row_keys: Vec<u64> = (0..tokens as u64).collect();
    let shape = attention::Shape { offsets: &offsets, heads, head_dim: dim };
    let relative = Relative {
        keys: &table,
        queries: &table,
        row_stride: hidden,
        slots: &slots.of_distance,
        terms: Terms::Both,
    };
    let scale = 1.0 / (3.0 * dim as f32).sqrt();
    let dropout = dropout::Dropout { rate: 0.1, site: 1, rows: &row_keys };
    let (mut out, mut lse) = (noise::<E>(tokens * hidden), vec![1.0; heads * tokens]);
    let (mut dqkv, dout) = (qkv.clone(), noise::<E>(tokens * hidden));
    // Not zeros: fresh zero pages would be counted as growth of the call.
    let (mut dkeys, mut dqueries) = (vec![1.0; table.len()], vec![1.0; table.len()]);
    median(|| {
        let forward = attention::Forward {
            shape,
            qkv: &qkv,
            relative: Some(relative),
            scale,
            dropout: Some(dropout),
            out: &mut out,
            lse: &mut lse,
        };
        attention::forward(pool, forward);
        let backward = attention::Backward {
            shape,
            qkv: &qkv,
            relative: Some(relative),
            scale,
            dropout: Some(dropout),
            out: &out,
            lse: &lse,
            dout: &dout,
            dqkv: &mut dqkv,
            drelative: Some(RelativeGrad { keys: &mut dkeys, queries: &mut dqueries }),
        };
        attention::backward(pool, backward);
    })
}

fn time_adamw(pool: &Pool, parameters: usize) -> (f64, u64) {
    let (mut grad, mut master) = (noise::<f32>(parameters), noise::<f32>(parameters));
    let (mut m, mut v) = (vec![0.0; parameters], vec![0.0; parameters]);
    let hyper =
        AdamW { lr: 1e-5, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, step: 3, grad_scale: 1.0 };
    median(|| {
        let arenas = Arenas::<f32> {
            grad: &mut grad,
            master: &mut master,
            first_moment: &mut m,
            second_moment: &mut v,
            compute: None,
        };
        optim::adamw(pool, &hyper, &[], arenas);
    })
}

fn time_norm<E: Element>(pool: &Pool, rows: usize, cols: usize) -> (f64, u64) {
    let (mut x, residual) = (noise::<E>(rows * cols), noise::<E>(rows * cols));
    let (gamma, beta) = (noise::<E>(cols), noise::<E>(cols));
    let (mut y, mut dx, mut dresidual) = (x.clone(), x.clone(), x.clone());
    let (mut mean, mut rstd) = (vec![0.0; rows], vec![0.0; rows]);
    let (mut dgamma, mut dbeta) = (vec![0.0; cols], vec![0.0; cols]);
    median(|| {
        let forward = norm::Forward {
            cols,
            eps: 1e-7,
            x: &mut x,
            residual: Some(&residual),
            dropout_in: None,
            dropout_out: None,
            gamma: &gamma,
            beta: &beta,
            y: &mut y,
            mean: &mut mean,
            rstd: &mut rstd,
        };
        norm::forward(pool, forward);
        let backward = norm::Backward {
            cols,
            s: &x,
            mean: &mean,
            rstd: &rstd,
            gamma: &gamma,
            dropout_in: None,
            dropout_out: None,
            dy: &y,
            dx: &mut dx,
            dresidual: Some(&mut dresidual),
            dgamma: &mut dgamma,
            dbeta: &mut dbeta,
        };
        norm::backward(pool, backward);
    })
}
