//! Prints the speed of each kernel at the shapes of DeBERTa-v3-large and MiniLM: `cargo run --release -p muster-kernels
//! --example speed [threads [isa [rows|attention|linear]]]`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a table for people; a failure ends it")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use muster_kernels::activation::{self, Activation};
use muster_kernels::attention::{self, Relative, RelativeGrad, Shape, Terms};
use muster_kernels::gemm::Scratch;
use muster_kernels::{Cx, Element, Pool, bf16, dropout, elementwise, linear, norm, optim, peak, rng};

fn noise<E: Element>(n: usize) -> Vec<E> {
    (0..n as u64).map(|i| E::from_f32(rng::uniform(1, i) as f32 - 0.5)).collect()
}

/// Seconds this thread has run: on a busy machine the only fair clock, and only with one compute thread.
fn cpu_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call, which writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// Milliseconds of this thread's CPU time (wall time with more threads), the best of some.
fn time(mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    let clock = || if WALL.load(Ordering::Relaxed) { start.elapsed().as_secs_f64() } else { cpu_seconds() };
    f();
    let mut best = f64::INFINITY;
    let mut rounds = 0;
    while rounds < 5 || (start.elapsed().as_millis() < 400 && rounds < 200) {
        let t = clock();
        f();
        best = best.min((clock() - t) * 1e3);
        rounds += 1;
    }
    best
}

static WALL: AtomicBool = AtomicBool::new(false);

fn linears<E: Element>(pool: &Pool, peak: f64) {
    for (rows, inputs, outputs) in [
        (1024, 1024, 1024),
        (1024, 1024, 4096),
        (1024, 4096, 1024),
        (1024, 384, 1536),
        (1024, 384, 384),
        (32, 384, 77),
    ] {
        let shape = linear::Shape { rows, inputs, outputs };
        let mut scratch = Scratch::default();
        let mut cx = Cx { pool, scratch: &mut scratch };
        let (x, w, b) = (noise::<E>(rows * inputs), noise::<E>(inputs * outputs), noise::<E>(outputs));
        let (mut y, mut dx) = (noise::<E>(rows * outputs), noise::<E>(rows * inputs));
        let (mut dw, mut db) = (vec![0.0; inputs * outputs], vec![0.0; outputs]);
        let gf = 2e-6 * (rows * inputs * outputs) as f64;
        let dy = y.clone();
        let f = gf / time(|| linear::forward(&mut cx, shape, &x, &w, Some(&b), &mut y));
        let i = gf / time(|| linear::backward_input(&mut cx, shape, &dy, &w, &mut dx));
        let g = gf / time(|| linear::backward_weight(&mut cx, shape, &x, &dy, &mut dw, Some(&mut db)));
        println!(
            "linear {:?} {rows:5} {inputs:5} {outputs:5}: forward {f:6.1} dx {i:6.1} dw {g:6.1} GFLOP/s = {:3.0} {:3.0} {:3.0} % of peak",
            E::DTYPE,
            100.0 * f / peak,
            100.0 * i / peak,
            100.0 * g / peak
        );
    }
}

fn attentions<E: Element>(pool: &Pool, peak: f64) {
    let (heads, d) = (16, 64);
    let hidden = heads * d;
    for (n, rows, relative) in
        [(32, 32, false), (32, 32, true), (128, 8, false), (128, 8, true), (400, 2, true)]
    {
        let tokens = n * rows;
        let offsets: Vec<u32> = (0..=rows as u32).map(|r| r * n as u32).collect();
        let slots: Vec<u32> = (-511..=511_i32)
            .map(|t| {
                let far = ((f64::from(t.abs()) / 128.0).ln() / (511.0_f64 / 128.0).ln() * 127.0).ceil()
                    as i32
                    + 128;
                (256 + if t.abs() <= 128 { t } else { t.signum() * far }) as u32
            })
            .collect();
        let (qkv, table) = (noise::<E>(tokens * 3 * hidden), noise::<E>(512 * hidden));
        let shape = Shape { offsets: &offsets, heads, head_dim: d };
        let rel = relative.then_some(Relative {
            keys: &table,
            queries: &table,
            row_stride: hidden,
            slots: &slots,
            terms: Terms::Both,
        });
        let keys: Vec<u64> = (0..tokens as u64).collect();
        for rate in [0.0, 0.1] {
            let dropout = (rate > 0.0).then_some(dropout::Dropout { rate, site: 1, rows: &keys });
            let (mut out, mut lse) = (noise::<E>(tokens * hidden), vec![0.0; heads * tokens]);
            let f = time(|| {
                attention::forward(
                    pool,
                    attention::Forward {
                        shape,
                        qkv: &qkv,
                        relative: rel,
                        scale: 0.07,
                        dropout,
                        out: &mut out,
                        lse: &mut lse,
                    },
                );
            });
            let dout = out.clone();
            let mut dqkv = qkv.clone();
            let (mut dk, mut dq) = (vec![0.0; 512 * hidden], vec![0.0; 512 * hidden]);
            let b = time(|| {
                attention::backward(
                    pool,
                    attention::Backward {
                        shape,
                        qkv: &qkv,
                        relative: rel,
                        scale: 0.07,
                        dropout,
                        out: &out,
                        lse: &lse,
                        dout: &dout,
                        dqkv: &mut dqkv,
                        drelative: relative.then_some(RelativeGrad { keys: &mut dk, queries: &mut dq }),
                    },
                );
            });
            let m = if relative { (2 * n - 1).min(256 + n) } else { 0 };
            let gf = 2e-6 * (rows * n * hidden * (2 * n + 2 * m)) as f64;
            println!(
                "attention {:?} n {n:3} rows {rows:2} relative {relative:5} dropout {rate}: forward {f:6.2} ms backward {b:6.2} ms; {:3.0} {:3.0} % of peak",
                E::DTYPE,
                100.0 * gf / f / peak,
                250.0 * gf / b / peak
            );
        }
    }
}

