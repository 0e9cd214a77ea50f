//! Many ranks that do nothing, and more elements than 32 bits count.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests stand outside of them")]

mod common;

use std::sync::Barrier;
use std::time::Duration;

use half::bf16;
use muster_allreduce::plan::Algorithm;
use muster_allreduce::shm::{Reduce, ShmGroup, ShmOptions};
use muster_allreduce::{Communicator, CostModel, Listener, Membership, OpOptions, Operation};
use muster_proto::{Generation, Rank};
use rustix::time::{ClockId, clock_gettime};

/// One communicator per rank, each in its thread.
fn world(n: usize, f: impl Fn(Communicator) + Sync) {
    let bind = || Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listeners: Vec<Listener> = (0..n).map(|_| bind()).collect();
    let members = common::members(listeners.iter().map(|l| l.address().unwrap()));
    let membership = Membership::new("scale", Generation(1), members, CostModel::default()).unwrap();
    let options = common::options(b"sixteen bytes or more", Duration::from_secs(10), Duration::from_secs(60));
    std::thread::scope(|scope| {
        for (rank, listener) in listeners.into_iter().enumerate() {
            let (membership, options, f) = (membership.clone(), options.clone(), &f);
            let me = Rank(rank as u32);
            scope.spawn(move || f(Communicator::new(membership, me, Some(listener), options).unwrap()));
        }
    });
}

/// Sockets of this process.
fn sockets() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

fn cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

#[test]
fn sixty_four_idle_ranks_hold_the_connections_of_their_plan_and_use_no_cpu() {
    const RANKS: usize = 64;
    let (all, before) = (Barrier::new(RANKS), sockets());
    world(RANKS, |comm| {
        let options = OpOptions { algorithm: Some(Algorithm::Ring), ..OpOptions::sum("ring") };
        let done = comm.all_reduce(vec![1_i32; 10_000], &options).wait().unwrap();
        assert!(done.buffers.iter().all(|&x| x == RANKS as i32));
        all.wait();
        if comm.rank() == Rank(0) {
            // A listener each, and both ends of one connection to the next rank.
            let held = sockets() - before;
            assert!(held <= 3 * RANKS, "{held} sockets for a ring of {RANKS}");
            let spent = cpu_time();
            std::thread::sleep(Duration::from_secs(1));
            let spent = cpu_time() - spent;
            println!("{held} sockets; {spent:?} of CPU in an idle second");
            assert!(spent < Duration::from_millis(50), "{spent:?} of CPU in an idle second");
        }
        all.wait();
    });
}

/// More than a number of 32 bits with its sign can count: 4.3 GB per rank, so on request only.
const HUGE: usize = (1 << 31) + 12_345;
/// Places that are looked at; all others are 0.
const SPOTS: [usize; 6] = [0, 1, (1 << 30) + 7, (1 << 31) - 1, 1 << 31, HUGE - 1];

fn sparse(rank: usize) -> Vec<bf16> {
    let mut values = vec![bf16::ZERO; HUGE];
    SPOTS.iter().enumerate().for_each(|(i, &at)| values[at] = bf16::from_f32((i + rank) as f32));
    values
}

fn check(values: &[bf16]) {
    for (i, &at) in SPOTS.iter().enumerate() {
        assert_eq!(values[at].to_f32(), (2 * i + 1) as f32, "element {at}");
    }
    let others = values.iter().step_by(1 << 20).filter(|x| **x != bf16::ZERO).count();
    assert!(others <= 1, "{others} elements are not 0, and at most the first may be");
}

fn is_requested() -> bool {
    let is_requested = std::env::var_os("MUSTER_HUGE").is_some();
    if !is_requested {
        println!("skipped: needs 10 GB of memory; MUSTER_HUGE=1 runs it");
    }
    is_requested
}

#[test]
fn more_elements_than_two_to_the_31_travel_over_sockets() {
    if !is_requested() {
        return;
    }
    world(2, |comm| {
        let mine = sparse(comm.rank().0 as usize);
        check(&comm.all_reduce(mine, &OpOptions::sum("huge")).wait().unwrap().buffers);
    });
}

#[test]
fn more_elements_than_two_to_the_31_are_summed_in_shared_memory() {
    if !is_requested() {
        return;
    }
    let run = format!("huge-{}", std::process::id());
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let options = ShmOptions {
                start_deadline: Duration::from_secs(60),
                progress_deadline: Duration::from_secs(60),
                ..ShmOptions::new(&run, 1, rank, 2)
            };
            scope.spawn(move || {
                let mut group = ShmGroup::join(options).unwrap();
                let mut values = sparse(rank);
                group.all_reduce_in_place(Reduce::new(Operation::Sum), &mut values).unwrap();
                check(&values);
            });
        }
    });
}
