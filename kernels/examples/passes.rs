//! Prints how near the passes over memory come to its bandwidth: `cargo run --release -p muster-kernels --example passes
//! [threads] [isa] [MB of an array]`.
//!
//! Each pass is timed in turns with a stream of the same mix of arrays read, updated and written, and both by the CPU
//! time of the process over its threads: a neighbour that takes turns on the CPUs then does not count, and one that
//! takes memory bandwidth slows both.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a table for people; a failure ends it")]

mod common;

use common::process_seconds;
use muster_kernels::peak::{Mix, Stream};
use muster_kernels::{Element, Pool, bf16, dropout, isa, norm, optim};

/// Turns of each pass.
const TURNS: usize = 9;

/// Bytes that one reading of the clock stands for, at least.
const LEAST: usize = 64_000_000;

/// GB/s of something that moves `bytes`, repeated until reading the clock does not count.
fn speed(pool: &Pool, bytes: usize, mut f: impl FnMut()) -> f64 {
    let rounds = (LEAST / bytes).max(1);
    let start = process_seconds();
    (0..rounds).for_each(|_| f());
    (rounds * bytes * pool.threads()) as f64 / (process_seconds() - start) / 1e9
}

/// Times `pass`, which moves `bytes`, in turns with its yardstick; prints the best of each and the median share.
fn compare(name: &str, pool: &Pool, stream: &mut Stream, bytes: usize, mut pass: impl FnMut()) {
    let (mut best, mut best_stream, mut shares) = (0.0_f64, 0.0_f64, Vec::new());
    pass();
    stream.pass(pool);
    for _ in 0..TURNS {
        let reached = speed(pool, bytes, &mut pass);
        let possible = speed(pool, stream.bytes(), || {
            stream.pass(pool);
        });
        best = best.max(reached);
        best_stream = best_stream.max(possible);
        shares.push(reached / possible);
    }
    shares.sort_by(f64::total_cmp);
    println!(
        "{name:34} best {best:5.1} GB/s, stream {best_stream:5.1} GB/s: {:3.0} %; median of turns {:3.0} %",
        100.0 * best / best_stream,
        100.0 * shares[TURNS / 2]
    );
}

fn optimizer(pool: &Pool, len: usize) {
    let h = optim::AdamW {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 3,
        grad_scale: 1.0,
    };
    let (mut g, mut w, mut m, mut v) = (vec![1.0; len], vec![1.0; len], vec![1.0; len], vec![1.0; len]);
    let mut stream = Stream::new(Mix { reads: 0, updates: 4, writes: 0 }, len);
    compare("adamw f32", pool, &mut stream, 32 * len, || {
        let arenas = optim::Arenas::<f32> {
            grad: &mut g,
            master: &mut w,
            first_moment: &mut m,
            second_moment: &mut v,
            compute: None,
        };
        optim::adamw(pool, &h, &[], arenas);
    });
    let mut c = vec![bf16::ZERO; len];
    compare("adamw with a bf16 copy", pool, &mut stream, 34 * len, || {
        let arenas = optim::Arenas {
            grad: &mut g,
            master: &mut w,
            first_moment: &mut m,
            second_moment: &mut v,
            compute: Some(&mut c),
        };
        optim::adamw(pool, &h, &[], arenas);
    });
    let mut stream = Stream::new(Mix { reads: 1, updates: 0, writes: 0 }, len);
    compare("sum_squares", pool, &mut stream, 4 * len, || {
        std::hint::black_box(optim::sum_squares(pool, &w));
    });
}

fn norms<E: Element>(pool: &Pool, len: usize, rate: f32) {
    let cols = 1024;
    let rows = len / cols;
    let keys: Vec<u64> = (0..rows as u64).collect();
    let d = (rate > 0.0).then_some(dropout::Dropout { rate, site: 1, rows: &keys });
    let one = E::from_f32(1.0);
    let (mut x, residual, mut y) = (vec![one; len], vec![one; len], vec![one; len]);
    let gamma = vec![one; cols];
    let (mut mean, mut rstd) = (vec![0.0; rows], vec![1.0; rows]);
    let bytes = E::DTYPE.bytes();
    let label = format!("{:?}{}", E::DTYPE, if rate > 0.0 { " dropout" } else { "" });
    // Streams are of f32: half as many elements move the same bytes as a pass over bf16.
    let mut stream = Stream::new(Mix { reads: 1, updates: 1, writes: 1 }, len * bytes / 4);
    compare(&format!("norm forward {label}"), pool, &mut stream, 4 * bytes * len, || {
        let forward = norm::Forward {
            cols,
            eps: 1e-7,
            x: &mut x,
            residual: Some(&residual),
            dropout_in: d,
            dropout_out: None,
            gamma: &gamma,
            beta: &gamma,
            y: &mut y,
            mean: &mut mean,
            rstd: &mut rstd,
        };
        norm::forward(pool, forward);
    });
    let (mut dx, dy, s) = (x, residual, y);
    let mut dresidual = vec![one; len];
    let (mut dgamma, mut dbeta) = (vec![0.0; cols], vec![0.0; cols]);
    let mut stream = Stream::new(Mix { reads: 2, updates: 0, writes: 2 }, len * bytes / 4);
    compare(&format!("norm backward {label}"), pool, &mut stream, 4 * bytes * len, || {
        let backward = norm::Backward {
            cols,
            s: &s,
            mean: &mean,
            rstd: &rstd,
            gamma: &gamma,
            dropout_in: d,
            dropout_out: None,
            dy: &dy,
            dx: &mut dx,
            dresidual: Some(&mut dresidual),
            dgamma: &mut dgamma,
            dbeta: &mut dbeta,
        };
        norm::backward(pool, backward);
    });
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or(2, |a| a.parse().unwrap());
    let isa = args.next().map_or(isa::selected(), |a| isa::parse_cap(&a).unwrap());
    let megabytes: f64 = args.next().map_or(256.0, |a| a.parse().unwrap());
    let pool = Pool::with_isa(threads, isa).unwrap();
    println!("{threads} threads, {isa}, arrays of {megabytes} MB");
    // Whole rows of the norms.
    let len = ((megabytes * 250_000.0) as usize).next_multiple_of(1024);
    optimizer(&pool, len);
    norms::<f32>(&pool, len, 0.0);
    norms::<f32>(&pool, len, 0.1);
    norms::<bf16>(&pool, 2 * len, 0.0);
    norms::<bf16>(&pool, 2 * len, 0.1);
}
