//! Real processes in shared memory, one of which is killed or stopped at a random moment.
//!
//! Survivors must name it in time, must have finished the same operations with the same bits, and must be able
//! to go on as a smaller group from intact inputs. `MUSTER_FAULT_TRIALS=200` runs the long set; a trial's seed
//! is in its failure message.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests stand outside of them"
)]

mod process;

use std::time::{Duration, Instant};

use muster_allreduce::Operation;
use muster_allreduce::shm::{Cause, Reduce, ShmError, ShmGroup, ShmOptions};
use process::{Fault, Rank, inputs, role, trials};
use rustix::process::Signal;
use xxhash_rust::xxh3::xxh3_64;

const RANKS: usize = 4;
const ARENA: usize = 4 << 20;

fn options(run: &str, generation: u64, rank: usize, ranks: usize, deadline_ms: u64) -> ShmOptions {
    ShmOptions {
        arena_bytes: ARENA,
        progress_deadline: Duration::from_millis(deadline_ms),
        ..ShmOptions::new(run, generation, rank, ranks)
    }
}

/// Operation number `operation`: all paths in turn. Returns a digest of the result.
fn step(group: &mut ShmGroup, inputs: &[Vec<f32>], operation: u64) -> Result<u64, ShmError> {
    let mean = Reduce::new(Operation::Mean);
    let input = &inputs[operation as usize % inputs.len()];
    let count = input.len();
    let mut out = vec![0.0_f32; count];
    if operation.is_multiple_of(2) {
        group.all_reduce(mean, input, &mut out)?;
    } else {
        group.arena_mut(0, count)?.copy_from_slice(input);
        let result = group.all_reduce_arena::<f32>(mean, 0, ARENA / 2, count);
        assert_eq!(group.arena::<f32>(0, count)?, input, "the input is intact, whatever happens");
        result?;
        out.copy_from_slice(group.arena(ARENA / 2, count)?);
    }
    Ok(xxh3_64(bytemuck::cast_slice(&out)))
}

/// A rank: works until somebody is lost, then goes on with the others.
#[test]
#[ignore = "a rank of the tests below, which start it"]
fn rank_process() {
    let Some(role) = role() else { return };
    let (run, me, deadline) = (&role[0], role[1].parse().unwrap(), role[2].parse().unwrap());
    let mut group = ShmGroup::join(options(run, 1, me, RANKS, deadline)).unwrap();
    let inputs = inputs(me);
    group.barrier().unwrap();
    println!("\nREADY");
    let (mut done, mut digest) = (0_u64, 0_u64);
    let error = loop {
        match step(&mut group, &inputs, done) {
            Ok(d) => (done, digest) = (done + 1, digest.rotate_left(5) ^ d),
            Err(error) => break error,
        }
    };
    let cause = match &error {
        ShmError::PeerLost { .. } => "lost",
        ShmError::Evicted { .. } => "evicted",
        _ => "other",
    };
    let culprit = error.culprit().unwrap();
    println!("\nEND {done} {digest:x} {culprit} {cause} {error}");
    if culprit == me {
        return;
    }
    drop(group);
    // The operation that failed, once more among those that are left.
    let rank = me - usize::from(me > culprit);
    let mut group = ShmGroup::join(options(run, 2, rank, RANKS - 1, 30_000)).unwrap();
    let again = step(&mut group, &inputs, done).unwrap();
    println!("\nAGAIN {again:x}");
}

fn trial(fault: Fault, seed: u64) {
    let run = format!("fault-{}-{fault:?}-{seed}", std::process::id());
    let deadline_ms = if fault == Fault::Kill { 30_000 } else { 800 };
    let mut ranks: Vec<Rank> =
        (0..RANKS).map(|rank| Rank::start(&format!("{run} {rank} {deadline_ms}"))).collect();
    ranks.iter_mut().for_each(|rank| drop(rank.expect("READY")));
    let victim = fault.strike(&ranks, seed, Duration::from_millis(40));
    let begun = Instant::now();
    let mut ends = Vec::new();
    for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
        let end = process.expect("END");
        let words: Vec<&str> = end.splitn(5, ' ').collect();
        let what = format!("{fault:?} of {victim}, seed {seed}, rank {rank}: {end}");
        assert_eq!((words[2].parse(), words[3]), (Ok(victim), "lost"), "{what}");
        ends.push((words[..2].join(" "), what));
    }
    let took = begun.elapsed();
    let allowed = if fault == Fault::Kill { 1000 } else { deadline_ms + 1000 };
    assert!(took < Duration::from_millis(allowed), "seed {seed}: noticed after {took:?}");
    assert!(ends.iter().all(|(end, _)| *end == ends[0].0), "different outcomes: {ends:#?}");
    let survivors = ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim);
    let again: Vec<_> = survivors.map(|(_, process)| process.expect("AGAIN")).collect();
    assert!(again.iter().all(|d| *d == again[0]), "seed {seed}: {again:?}");
    if fault == Fault::Stop {
        ranks[victim].signal(Signal::CONT);
        let end = ranks[victim].expect("END");
        assert!(end.contains(" evicted "), "seed {seed}: {end}");
    }
}

#[test]
fn a_killed_rank_is_named_within_a_second_and_the_others_agree() {
    (0..trials(6)).for_each(|seed| trial(Fault::Kill, seed));
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline_and_the_others_agree() {
    (0..trials(3)).for_each(|seed| trial(Fault::Stop, 1000 + seed));
}

/// A group that waits for nothing in particular burns nothing.
#[test]
fn an_idle_group_uses_no_cpu() {
    let run = format!("idle-{}", std::process::id());
    let cpu = || {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    };
    std::thread::scope(|s| {
        let waiting = s.spawn(|| {
            let mut group = ShmGroup::join(options(&run, 1, 0, 2, 30_000)).unwrap();
            group.barrier().unwrap();
            let before = cpu();
            group.barrier().unwrap();
            cpu() - before
        });
        let mut group = ShmGroup::join(options(&run, 1, 1, 2, 30_000)).unwrap();
        group.barrier().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        group.barrier().unwrap();
        let spent = waiting.join().unwrap();
        assert!(spent < Duration::from_millis(10), "waiting for 500 ms took {spent:?} of CPU");
    });
}

/// What a lost rank costs is an error, not an infinite wait, also where it was alone in noticing.
#[test]
fn causes_are_told_apart() {
    let texts =
        [Cause::Gone, Cause::Silent(Duration::from_millis(7)), Cause::ReportedBy(3)].map(|c| c.to_string());
    assert_eq!(texts, ["its process is gone", "no progress for 7 ms", "reported by local rank 3"]);
}