fn rows<E: Element>(pool: &Pool) {
    let (t, cols) = (1024, 1024);
    let n = t * cols;
    let (x, dy, gamma) = (noise::<E>(n), noise::<E>(n), noise::<E>(cols));
    let (mut y, mut s, mut dx, mut dr) = (x.clone(), x.clone(), x.clone(), x.clone());
    let (mut mean, mut rstd, mut dg, mut db) = (vec![0.0; t], vec![1.0; t], vec![0.0; cols], vec![0.0; cols]);
    let keys: Vec<u64> = (0..t as u64).collect();
    let gb = |bytes: f64, ms: f64| {
        format!("{ms:6.3} ms {:5.1} GB/s", bytes * (n * E::DTYPE.bytes()) as f64 / ms / 1e6)
    };
    for rate in [0.0, 0.1] {
        let d = (rate > 0.0).then_some(dropout::Dropout { rate, site: 1, rows: &keys });
        let f = time(|| {
            norm::forward(
                pool,
                norm::Forward {
                    cols,
                    eps: 1e-7,
                    x: &mut s,
                    residual: Some(&x),
                    dropout_in: d,
                    dropout_out: None,
                    gamma: &gamma,
                    beta: &gamma,
                    y: &mut y,
                    mean: &mut mean,
                    rstd: &mut rstd,
                },
            );
        });
        let b = time(|| {
            norm::backward(
                pool,
                norm::Backward {
                    cols,
                    s: &x,
                    mean: &mean,
                    rstd: &rstd,
                    gamma: &gamma,
                    dropout_in: d,
                    dropout_out: None,
                    dy: &dy,
                    dx: &mut dx,
                    dresidual: Some(&mut dr),
                    dgamma: &mut dg,
                    dbeta: &mut db,
                },
            );
        });
        println!("norm {:?} dropout {rate}: forward {} backward {}", E::DTYPE, gb(4.0, f), gb(4.0, b));
    }
    for act in [Activation::Gelu, Activation::GeluTanh, Activation::Tanh] {
        let f = time(|| activation::forward(pool, act, &x, &mut y));
        let b = time(|| activation::backward(pool, act, &x, &dy, &mut dx));
        println!("{act:?} {:?}: forward {} backward {}", E::DTYPE, gb(2.0, f), gb(3.0, b));
    }
    let d = dropout::Dropout { rate: 0.1, site: 1, rows: &keys };
    println!("dropout {:?}: {}", E::DTYPE, gb(2.0, time(|| dropout::apply(pool, &d, cols, &x, &mut y))));
    println!("add {:?}: {}", E::DTYPE, gb(3.0, time(|| elementwise::add_assign(pool, &mut y, &x))));
}

fn main() {
    let threads = std::env::args().nth(1).map_or(2, |a| a.parse().unwrap());
    let isa = std::env::args()
        .nth(2)
        .map_or(muster_kernels::isa::selected(), |a| muster_kernels::isa::parse_cap(&a).unwrap());
    WALL.store(threads > 1, Ordering::Relaxed);
    let pool = Pool::with_isa(threads, isa).unwrap();
    let mut peak = 0.0_f64;
    for _ in 0..5 {
        peak = peak.max(peak::measure_fma_peak(&pool));
    }
    println!(
        "{threads} threads, {isa}: {peak:.0} GFLOP/s, {:.1} GB/s",
        peak::measure_memory_bandwidth(&pool)
    );
    let n = 8 << 20;
    let (mut w, mut m, mut v, mut g) = (noise::<f32>(n), vec![0.0; n], vec![0.0; n], noise::<f32>(n));
    let mut c = noise::<bf16>(n);
    let h = optim::AdamW {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 3,
        grad_scale: 1.0,
    };
    let a = time(|| {
        let arenas = optim::Arenas {
            grad: &mut g,
            master: &mut w,
            first_moment: &mut m,
            second_moment: &mut v,
            compute: Some(&mut c),
        };
        optim::adamw(&pool, &h, &[], arenas);
    });
    let s = time(|| {
        std::hint::black_box(optim::sum_squares(&pool, &g));
    });
    println!(
        "adamw {a:.2} ms {:.1} GB/s; sum_squares {s:.2} ms {:.1} GB/s",
        34.0 * n as f64 / a / 1e6,
        4.0 * n as f64 / s / 1e6
    );
    let only = std::env::args().nth(3).unwrap_or_default();
    let wanted = |part: &str| part.contains(&only);
    if wanted("rows") {
        rows::<f32>(&pool);
        rows::<bf16>(&pool);
    }
    if wanted("attention") {
        attentions::<f32>(&pool, peak);
        attentions::<bf16>(&pool, peak);
    }
    if wanted("linear") {
        linears::<f32>(&pool, peak);
        linears::<bf16>(&pool, peak);
    }
}
