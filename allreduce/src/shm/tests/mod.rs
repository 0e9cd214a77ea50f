//! Groups of threads: every path, type and size against the scalar specification, on every rank.

use std::sync::atomic::{AtomicU64, Ordering};

use half::{bf16, f16};
use muster_kernels::reduce::Number;
use muster_kernels::{reference, rng};

use super::*;

mod trouble;

/// A run id that nobody else uses.
fn run_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs a function on every rank of a group of threads.
fn with_ranks<R: Send>(ranks: usize, options: ShmOptions, f: impl Fn(&mut ShmGroup) -> R + Sync) -> Vec<R> {
    let run_id = run_id();
    std::thread::scope(|s| {
        let start = |local_rank| {
            let options =
                ShmOptions { run_id: run_id.clone(), local_rank, local_ranks: ranks, ..options.clone() };
            let f = &f;
            s.spawn(move || f(&mut ShmGroup::join(options).unwrap()))
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn options(arena_bytes: usize) -> ShmOptions {
    ShmOptions { arena_bytes, ..ShmOptions::new("", 7, 0, 1) }
}

fn noise<T: Number>(key: u64, n: usize) -> Vec<T> {
    let number = |i: u64| {
        let x = rng::uniform(key, i) - 0.5;
        let bytes: [u8; 8] = match T::TYPE {
            DataType::F32 => u64::from((x as f32).to_bits()).to_le_bytes(),
            DataType::F64 => x.to_bits().to_le_bytes(),
            DataType::Bf16 => u64::from(bf16::from_f64(x).to_bits()).to_le_bytes(),
            DataType::F16 => u64::from(f16::from_f64(x).to_bits()).to_le_bytes(),
            DataType::I32 | DataType::I64 => x.to_bits().to_le_bytes(),
        };
        bytemuck::pod_read_unaligned(&bytes[..size_of::<T>()])
    };
    (0..n as u64).map(number).collect()
}

/// What every rank must end with.
fn expected<I: Number, O: Number<Acc = I::Acc>>(
    how: Operation,
    inputs: &[Vec<I>],
    weights: &[f32],
) -> Vec<O> {
    let n = inputs.len();
    let total = order::total_weight(&[n], weights);
    let divisor = (how == Operation::Mean && total != 0.0).then_some(total);
    let element = |i: usize| {
        let column: Vec<_> = inputs.iter().map(|x| Some(x[i])).collect();
        reference::reduce(how.reduction(), &[n], &column, weights, divisor)
    };
    (0..inputs[0].len()).map(element).collect()
}

#[track_caller]
fn same<T: Number>(what: &str, got: &[T], want: &[T]) {
    assert_eq!(got.len(), want.len(), "{what}");
    if bytemuck::cast_slice::<T, u8>(got) == bytemuck::cast_slice::<T, u8>(want) {
        return;
    }
    let bad = (0..got.len()).find(|&i| bytemuck::bytes_of(&got[i]) != bytemuck::bytes_of(&want[i]));
    if let Some(i) = bad {
        panic!("{what}: element {i} of {} is {:?}, want {:?}", got.len(), got[i], want[i]);
    }
}

/// Sizes in bytes around every threshold, and some odd ones.
const BYTES: [usize; 16] = [
    0,
    1,
    8,
    64,
    72,
    1000,
    2048,
    2056,
    5001,
    32 << 10,
    (32 << 10) + 8,
    65_000,
    (128 << 10) + 24,
    300_001,
    1 << 20,
    (1 << 20) + 4096 + 40,
];

/// An operation on every path, and what must come out.
struct Case<T> {
    what: String,
    how: Operation,
    weights: Vec<f32>,
    inputs: Vec<Vec<T>>,
    want: Vec<T>,
}

/// All sizes on small worlds, some on large ones: on two cores these take turns.
fn cases<T: Number>(ranks: usize) -> Vec<Case<T>> {
    let integer = T::TYPE.is_integer();
    let hows: &[Operation] =
        if integer { &[Operation::Sum, Operation::Min, Operation::Max] } else { &Operation::ALL };
    let sizes = BYTES.into_iter().filter(|b| ranks <= 3 || b % 3 != 0 && *b < 400_000);
    let case = |(s, bytes): (usize, usize)| {
        let count = bytes / size_of::<T>();
        let how = hows[(s + ranks) % hows.len()];
        let inputs: Vec<Vec<T>> = (0..ranks).map(|r| noise((s * 100 + r) as u64, count)).collect();
        let odd = [1.0, 0.0, if integer { 1.0 } else { 2.5 }];
        let weights: Vec<f32> = (0..ranks).map(|r| if s % 3 == 2 { odd[r % 3] } else { 1.0 }).collect();
        let want = expected(how, &inputs, &weights);
        let what = format!("{} of {ranks} ranks, {how:?}, {bytes} bytes", T::TYPE);
        Case { what, how, weights, inputs, want }
    };
    sizes.enumerate().map(case).collect()
}

fn every_path<T: Number>() {
    for ranks in 1..=9 {
        let cases = cases::<T>(ranks);
        with_ranks(ranks, options(4 << 20), |group| {
            let me = group.local_rank();
            for Case { what, how, weights, inputs, want } in &cases {
                let (count, reduce) = (want.len(), Reduce { operation: *how, weight: weights[me] });
                let mut out = vec![T::zeroed(); count];
                group.all_reduce(reduce, &inputs[me], &mut out).unwrap();
                same(&format!("{what}, apart"), &out, want);
                out.copy_from_slice(&inputs[me]);
                group.all_reduce_in_place(reduce, &mut out).unwrap();
                same(&format!("{what}, in place"), &out, want);

                group.arena_mut(64, count).unwrap().copy_from_slice(&inputs[me]);
                group.all_reduce_arena::<T>(reduce, 64, 2 << 20, count).unwrap();
                same(&format!("{what}, arena"), group.arena(2 << 20, count).unwrap(), want);
                same(&format!("{what}, input"), group.arena(64, count).unwrap(), &inputs[me]);
                group.all_reduce_arena::<T>(reduce, 64, 64, count).unwrap();
                same(&format!("{what}, arena in place"), group.arena(64, count).unwrap(), want);
                uneven(group, what, reduce, inputs, want);
            }
        });
    }
}

/// Reduce-scatter, all-gather and broadcast with shards of different sizes.
fn uneven<T: Number>(group: &mut ShmGroup, what: &str, reduce: Reduce, inputs: &[Vec<T>], want: &[T]) {
    let (me, ranks, count) = (group.local_rank(), group.local_ranks(), want.len());
    // The first takes all of the first third, the second nothing.
    let third = count / 3;
    let counts: Vec<usize> = match ranks {
        1 => vec![count],
        2 => vec![third, count - third],
        _ => {
            let each = (count - third) / (ranks - 2);
            let middle = (2..ranks).map(|r| if r == 2 { count - third - each * (ranks - 3) } else { each });
            [third, 0].into_iter().chain(middle).collect()
        }
    };
    let start: usize = counts[..me].iter().sum();
    let mine = &want[start..start + counts[me]];
    let mut shard = vec![T::zeroed(); counts[me]];
    group.reduce_scatter(reduce, &inputs[me], &counts, &mut shard).unwrap();
    same(&format!("{what}, reduce-scatter"), &shard, mine);
    let mut all = vec![T::zeroed(); count];
    group.all_gather(&shard, &counts, &mut all).unwrap();
    same(&format!("{what}, all-gather"), &all, want);

    group.arena_mut(64, count).unwrap().copy_from_slice(&inputs[me]);
    group.reduce_scatter_arena::<T, T>(reduce, 64, 2 << 20, &counts).unwrap();
    same(&format!("{what}, arena reduce-scatter"), group.arena(2 << 20, counts[me]).unwrap(), mine);
    group.all_gather_arena::<T>(2 << 20, 64, &counts).unwrap();
    same(&format!("{what}, arena all-gather"), group.arena(64, count).unwrap(), want);

    let root = count % ranks;
    let mut buffer = inputs[me].clone();
    group.broadcast(root, &mut buffer).unwrap();
    same(&format!("{what}, broadcast"), &buffer, &inputs[root]);
    group.arena_mut(0, count).unwrap().copy_from_slice(&inputs[me]);
    group.broadcast_arena::<T>(root, 0, count).unwrap();
    same(&format!("{what}, arena broadcast"), group.arena(0, count).unwrap(), &inputs[root]);
    group.barrier().unwrap();
}

#[test]
fn f32_matches_the_specification_on_every_path() {
    every_path::<f32>();
}

#[test]
fn other_floats_match_the_specification_on_every_path() {
    every_path::<bf16>();
    every_path::<f16>();
    every_path::<f64>();
}

#[test]
fn integers_match_the_specification_on_every_path() {
    every_path::<i32>();
    every_path::<i64>();
}

/// What a hierarchical all-reduce needs: sums of a node that are not rounded yet.
#[test]
fn partial_sums_keep_the_accumulator() {
    for count in [10, 100_000] {
        with_ranks(3, options(1 << 20), |group| {
            let me = group.local_rank();
            let inputs: Vec<Vec<bf16>> = (0..3).map(|r| noise(r, count)).collect();
            let want: Vec<f32> = expected(Operation::Sum, &inputs, &[1.0; 3]);
            let counts = [count / 2, 3, count - count / 2 - 3];
            let start: usize = counts[..me].iter().sum();
            let mut partial = vec![0.0_f32; counts[me]];
            group.reduce_scatter(Reduce::new(Operation::Sum), &inputs[me], &counts, &mut partial).unwrap();
            same("partial sums", &partial, &want[start..start + counts[me]]);
            group.arena_mut(0, count).unwrap().copy_from_slice(&inputs[me]);
            let sum = Reduce::new(Operation::Sum);
            group.reduce_scatter_arena::<bf16, f32>(sum, 0, 512 << 10, &counts).unwrap();
            same(
                "partial sums",
                group.arena(512 << 10, counts[me]).unwrap(),
                &want[start..start + counts[me]],
            );
        });
    }
}
