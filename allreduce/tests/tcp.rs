//! Communicators over real sockets, one thread per rank.
#![allow(clippy::unwrap_used, reason = "helpers of tests stand outside of them")]

mod common;

use std::time::Duration;

use muster_allreduce::plan::Algorithm;
use muster_allreduce::{CommOptions, Communicator, CostModel, Error, Listener, Membership, OpOptions, Wire};
use muster_proto::{Generation, Rank};

fn options() -> CommOptions {
    common::options(b"sixteen bytes or more", Duration::from_secs(2), Duration::from_secs(20))
}

/// One communicator per rank, each in its thread; returns what they return, in rank order.
fn world<R: Send>(n: usize, options: &CommOptions, f: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let listeners: Vec<Listener> =
        (0..n).map(|_| Listener::bind(([127, 0, 0, 1], 0).into()).unwrap()).collect();
    let members = common::members(listeners.iter().map(|l| l.address().unwrap()));
    let membership = Membership::new("test", Generation(1), members, CostModel::default()).unwrap();
    std::thread::scope(|scope| {
        let join = |(rank, listener): (usize, Listener)| {
            let (membership, f) = (membership.clone(), &f);
            scope.spawn(move || {
                let me = Rank(rank as u32);
                f(Communicator::new(membership, me, Some(listener), options.clone()).unwrap())
            })
        };
        let threads: Vec<_> = listeners.into_iter().enumerate().map(join).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn numbers(rank: u32, len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 1000) as f32 * 0.37 + rank as f32 * 1.13).collect()
}

#[test]
fn every_algorithm_reduces_over_sockets() {
    for (n, streams) in [(1, 1), (2, 1), (2, 4), (3, 2), (4, 1), (5, 1)] {
        let options = CommOptions { streams, ..options() };
        let results = world(n, &options, |c| {
            let mut results = Vec::new();
            for algorithm in Algorithm::ALL.map(Some).into_iter().chain([None]) {
                for len in [0, 1, 1000, 300_001] {
                    let options = OpOptions { algorithm, ..OpOptions::mean("x") };
                    let done = c.all_reduce(numbers(c.rank().0, len), &options).wait().unwrap();
                    assert_eq!(done.total_weight, n as f32);
                    results.push((algorithm, done.buffers));
                }
            }
            results
        });
        for ranks in results.windows(2) {
            assert!(ranks[0] == ranks[1], "{n} ranks do not agree");
        }
        for (algorithm, values) in &results[0] {
            for (i, value) in values.iter().enumerate().step_by(997) {
                let mean = (0..n as u32).map(|r| numbers(r, i + 1)[i] as f64).sum::<f64>() / n as f64;
                assert!(
                    (f64::from(*value) - mean).abs() < 1e-3 * mean.abs().max(1.0),
                    "{algorithm:?} {i}: {value} {mean}"
                );
            }
        }
    }
}

#[test]
fn many_operations_run_beside_each_other() {
    world(3, &options(), |c| {
        let post = |i: usize| {
            let wire = if i.is_multiple_of(2) { Wire::Bf16 } else { Wire::AsStored };
            c.all_reduce(
                vec![1.0_f32; 5000 * (i % 7)],
                &OpOptions { wire, ..OpOptions::sum(&format!("bucket {i}")) },
            )
        };
        let handles: Vec<_> = (0..50).map(post).collect();
        drop(c.barrier("dropped"));
        for (i, handle) in handles.into_iter().enumerate().rev() {
            assert_eq!(handle.wait().unwrap().buffers, vec![3.0; 5000 * (i % 7)]);
        }
        c.barrier("end").wait().unwrap();
        assert!(c.flight_record(3).len() == 3);
        assert!(c.chrome_trace().contains("bucket 49"));
    });
}

#[test]
fn the_other_collectives_work_over_sockets() {
    world(3, &options(), |c| {
        let me = c.rank().0;
        let counts = [5, 0, 70_000];
        let own = vec![me as i32; counts[me as usize] as usize];
        let all = vec![0; 70_005];
        let gathered = c.all_gather(own, all, &counts, &OpOptions::sum("gather")).wait().unwrap().buffers.1;
        assert!(gathered[..5].iter().all(|x| *x == 0) && gathered[5..].iter().all(|x| *x == 2));
        let shard = vec![0_i32; counts[me as usize] as usize];
        let options = OpOptions::sum("scatter");
        let (_, shard) = c.reduce_scatter(gathered, shard, &counts, &options).wait().unwrap().buffers;
        assert!(shard.iter().all(|x| *x == if me == 0 { 0 } else { 6 }));
        for root in 0..3 {
            let values = vec![f64::from(me); 40_000];
            let got = c.broadcast(Rank(root), values, &OpOptions::sum("weights")).wait().unwrap().buffers;
            assert!(got.iter().all(|x| *x == f64::from(root)));
        }
        if me == 0 {
            let state = c.send(Rank(2), vec![7_i64; 1 << 20], &OpOptions::sum("state"));
            state.wait().unwrap();
        } else if me == 2 {
            let state = c.receive(Rank(0), vec![0_i64; 1 << 20], &OpOptions::sum("state"));
            assert!(state.wait().unwrap().buffers.iter().all(|x| *x == 7));
        }
        c.verify(1, &[11, 12]).unwrap();
        let error = c.verify(2, &[11, if me == 1 { 13 } else { 12 }]).unwrap_err();
        assert!(matches!(error, Error::Divergence { rank: Rank(1), bucket: 1, step: 2 }), "{error}");
    });
}

#[test]
fn a_different_operation_is_an_error_everywhere() {
    let errors = world(3, &options(), |c| {
        let len = if c.rank().0 == 1 { 10 } else { 11 };
        let failed = c.all_reduce(vec![1.0_f32; len], &OpOptions::sum("gradients")).wait().unwrap_err();
        assert_eq!(failed.buffers.len(), len);
        failed.error
    });
    for error in errors {
        assert!(matches!(&error, Error::Mismatch { mine, theirs, .. } if mine != theirs), "{error}");
    }
}

#[test]
fn an_abort_needs_nobody_and_reaches_everybody() {
    let errors = world(3, &options(), |c| {
        // The others may still be in it when the abort comes.
        let _ = c.barrier("all here").wait();
        if c.rank().0 == 2 {
            let pending = c.receive(Rank(0), vec![0_i32; 10], &OpOptions::sum("never sent"));
            c.abort("out of memory");
            return pending.wait().unwrap_err().error;
        }
        c.barrier("never").wait().map(|_| ()).unwrap_err().error
    });
    for error in errors {
        assert!(matches!(&error, Error::Aborted { peer: Rank(2), .. }), "{error}");
    }
}

#[test]
fn bad_arguments_are_typed_errors_and_break_nothing() {
    world(2, &options(), |c| {
        let counts = [1_u64];
        let bad =
            c.all_gather(vec![1.0_f32], vec![0.0_f32; 2], &counts, &OpOptions::sum("x")).wait().unwrap_err();
        assert!(matches!(bad.error, Error::Length { .. }), "{}", bad.error);
        let bad = c.broadcast(Rank(9), vec![1.0_f32], &OpOptions::sum("x")).wait().unwrap_err();
        assert!(matches!(bad.error, Error::NoSuchRank { .. }), "{}", bad.error);
        let bad = c.send(c.rank(), vec![1.0_f32], &OpOptions::sum("x")).wait().unwrap_err();
        assert!(matches!(bad.error, Error::Config { .. }), "{}", bad.error);
        let bad = c.all_reduce(vec![1_i32], &OpOptions::mean("x")).wait().unwrap_err();
        assert!(matches!(bad.error, Error::Unsupported { .. }), "{}", bad.error);
        let weight = OpOptions { weight: f32::NAN, ..OpOptions::sum("x") };
        assert!(c.all_reduce(vec![1.0_f32], &weight).wait().is_err());
        assert_eq!(c.all_reduce(vec![1_i32], &OpOptions::sum("x")).wait().unwrap().buffers, [2]);
    });
}

#[test]
fn weight_zero_is_never_read() {
    world(3, &options(), |c| {
        let absent = c.rank().0 == 1;
        let value = if absent { f32::NAN } else { 3.0 };
        for len in [1, 100_000] {
            let options = OpOptions { weight: if absent { 0.0 } else { 2.0 }, ..OpOptions::mean("x") };
            let done = c.all_reduce(vec![value; len], &options).wait().unwrap();
            assert!(done.buffers.iter().all(|x| *x == 3.0) && done.total_weight == 4.0);
        }
    });
}

#[test]
fn a_rank_that_leaves_while_it_is_needed_is_named() {
    let errors = world(2, &options(), |c| {
        let here = c.barrier("all here").wait();
        if c.rank().0 == 1 {
            return None;
        }
        here.unwrap();
        Some(c.barrier("too late").wait().unwrap_err().error)
    });
    let error = errors[0].as_ref().unwrap();
    assert!(matches!(error, Error::PeerLost { loss, .. } if loss.peer == Rank(1)), "{error}");
}

#[test]
fn a_handle_is_a_future() {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};
    world(2, &options(), |c| {
        let mut handle = std::pin::pin!(c.all_reduce(vec![1.0_f64; 10], &OpOptions::sum("x")));
        let waker = Waker::noop();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            match handle.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Ready(done) => break assert_eq!(done.unwrap().buffers, [2.0; 10]),
                Poll::Pending => assert!(std::time::Instant::now() < deadline, "the future never ends"),
            }
            std::thread::yield_now();
        }
    });
}
