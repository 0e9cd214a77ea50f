//! Times the kernels themselves.

use std::time::{Duration, Instant};

use muster_kernels::attention::{self, Relative, RelativeGrad, Terms};
use muster_kernels::gemm::Scratch;
use muster_kernels::optim::{self, AdamW, Arenas};
use muster_kernels::{Cx, Element, Pool, dropout, linear, norm, rng};
use muster_trainer::model::Buckets;

use super::Pass;

/// What calls of a kernel took.
pub struct Timing {
    /// Seconds of each call.
    pub samples: Vec<f64>,
    /// Bytes by which one more call, the first, made this process grow.
    pub grown: u64,
}

/// Times calls over some 300 ms, at least 5 of them.
fn times(mut call: impl FnMut()) -> Timing {
    let grown = growth(&mut call);
    let start = Instant::now();
    let mut samples = Vec::new();
    while samples.len() < 5 || (start.elapsed() < Duration::from_millis(300) && samples.len() < 1000) {
        let begin = Instant::now();
        call();
        samples.push(begin.elapsed().as_secs_f64());
    }
    Timing { samples, grown }
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

/// A product.
pub fn time_linear<E: Element>(pool: &Pool, pass: Pass, shape: linear::Shape) -> Timing {
    let linear::Shape { rows, inputs, outputs } = shape;
    let mut scratch = Scratch::default();
    let mut cx = Cx { pool, scratch: &mut scratch };
    let (mut x, weight) = (noise::<E>(rows * inputs), noise::<E>(outputs * inputs));
    let (mut y, mut dweight) = (noise::<E>(rows * outputs), vec![0.0_f32; outputs * inputs]);
    match pass {
        Pass::Forward => times(|| linear::forward(&mut cx, shape, &x, &weight, None, &mut y)),
        Pass::Input => times(|| linear::backward_input(&mut cx, shape, &y, &weight, &mut x)),
        Pass::Weight => times(|| linear::backward_weight(&mut cx, shape, &x, &y, &mut dweight, None)),
    }
}

/// Forward and backward of DeBERTa attention, with dropout.
pub fn time_attention<E: Element>(
    pool: &Pool,
    sequences: usize,
    length: usize,
    (heads, dim): (usize, usize),
) -> Timing {
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
    times(|| {
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

/// One update.
pub fn time_adamw(pool: &Pool, parameters: usize) -> Timing {
    let (mut grad, mut master) = (noise::<f32>(parameters), noise::<f32>(parameters));
    let (mut m, mut v) = (vec![0.0; parameters], vec![0.0; parameters]);
    let hyper =
        AdamW { lr: 1e-5, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, step: 3, grad_scale: 1.0 };
    times(|| {
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

/// Forward and backward of residual + LayerNorm.
pub fn time_norm<E: Element>(pool: &Pool, rows: usize, cols: usize) -> Timing {
    let (mut x, residual) = (noise::<E>(rows * cols), noise::<E>(rows * cols));
    let (gamma, beta) = (noise::<E>(cols), noise::<E>(cols));
    let (mut y, mut dx, mut dresidual) = (x.clone(), x.clone(), x.clone());
    let (mut mean, mut rstd) = (vec![0.0; rows], vec![0.0; rows]);
    let (mut dgamma, mut dbeta) = (vec![0.0; cols], vec![0.0; cols]);
    times(|| {
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
