//! Real processes over TCP, one of which is killed or stopped at a random moment.
//!
//! Survivors must name it in time, must have the same bits in whatever they finished, and must be able to go on
//! as the next generation. `MUSTER_FAULT_TRIALS=200` runs the long set; a trial's seed is in its failure
//! message.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests stand outside of them"
)]

mod common;
mod process;

use std::time::{Duration, Instant};

use muster_allreduce::{Communicator, CostModel, Error, Listener, Membership, OpOptions};
use muster_proto::{Generation, Rank as Number};
use process::{Fault, Rank, inputs, role, trials};
use xxhash_rust::xxh3::xxh3_64;

const RANKS: usize = 4;
/// Digests that a rank reports: survivors may differ by an operation.
const KEPT: usize = 4;

/// Tells the parent a port and hears everybody's; then joins.
fn join(run: &str, generation: u64, lease: Duration, budget: Duration) -> Communicator {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
    println!("\nPORT {}", listener.address().unwrap().port());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let words: Vec<u16> = line.split_whitespace().map(|w| w.parse().unwrap()).collect();
    let members = common::members(words[1..].iter().map(|&port| ([127, 0, 0, 1], port).into()));
    let world = Membership::new(run, Generation(generation), members, CostModel::default()).unwrap();
    let options = common::options(b"sixteen bytes or more", lease, budget);
    Communicator::new(world, Number(words[0].into()), Some(listener), options).unwrap()
}

fn step(world: &Communicator, inputs: &mut [Vec<f32>], operation: u64) -> Result<u64, Error> {
    let at = operation as usize % inputs.len();
    let input = std::mem::take(&mut inputs[at]);
    let (kept, output) = (input.clone(), vec![0.0_f32; input.len()]);
    let ended = world.all_reduce_into(input, output, &OpOptions::mean("gradients")).wait();
    let (input, result) = match ended {
        Ok(done) => (done.buffers.0, Ok(xxh3_64(bytemuck::cast_slice(&done.buffers.1)))),
        Err(failed) => (failed.buffers.0, Err(failed.error)),
    };
    assert!(input == kept, "the input is intact, whatever happens");
    inputs[at] = input;
    result
}

/// A rank: works until somebody is lost, then goes on with the others.
#[test]
#[ignore = "a rank of the tests below, which start it"]
fn rank_process() {
    let Some(role) = role() else { return };
    let milliseconds = |i: usize| Duration::from_millis(role[i].parse().unwrap());
    let (run, lease, budget) = (&role[0], milliseconds(2), milliseconds(3));
    let world = join(run, 1, lease, budget);
    let mut inputs = inputs(role[1].parse().unwrap());
    world.barrier("start").wait().map_err(|f| f.error).unwrap();
    println!("\nREADY");
    let mut digests = Vec::new();
    let error = loop {
        match step(&world, &mut inputs, digests.len() as u64) {
            Ok(digest) => digests.push(digest),
            Err(error) => break error,
        }
    };
    let culprit = error.culprit().map_or(-1, |rank| i64::from(rank.0));
    let first = digests.len().saturating_sub(KEPT);
    let last: Vec<String> = (first..digests.len()).map(|i| format!("{i}={:x}", digests[i])).collect();
    println!("\nEND {culprit} {} {} {error}", digests.len(), last.join(","));
    drop(world);
    let world = join(run, 2, lease, Duration::from_secs(20));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let again = step(&world, &mut inputs, line.trim().parse().unwrap()).unwrap();
    println!("\nAGAIN {again:x}");
    // Until the others have it too, or have had it and are gone.
    let _ = world.barrier("end").wait();
}

/// Collects the ports and tells them to everybody.
fn introduce(ranks: &mut [&mut Rank]) {
    let ports: Vec<String> = ranks.iter_mut().map(|rank| rank.expect("PORT")).collect();
    for (i, rank) in ranks.iter_mut().enumerate() {
        rank.tell(&format!("{i} {}", ports.join(" ")));
    }
}

fn trial(fault: Fault, seed: u64) {
    let run = format!("tcp-fault-{}-{fault:?}-{seed}", std::process::id());
    let budget_ms = if fault == Fault::Kill { 20_000 } else { 1_500 };
    let start = |rank| Rank::start(&format!("{run} {rank} 1000 {budget_ms}"));
    let mut ranks: Vec<Rank> = (0..RANKS).map(start).collect();
    introduce(&mut ranks.iter_mut().collect::<Vec<_>>());
    ranks.iter_mut().for_each(|rank| drop(rank.expect("READY")));
    let victim = fault.strike(&ranks, seed, Duration::from_millis(100));
    let begun = Instant::now();
    let mut survivors: Vec<&mut Rank> =
        ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim).map(|(_, rank)| rank).collect();
    let ends: Vec<String> = survivors.iter_mut().map(|rank| rank.expect("END")).collect();
    let took = begun.elapsed();
    let what = format!("{fault:?} of {victim}, seed {seed}: {ends:#?}");
    let allowed = if fault == Fault::Kill { 1000 } else { budget_ms + 1500 };
    assert!(took < Duration::from_millis(allowed), "noticed after {took:?}, {what}");
    let words: Vec<Vec<&str>> = ends.iter().map(|end| end.splitn(4, ' ').collect()).collect();
    assert!(words.iter().all(|w| w[0].parse() == Ok(victim)), "{what}");
    let digests: Vec<Vec<&str>> = words.iter().map(|w| w[2].split(',').collect()).collect();
    let done: Vec<u64> = words.iter().map(|w| w[1].parse().unwrap()).collect();
    let fewest = *done.iter().min().unwrap();
    assert!(done.iter().all(|d| d - fewest <= 1), "{what}");
    // What all have finished, as far as reported.
    let at = |list: &[&str], i: u64| {
        list.iter().find(|d| d.starts_with(&format!("{i}="))).map(ToString::to_string)
    };
    if let Some(last) = fewest.checked_sub(1) {
        assert!(digests.iter().all(|d| at(d, last) == at(&digests[0], last)), "{what}");
    }
    introduce(&mut survivors);
    survivors.iter_mut().for_each(|rank| rank.tell(&fewest.to_string()));
    let again: Vec<_> = survivors.iter_mut().map(|rank| rank.expect("AGAIN")).collect();
    assert!(again.iter().all(|d| *d == again[0]), "{what}: {again:?}");
}

#[test]
fn a_killed_rank_is_named_within_a_second_and_the_others_agree() {
    (0..trials(4)).for_each(|seed| trial(Fault::Kill, seed));
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline_and_the_others_agree() {
    (0..trials(2)).for_each(|seed| trial(Fault::Stop, 1000 + seed));
}
