//! Prints the speed of linear layers and of element-wise passes at the shapes of DeBERTa-v3-large and MiniLM: `cargo run
//! --release -p muster-kernels --example speed [threads [isa [passes|linear]]]`. The examples `attention` and `passes`
//! have the other kernels.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a table for people; a failure ends it")]

mod common;

use std::time::Instant;

use common::{best, noise, thread_seconds};
use muster_kernels::activation::{self, Activation};
use muster_kernels::gemm::Scratch;
use muster_kernels::{Cx, Element, Pool, bf16, dropout, elementwise, isa, linear, peak};

/// Milliseconds of the best of some calls: of this thread's CPU time, or on the clock where there are more threads.
fn time(pool: &Pool, call: impl FnMut()) -> f64 {
    let start = Instant::now();
    1e3 * match pool.threads() {
        1 => best(thread_seconds, call),
        _ => best(|| start.elapsed().as_secs_f64(), call),
    }
}

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
        let f = gf / time(pool, || linear::forward(&mut cx, shape, &x, &w, Some(&b), &mut y));
        let i = gf / time(pool, || linear::backward_input(&mut cx, shape, &dy, &w, &mut dx));
        let g = gf / time(pool, || linear::backward_weight(&mut cx, shape, &x, &dy, &mut dw, Some(&mut db)));
        println!(
            "linear {:?} {rows:5} {inputs:5} {outputs:5}: forward {f:6.1} dx {i:6.1} dw {g:6.1} GFLOP/s = {:3.0} {:3.0} {:3.0} % of peak",
            E::DTYPE,
            100.0 * f / peak,
            100.0 * i / peak,
            100.0 * g / peak
        );
    }
}

fn passes<E: Element>(pool: &Pool) {
    let (t, cols) = (1024, 1024);
    let n = t * cols;
    let (x, dy) = (noise::<E>(n), noise::<E>(n));
    let (mut y, mut dx) = (x.clone(), x.clone());
    let keys: Vec<u64> = (0..t as u64).collect();
    let gb = |bytes: f64, ms: f64| {
        format!("{ms:6.3} ms {:5.1} GB/s", bytes * (n * E::DTYPE.bytes()) as f64 / ms / 1e6)
    };
    for act in [Activation::Gelu, Activation::GeluTanh, Activation::Tanh] {
        let f = time(pool, || activation::forward(pool, act, &x, &mut y));
        let b = time(pool, || activation::backward(pool, act, &x, &dy, &mut dx));
        println!("{act:?} {:?}: forward {} backward {}", E::DTYPE, gb(2.0, f), gb(3.0, b));
    }
    let d = dropout::Dropout { rate: 0.1, site: 1, rows: &keys };
    println!(
        "dropout {:?}: {}",
        E::DTYPE,
        gb(2.0, time(pool, || dropout::apply(pool, &d, cols, &x, &mut y)))
    );
    println!("add {:?}: {}", E::DTYPE, gb(3.0, time(pool, || elementwise::add_assign(pool, &mut y, &x))));
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or(2, |a| a.parse().unwrap());
    let isa = args.next().map_or(isa::selected(), |a| isa::parse_cap(&a).unwrap());
    let only = args.next().unwrap_or_default();
    let pool = Pool::with_isa(threads, isa).unwrap();
    let peak = (0..5).map(|_| peak::measure_fma_peak(&pool)).fold(0.0, f64::max);
    println!(
        "{threads} threads, {isa}: {peak:.0} GFLOP/s, {:.1} GB/s",
        peak::measure_memory_bandwidth(&pool)
    );
    if "passes".contains(&only) {
        passes::<f32>(&pool);
        passes::<bf16>(&pool);
    }
    if "linear".contains(&only) {
        linears::<f32>(&pool, peak);
        linears::<bf16>(&pool, peak);
    }
}
