//! Prints the time of attention per (sequence, head): `cargo run --release -p muster-kernels --example attention
//! [isa] [length] [plain|deberta]`. One thread, its own CPU time, the best of many rounds.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a table for people; a failure ends it")]

mod common;

use common::{best, noise, thread_seconds};
use muster_kernels::attention::{Backward, Forward, Relative, RelativeGrad, Shape, Terms, backward, forward};
use muster_kernels::dropout::Dropout;
use muster_kernels::{Element, Pool, bf16, isa};

/// Best CPU time of a call in nanoseconds.
fn time(f: impl FnMut()) -> f64 {
    1e9 * best(thread_seconds, f)
}

/// Rows of the table of DeBERTa-v3 for each distance of up to 512 tokens.
fn slots() -> Vec<u32> {
    let far = |t: i32| ((f64::from(t.abs()) / 128.0).ln() / (511.0_f64 / 128.0).ln() * 127.0).ceil() as i32;
    (-511..=511_i32)
        .map(|t| 256 + if t.abs() <= 128 { t } else { t.signum() * (far(t) + 128) })
        .map(|s| s as u32)
        .collect()
}

fn measure<E: Element>(pool: &Pool, n: usize, head_dim: usize, relative: bool) {
    let (heads, rows) = (12, (512 / n).max(1));
    let (tokens, hidden) = (n * rows, heads * head_dim);
    let offsets: Vec<u32> = (0..=rows as u32).map(|r| r * n as u32).collect();
    let (qkv, table, slots) = (noise::<E>(tokens * 3 * hidden), noise::<E>(512 * hidden), slots());
    let terms = Terms::Both;
    let relative = relative.then_some(Relative {
        keys: &table,
        queries: &table,
        row_stride: hidden,
        slots: &slots,
        terms,
    });
    let keys: Vec<u64> = (0..tokens as u64).collect();
    let dropout = Some(Dropout { rate: 0.1, site: 1, rows: &keys });
    let shape = Shape { offsets: &offsets, heads, head_dim };
    let (mut out, mut lse) = (noise::<E>(tokens * hidden), vec![0.0; heads * tokens]);
    let (qkv, scale) = (&qkv[..], 0.07);
    let ahead = time(|| {
        forward(pool, Forward { shape, qkv, relative, scale, dropout, out: &mut out, lse: &mut lse });
    });
    let (dout, mut dqkv) = (noise::<E>(tokens * hidden), qkv.to_vec());
    let (mut dk, mut dq) = (vec![0.0; 512 * hidden], vec![0.0; 512 * hidden]);
    let back = time(|| {
        let grad = RelativeGrad { keys: &mut dk, queries: &mut dq };
        let drelative = relative.map(|_| grad);
        let (out, lse, dout, dqkv) = (&out[..], &lse[..], &dout[..], &mut dqkv[..]);
        backward(pool, Backward { shape, qkv, relative, scale, dropout, out, lse, dout, dqkv, drelative });
    });
    let each = (rows * heads) as f64;
    let kind = if relative.is_some() { "deberta" } else { "plain" };
    println!(
        "{:?} {kind:7} n {n:3} d {head_dim}: forward {:9.0} backward {:9.0} ns",
        E::DTYPE,
        ahead / each,
        back / each
    );
}

fn main() {
    let isa = std::env::args().nth(1).map_or(isa::selected(), |a| isa::parse_cap(&a).unwrap());
    let pool = Pool::with_isa(1, isa).unwrap();
    let lengths = std::env::args().nth(2).map_or(vec![16, 32, 128, 512], |a| vec![a.parse().unwrap()]);
    let kind = std::env::args().nth(3);
    let wanted = |name| kind.as_deref().is_none_or(|k| k == name);
    for relative in [false, true].into_iter().filter(|&r| wanted(if r { "deberta" } else { "plain" })) {
        for head_dim in [32, 64] {
            for n in lengths.iter().copied() {
                measure::<f32>(&pool, n, head_dim, relative);
            }
        }
    }
    if kind.is_none() {
        measure::<bf16>(&pool, 32, 64, true);
    }
}
