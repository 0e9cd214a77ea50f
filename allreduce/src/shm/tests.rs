//! Groups of threads: every path, type and size against the scalar specification, on every rank.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use half::{bf16, f16};
use muster_kernels::reduce::{Number, ReduceOp};
use muster_kernels::{reference, rng};

use super::*;

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
    let op = match how {
        Operation::Sum | Operation::Mean => ReduceOp::Sum,
        Operation::Min => ReduceOp::Min,
        Operation::Max => ReduceOp::Max,
    };
    let total = order::total_weight(&[n], weights);
    let divisor = (how == Operation::Mean && total != 0.0).then_some(total);
    let element = |i: usize| {
        let column: Vec<_> = inputs.iter().map(|x| Some(x[i])).collect();
        reference::reduce(op, &[n], &column, weights, divisor)
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

/// Ranks that begin different operations all learn of it, and can go on.
#[test]
fn a_mismatch_is_an_error_on_every_rank() {
    let errors = with_ranks(3, options(0), |group| {
        let me = group.local_rank();
        let sum = Reduce::new(Operation::Sum);
        let mut texts = Vec::new();
        // Another count, a path with other flags, other counts, another type.
        let mut a = vec![1.0_f32; if me == 1 { 20_000 } else { 5 }];
        texts.push(group.all_reduce_in_place(sum, &mut a).unwrap_err());
        let counts = if me == 2 { [1, 2, 3] } else { [2, 2, 2] };
        texts.push(group.all_gather(&vec![0_i64; counts[me]], &counts, &mut [0; 6]).unwrap_err());
        texts.push(if me == 0 {
            group.barrier().unwrap_err()
        } else {
            group.all_reduce_in_place(sum, &mut vec![0_i32; 50_000]).unwrap_err()
        });
        let mut x = vec![me as f32; 100_000];
        group.all_reduce_in_place(sum, &mut x).unwrap();
        assert!(x.iter().all(|&x| x == 3.0));
        texts
    });
    for errors in &errors {
        for (i, error) in errors.iter().enumerate() {
            assert!(
                matches!(error, ShmError::Mismatch { operation, .. } if *operation == i as u64 + 1),
                "{error}"
            );
        }
    }
    let text = errors[0][0].to_string();
    assert_eq!(
        text,
        "operation 1 differs: local rank 0 has all-reduce(sum) of 5 f32 from 0, local rank 1 has all-reduce(sum) of \
         20000 f32 from 0"
    );
}

#[test]
fn wrong_arguments_are_errors_before_anybody_is_told() {
    with_ranks(2, options(4096), |group| {
        let error = |r: Result<(), ShmError>| r.unwrap_err().to_string();
        let sum = Reduce::new(Operation::Sum);
        let mean = Reduce::new(Operation::Mean);
        assert!(error(group.all_reduce_in_place(mean, &mut [1_i32])).contains("i32"));
        let odd = Reduce { operation: Operation::Sum, weight: 0.5 };
        assert!(error(group.all_reduce_in_place(odd, &mut [1_i64])).contains("weight"));
        let bad = Reduce { operation: Operation::Sum, weight: f32::NAN };
        assert!(error(group.all_reduce_in_place(bad, &mut [1.0_f32])).contains("finite"));
        assert!(error(group.all_reduce(sum, &[1.0_f32], &mut [])).contains("expected 1"));
        assert!(error(group.all_gather(&[1.0_f32], &[1], &mut [0.0])).contains("counts"));
        assert!(error(group.broadcast(2, &mut [1.0_f32])).contains("root"));
        assert!(error(group.all_reduce_arena::<f32>(sum, 1, 0, 1)).contains("multiple of 64"));
        assert!(error(group.all_reduce_arena::<f32>(sum, 0, 64, 17)).contains("overlaps"));
        assert!(error(group.all_reduce_arena::<f32>(sum, 0, 0, 1025)).contains("4096"));
        assert!(group.arena::<f64>(4096, 1).is_err() && group.arena::<f64>(0, usize::MAX).is_err());
        group.barrier().unwrap();
    });
}

/// A weight of 0 on every rank: nobody has data, and the mean is defined nevertheless.
#[test]
fn nobody_has_data() {
    for count in [3, 50_000] {
        with_ranks(2, options(0), |group| {
            let none = Reduce { operation: Operation::Mean, weight: 0.0 };
            let mut x = vec![f32::NAN; count];
            group.all_reduce_in_place(none, &mut x).unwrap();
            assert!(x.iter().all(|&x| x == 0.0), "absent contributions are never read");
        });
    }
}

#[test]
fn a_rank_that_leaves_is_lost_to_those_that_go_on() {
    let start = Instant::now();
    let errors = with_ranks(3, options(0), |group| {
        group.barrier().unwrap();
        if group.local_rank() == 1 {
            return None;
        }
        let error = group.all_reduce_in_place(Reduce::new(Operation::Sum), &mut [1.0_f32]).unwrap_err();
        let again = group.barrier().unwrap_err();
        assert_eq!(error.to_string(), again.to_string(), "a group that has failed stays failed");
        Some(error)
    });
    for error in [&errors[0], &errors[2]].map(|e| e.as_ref().unwrap()) {
        assert!(matches!(error, ShmError::PeerLost { peer: 1, operation: 2, .. }), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(10), "noticed, not waited for");
}

#[test]
fn a_rank_that_stands_still_is_lost_at_the_deadline() {
    let patient = ShmOptions { progress_deadline: Duration::from_millis(300), ..options(0) };
    let errors = with_ranks(3, patient, |group| {
        group.barrier().unwrap();
        if group.local_rank() == 2 {
            std::thread::sleep(Duration::from_millis(900));
        }
        group.all_reduce_in_place(Reduce::new(Operation::Sum), &mut vec![1.0_f32; 100_000]).unwrap_err()
    });
    assert_eq!(errors[0].culprit(), Some(2), "{}", errors[0]);
    assert_eq!(errors[1].culprit(), Some(2), "{}", errors[1]);
    assert!(matches!(errors[2], ShmError::Evicted { me: 2, .. }), "{}", errors[2]);
    assert!(errors[0].hint().unwrap().contains("local rank 2"));
}

#[test]
fn an_abort_waits_for_nobody_and_reaches_everybody() {
    let errors = with_ranks(2, options(0), |group| {
        if group.local_rank() == 0 {
            let handle = group.abort_handle();
            let abort = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                handle.abort();
            });
            let error = group.barrier().unwrap_err();
            abort.join().unwrap();
            // The other one still waits for this.
            std::thread::sleep(Duration::from_millis(100));
            return error;
        }
        std::thread::sleep(Duration::from_millis(100));
        group.all_reduce_in_place(Reduce::new(Operation::Sum), &mut vec![1.0_f32; 100_000]).unwrap_err()
    });
    assert!(
        errors.iter().all(|e| matches!(e, ShmError::Aborted { by: 0, .. } | ShmError::Mismatch { .. })),
        "{errors:?}"
    );
}

