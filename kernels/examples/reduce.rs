//! Reductions of 2, 3, 4 and 8 contributions against memcpy, on one thread: bytes read and written per second.
#![allow(clippy::print_stdout, reason = "the table is the program's output")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use half::{bf16, f16};
use muster_kernels::isa;
use muster_kernels::reduce::{Number, ReduceOp, Reduction, Stores, Tree};

/// Seconds of the fastest call within 60 ms.
fn best(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed() < Duration::from_millis(60) {
        let begin = Instant::now();
        call();
        best = best.min(begin.elapsed().as_secs_f64());
    }
    best
}

fn row<I: Number, O: Number<Acc = I::Acc>>(k: usize, bytes: usize, stores: Stores) {
    let len = bytes / size_of::<I>();
    let inputs: Vec<Vec<I>> = (0..k).map(|_| vec![I::zeroed(); len]).collect();
    let inputs: Vec<*const I> = inputs.iter().map(|x| x.as_ptr()).collect();
    let mut out = vec![O::zeroed(); len];
    let tree = Tree::new(&[k], |_| true);
    let weights = vec![1.0; k];
    let op = ReduceOp::Sum;
    let r = Reduction { isa: isa::selected(), op, tree: &tree, weights: &weights, divisor: None, stores };
    let outs = [out.as_mut_ptr()];
    // SAFETY: vectors of `len` elements that live until the end of this function and are used by nobody else.
    let seconds = best(|| unsafe { r.run_raw(black_box(&inputs), black_box(&outs), len) });
    let moved = k * bytes + len * size_of::<O>();
    print!(" {:6.1}", moved as f64 / seconds / 1e9);
}

fn main() {
    println!("{}: GB/s, reads and writes", isa::selected());
    for kib in [4_usize, 16, 64, 512, 4096, 65536] {
        let bytes = kib << 10;
        let (from, mut to) = (vec![1_u8; bytes], vec![2_u8; bytes]);
        let copy = best(|| black_box(&mut to).copy_from_slice(black_box(&from)));
        print!("{kib:6} KiB: memcpy {:6.1} | f32 k=2,3,4,8", 2.0 * bytes as f64 / copy / 1e9);
        for k in [2, 3, 4, 8] {
            row::<f32, f32>(k, bytes, Stores::Cached);
        }
        print!(" nt k=2");
        row::<f32, f32>(2, bytes, Stores::Streaming);
        print!(" | k=2: bf16");
        row::<bf16, bf16>(2, bytes, Stores::Cached);
        row::<bf16, bf16>(4, bytes, Stores::Cached);
        print!(" bf16->f32");
        row::<bf16, f32>(2, bytes, Stores::Cached);
        print!(" f16");
        row::<f16, f16>(2, bytes, Stores::Cached);
        print!(" f64");
        row::<f64, f64>(2, bytes, Stores::Cached);
        println!();
    }
}
