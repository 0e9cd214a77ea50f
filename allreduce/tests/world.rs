//! Worlds of threads on the nodes that a test names: every way gives the bits of one process.
#![allow(missing_docs, clippy::unwrap_used, reason = "helpers of tests stand outside of them")]

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use muster_allreduce::{CostModel, Error, Listener, Member, Membership, Pending, SumBuffer, World, order};
use muster_kernels::rng;
use muster_proto::{Generation, Rank};

/// A name that no other test uses.
fn run_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("world-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The members of a world whose nodes have so many ranks, each with a port of its own.
fn members(nodes: &[usize]) -> (Vec<Member>, Vec<Listener>) {
    let (mut members, mut listeners) = (Vec::new(), Vec::new());
    for (node, &ranks) in nodes.iter().enumerate() {
        for rank in 0..ranks {
            let listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
            let addresses = vec![listener.address().unwrap()];
            members.push(Member { id: format!("{node}.{rank}"), node: format!("node-{node}"), addresses });
            listeners.push(listener);
        }
    }
    (members, listeners)
}

/// Runs a function on every rank of a world, one thread each.
fn with_world<R: Send>(nodes: &[usize], budget: Duration, f: impl Fn(&mut World) -> R + Sync) -> Vec<R> {
    let (members, listeners) = members(nodes);
    let run = run_id();
    let membership = Membership::new(&run, Generation(3), members, CostModel::default()).unwrap();
    std::thread::scope(|s| {
        let start = |(rank, listener)| {
            let (membership, f) = (membership.clone(), &f);
            s.spawn(move || {
                let options =
                    common::options(b"sixteen bytes or more", budget.min(Duration::from_secs(1)), budget);
                f(&mut World::join(membership, Rank(rank as u32), Some(listener), options).unwrap())
            })
        };
        let threads: Vec<_> = listeners.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

const _: () = {
    const fn goes_to_other_threads<T: Send>() {}
    const fn is_shared<T: Send + Sync>() {}
    goes_to_other_threads::<SumBuffer>();
    goes_to_other_threads::<Pending>();
    is_shared::<World>();
};

const LONG: Duration = Duration::from_secs(60);

/// What a rank contributes to a buffer: numbers whose sum depends on the order.
fn noise(rank: usize, buffer: usize, len: usize) -> Vec<f32> {
    let key = (rank * 100 + buffer) as u64;
    let number = |i: u64| {
        let bits = (rng::uniform(key, i) * 4e9) as u32;
        (bits as f32 - 2e9) / (1_u32 << (bits % 20)) as f32
    };
    (0..len as u64).map(number).collect()
}

/// The sum in the canonical order, by one process.
fn oracle(nodes: &[usize], buffer: usize, len: usize) -> Vec<f32> {
    let inputs: Vec<Vec<f32>> = (0..nodes.iter().sum()).map(|rank| noise(rank, buffer, len)).collect();
    (0..len).map(|i| order::fold(nodes, |rank| Some(inputs[rank][i]), |a, b| a + b).unwrap()).collect()
}

fn bits(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

/// Lengths around the borders of paths: nothing, less than a line, one line per rank, one slot, one chunk and more.
const LENS: [usize; 8] = [0, 1, 15, 100, 5_003, 100_000, (1 << 20) + 17, 2_500_001];

fn every_length(nodes: &[usize]) {
    let wants: Vec<Vec<f32>> = LENS.iter().enumerate().map(|(i, &len)| oracle(nodes, i, len)).collect();
    with_world(nodes, LONG, |world| {
        let me = world.rank().0 as usize;
        let mut buffers = world.buffers(&LENS).unwrap();
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.iter().all(|&x| x == 0.0) && buffer.as_ptr().addr() % 64 == 0);
            buffer.copy_from_slice(&noise(me, i, LENS[i]));
        }
        // All under way at once, and small operations between them.
        let pending: Vec<_> = buffers.into_iter().map(|b| world.all_reduce(b, "bucket")).collect();
        let counts: Vec<u64> = (0..world.world_size() as u64).map(|r| r % 3).collect();
        let mine = vec![me as i64; counts[me] as usize];
        let all = world.all_gather(mine, &counts, "facts").unwrap();
        let want: Vec<i64> =
            counts.iter().enumerate().flat_map(|(r, &c)| vec![r as i64; c as usize]).collect();
        assert_eq!(all, want);
        for (i, pending) in pending.into_iter().enumerate() {
            let (buffer, statistics) = pending.wait().unwrap();
            assert!(bits(&buffer) == bits(&wants[i]), "{nodes:?}: {} elements at rank {me}", LENS[i]);
            assert_eq!(statistics.bytes, 4 * LENS[i] as u64);
        }
        // Memory that the others don't see takes another way to the same bits.
        for i in [3, 5, 6] {
            let private = SumBuffer::from(&noise(me, i, LENS[i])[..]);
            let (buffer, _) = world.all_reduce(private, "private").wait().unwrap();
            assert!(bits(&buffer) == bits(&wants[i]), "{nodes:?}: {} private elements", LENS[i]);
        }
    });
}

#[test]
fn one_node_has_the_bits_of_one_process() {
    for nodes in [[1], [2], [3], [4]] {
        every_length(&nodes);
    }
}

#[test]
fn rails_have_the_bits_of_one_process() {
    every_length(&[2, 2]);
    every_length(&[3, 3]);
    every_length(&[2, 2, 2]);
}

#[test]
fn sockets_have_the_bits_of_one_process() {
    every_length(&[1, 1]);
    every_length(&[2, 1]);
}

#[test]
fn buffers_outlive_their_world_and_belong_to_no_other() {
    let buffers = with_world(&[2], LONG, |world| {
        let mut buffers = world.buffers(&[1000, 10]).unwrap();
        assert!(matches!(world.buffers(&[1]), Err(Error::Config { .. })), "once");
        buffers[1].fill(world.rank().0 as f32 + 1.0);
        let small = buffers.pop().unwrap();
        let (small, _) = world.all_reduce(small, "small").wait().unwrap();
        assert_eq!(&small[..], [3.0; 10]);
        small
    });
    let buffers = std::sync::Mutex::new(buffers);
    with_world(&[2], LONG, |world| {
        let old = buffers.lock().unwrap().pop().unwrap();
        assert_eq!(&old[..], [3.0; 10], "still there");
        let error = world.all_reduce(old, "old").wait().unwrap_err();
        assert!(error.to_string().contains("another group"), "{error}");
        let (sum, _) = world.all_reduce(SumBuffer::from(&[1.0][..]), "new").wait().unwrap();
        assert_eq!(&sum[..], [2.0], "a wrong argument ends nothing");
    });
}

#[test]
fn buffers_of_other_lengths_are_a_mismatch() {
    let errors = with_world(&[2], LONG, |world| {
        let lens = [100, 200 + world.rank().0 as usize];
        world.buffers(&lens).unwrap_err()
    });
    assert!(errors.iter().all(|e| matches!(e, Error::Mismatch { .. })), "{errors:?}");
}

#[test]
fn a_name_that_differs_is_a_mismatch_on_every_rank() {
    for nodes in [&[3][..], &[2, 2], &[1, 1]] {
        let all_have_it = Barrier::new(nodes.iter().sum());
        let errors = with_world(nodes, LONG, |world| {
            let name = if world.rank() == Rank(1) { "bucket 2" } else { "bucket 1" };
            let error = world.all_reduce(SumBuffer::from(&[1.0; 5000][..]), name).wait().unwrap_err();
            let again = world.all_reduce(SumBuffer::from(&[1.0][..]), "later").wait().unwrap_err();
            assert_eq!(error.to_string(), again.to_string());
            all_have_it.wait();
            error
        });
        assert!(errors.iter().all(|e| matches!(e, Error::Mismatch { .. })), "{nodes:?}: {errors:#?}");
    }
}

#[test]
fn an_abort_reaches_every_node_and_needs_nobody() {
    for nodes in [&[3][..], &[2, 2], &[1, 1]] {
        let (posted, all_have_it) = (Barrier::new(nodes.iter().sum()), Barrier::new(nodes.iter().sum()));
        let errors = with_world(nodes, LONG, |world| {
            world.all_gather(vec![1_i32], &vec![1; world.world_size()], "start").unwrap();
            let error = if world.rank() == Rank(1) {
                posted.wait();
                world.abort("a test wants it");
                world.all_gather(vec![1_i32], &vec![1; world.world_size()], "later").unwrap_err()
            } else {
                let pending = world.all_reduce(SumBuffer::from(&[1.0; 5000][..]), "bucket");
                posted.wait();
                pending.wait().unwrap_err()
            };
            all_have_it.wait();
            error
        });
        assert!(errors.iter().all(|e| e.culprit() == Some(Rank(1))), "{nodes:?}: {errors:#?}");
    }
}

#[test]
fn a_member_that_never_comes_is_named_at_the_deadline() {
    let (members, mut listeners) = members(&[3]);
    let membership = Membership::new(&run_id(), Generation(1), members, CostModel::default()).unwrap();
    let budget = Duration::from_millis(400);
    let begun = Instant::now();
    std::thread::scope(|s| {
        let join = |rank: u32, listener| {
            let membership = membership.clone();
            s.spawn(move || {
                let options = common::options(b"sixteen bytes or more", budget, budget);
                World::join(membership, Rank(rank), Some(listener), options).unwrap_err()
            })
        };
        listeners.pop();
        let threads: Vec<_> = listeners.into_iter().enumerate().map(|(r, l)| join(r as u32, l)).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap().culprit(), Some(Rank(2)));
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_join_that_nobody_wants_any_more_ends_at_once() {
    let (members, mut listeners) = members(&[2]);
    let membership = Membership::new(&run_id(), Generation(1), members, CostModel::default()).unwrap();
    let options = common::options(b"sixteen bytes or more", Duration::from_secs(1), LONG);
    let cancelled = std::sync::atomic::AtomicBool::new(false);
    let begun = Instant::now();
    std::thread::scope(|s| {
        let (cancelled, listener) = (&cancelled, listeners.pop());
        let thread = s.spawn(move || {
            World::join_unless(membership, Rank(1), listener, options, cancelled).unwrap_err()
        });
        cancelled.store(true, Ordering::Release);
        let error = thread.join().unwrap();
        assert!(matches!(error, Error::Aborted { peer: Rank(1), .. }), "{error}");
    });
    assert!(begun.elapsed() < LONG / 2);
}

/// A rank that leaves while others still want something of it is lost to them, also on other nodes.
#[test]
fn a_rank_that_leaves_is_lost_to_the_others() {
    for nodes in [&[2][..], &[2, 2]] {
        let last = nodes.iter().sum::<usize>() as u32 - 1;
        let all_have_it = Barrier::new(last as usize);
        let errors = with_world(nodes, LONG, |world| {
            world.all_gather(vec![1_i32], &vec![1; world.world_size()], "start").unwrap();
            if world.rank() == Rank(last) {
                return None;
            }
            let error = world.all_reduce(SumBuffer::from(&[1.0; 50_000][..]), "bucket").wait().unwrap_err();
            all_have_it.wait();
            Some(error)
        });
        for error in errors.iter().flatten() {
            assert_eq!(error.culprit(), Some(Rank(last)), "{nodes:?}: {error}");
        }
    }
}