#[test]
fn whoever_does_not_come_is_named() {
    let id = run_id();
    let join = |rank, generation| {
        let base = ShmOptions::new(&id, generation, rank, 2);
        ShmGroup::join(ShmOptions { start_deadline: Duration::from_millis(200), ..base })
    };
    let alone = join(1, 1).unwrap_err();
    assert!(matches!(alone, ShmError::Missing { me: 1, missing: 0, .. }), "{alone}");
    std::thread::scope(|s| {
        let first = s.spawn(|| join(0, 1).unwrap_err());
        assert!(matches!(join(1, 2).unwrap_err(), ShmError::Missing { .. }), "another generation");
        let error = first.join().unwrap();
        assert!(matches!(error, ShmError::Missing { me: 0, missing: 1, .. }), "{error}");
    });
    assert!(matches!(ShmGroup::join(ShmOptions::new(&id, 1, 2, 2)), Err(ShmError::Config { .. })));
    assert!(matches!(ShmGroup::join(ShmOptions::new(&id, 1, 0, 0)), Err(ShmError::Config { .. })));
}

#[test]
fn arenas_of_different_sizes_do_not_join() {
    let id = run_id();
    let join = |rank: usize| {
        let base = ShmOptions::new(&id, 1, rank, 2);
        ShmGroup::join(ShmOptions { arena_bytes: 4096 * (rank + 1), ..base }).unwrap_err().to_string()
    };
    std::thread::scope(|s| {
        let first = s.spawn(|| join(0));
        assert!(join(1).contains("arena of 4096 bytes, expected rank 0 of 2 with an arena of 8192"));
        assert!(first.join().unwrap().contains("arena of 8192"));
    });
}

/// Garbage at the socket of a rank costs nothing but the connection.
#[test]
fn strangers_and_garbage_do_not_disturb_the_start() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    let id = run_id();
    let hash = xxhash_rust::xxh3::xxh3_64(id.as_bytes());
    let join = |rank| ShmGroup::join(ShmOptions::new(&id, 1, rank, 2)).unwrap().barrier().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| join(0));
        let address = SocketAddr::from_abstract_name(format!("muster-shm/{hash:016x}/1/0")).unwrap();
        // A stream socket can't even connect to one of packets.
        assert!(UnixStream::connect_addr(&address).is_err());
        let garbage = |packet: &[u8]| {
            let flags = rustix::net::SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::SEQPACKET,
                flags,
                None,
            )
            .unwrap();
            let name = format!("muster-shm/{hash:016x}/1/0");
            let address = rustix::net::SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            let until = Instant::now() + Duration::from_secs(5);
            while rustix::net::connect(&socket, &address).is_err() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            rustix::net::send(&socket, packet, rustix::net::SendFlags::empty()).unwrap();
        };
        garbage(&[0; 5]);
        garbage(&[0xff; 4096]);
        join(1);
    });
}
