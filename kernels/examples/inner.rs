//! Runs exactly one product C = A B, for counting its instructions (tests/isa/count.sh):
//! `inner M N K [f32|bf16] [add]`. Two sizes subtracted leave the product without what surrounds it.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a tool for developers; a failure ends it")]

use muster_kernels::gemm::{Mat, Scratch, Write, gemm};
use muster_kernels::{Element, Pool, bf16, isa};

fn product<E: Element>(sizes: [usize; 3], write: Write) -> f32 {
    let [m, n, k] = sizes;
    // Numbers cheap to make and exact in bf16, so that making them doesn't cover the product.
    let (a, b) = (vec![E::from_f32(0.5); m * k], vec![E::from_f32(2.0); k * n]);
    let (mut c, pool) = (vec![1.0; m * n], Pool::new(1).unwrap());
    gemm(&pool, &mut Scratch::default(), Mat::new(&a, m, k), Mat::new(&b, k, n), &mut c, write);
    c[m * n - 1]
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<usize> = words.iter().map_while(|w| w.parse().ok()).collect();
    let [m, n, k] = numbers[..] else { panic!("usage: inner M N K [f32|bf16] [add]") };
    let has = |word: &str| words.iter().any(|w| w == word);
    let write = if has("add") { Write::Add } else { Write::Set };
    let (name, run) =
        if has("bf16") { ("bf16", product::<bf16> as fn(_, _) -> _) } else { ("f32", product::<f32> as _) };
    let last = run([m, n, k], write);
    println!("({m}, {k}) x ({k}, {n}) in {name} on {}: last element {last}", isa::selected());
}
