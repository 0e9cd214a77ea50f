//! Worlds of real processes, one of which is killed or stopped at a random moment.
//!
//! Survivors must name it in time and go on without it in the next generation, with equal bits; and a process can do
//! that many times without leaving anything behind. `MUSTER_FAULT_TRIALS=200` runs the long set; a trial's seed is in
//! its failure message.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests stand outside of them"
)]

mod common;
mod process;

use std::time::{Duration, Instant};

use muster_allreduce::{CostModel, Error, Listener, Member, Membership, SumBuffer, World};
use muster_proto::{Generation, Rank as Number};
use process::{Fault, Rank, role, trials};
use rustix::process::Signal;
use xxhash_rust::xxh3::xxh3_64;

/// What the parent tells a rank to join: its number, and id, node and port of everybody.
struct Plan {
    me: u32,
    members: Vec<Member>,
}

/// Tells the parent a port, and hears who takes part.
fn meet() -> (Listener, Plan) {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
    println!("\nPORT {}", listener.address().unwrap().port());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let mut words = line.split_whitespace();
    let me = words.next().unwrap().parse().unwrap();
    let member = |word: &str| {
        let parts: Vec<&str> = word.split(',').collect();
        let addresses = vec![([127, 0, 0, 1], parts[2].parse().unwrap()).into()];
        Member { id: parts[0].into(), node: parts[1].into(), addresses }
    };
    (listener, Plan { me, members: words.map(member).collect() })
}

/// What a rank was told when it was started.
struct Role {
    run: String,
    /// Which inputs are its.
    number: usize,
    lease: Duration,
    budget: Duration,
}

impl Role {
    fn read() -> Option<(Self, Vec<String>)> {
        let words = role()?;
        let ms = |i: usize| Duration::from_millis(words[i].parse().unwrap());
        let role =
            Self { run: words[0].clone(), number: words[1].parse().unwrap(), lease: ms(2), budget: ms(3) };
        Some((role, words[4..].to_vec()))
    }

    fn join(&self, generation: u64) -> World {
        let (listener, plan) = meet();
        let membership =
            Membership::new(&self.run, Generation(generation), plan.members, CostModel::default()).unwrap();
        let options = common::options(b"sixteen bytes or more", self.lease, self.budget);
        World::join(membership, Number(plan.me), Some(listener), options).unwrap()
    }
}

/// One step: every bucket at once, then a few facts. Returns a digest of the sums.
fn step(world: &World, buffers: Vec<SumBuffer>, inputs: &[Vec<f32>]) -> Result<(Vec<SumBuffer>, u64), Error> {
    let lend = |(mut buffer, input): (SumBuffer, &Vec<f32>)| {
        buffer.copy_from_slice(input);
        world.all_reduce(buffer, "bucket")
    };
    let pending: Vec<_> = buffers.into_iter().zip(inputs).map(lend).collect();
    let (mut sums, mut digest) = (Vec::new(), 0);
    for pending in pending {
        let (sum, _) = pending.wait()?;
        digest = xxh3_64(bytemuck::cast_slice(&sum)) ^ u64::rotate_left(digest, 9);
        sums.push(sum);
    }
    let all = world.all_gather(vec![digest as i64], &vec![1; world.world_size()], "digests")?;
    assert!(all.iter().all(|&d| d == digest as i64), "every rank has the same sums");
    Ok((sums, digest))
}

/// Gradients of a rank; the last buffer travels in three chunks.
fn inputs(rank: usize) -> Vec<Vec<f32>> {
    let mut inputs = process::inputs(rank);
    let long = inputs[0].iter().cycle().take(2_500_000).copied().collect();
    inputs.push(long);
    inputs
}

fn lens(inputs: &[Vec<f32>]) -> Vec<usize> {
    inputs.iter().map(Vec::len).collect()
}

/// A rank: works until somebody is lost, then goes on with the others. Or joins and leaves many times.
#[test]
#[ignore = "a rank of the tests below, which start it"]
fn rank_process() {
    let Some((role, rest)) = Role::read() else { return };
    let inputs = inputs(role.number);
    if let [generations] = &rest[..] {
        return many_generations(&role, generations.parse().unwrap());
    }
    let mut world = role.join(1);
    let mut buffers = world.buffers(&lens(&inputs)).unwrap();
    println!("\nREADY");
    let mut steps = 0_u64;
    let (error, noticed) = loop {
        let begun = Instant::now();
        match step(&world, buffers, &inputs) {
            Ok((sums, _)) => (buffers, steps) = (sums, steps + 1),
            Err(error) => break (error, begun.elapsed()),
        }
    };
    let culprit = error.culprit().map_or(-1, |rank| i64::from(rank.0));
    let left = Instant::now();
    drop(world);
    let left = left.elapsed().as_millis();
    println!("\nEND {culprit} {steps} {} {left} {error}", noticed.as_millis());
    let mut world = role.join(2);
    let buffers = world.buffers(&lens(&inputs)).unwrap();
    let (_, digest) = step(&world, buffers, &inputs).unwrap();
    println!("\nAGAIN {digest:x}");
    // Until the others have it too.
    let _ = world.all_gather(vec![1_i32], &vec![1; world.world_size()], "end");
}

/// What a world could leave behind: threads, descriptors, mappings of its memory.
fn left_behind() -> [usize; 3] {
    let entries = |path: &str| std::fs::read_dir(path).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mappings = maps.lines().filter(|line| line.contains("memfd:muster-shm")).count();
    [entries("/proc/self/task"), entries("/proc/self/fd"), mappings]
}

fn many_generations(role: &Role, generations: u64) {
    let inputs = inputs(role.number);
    let mut before = None;
    for generation in 1..=generations {
        let mut world = role.join(generation);
        let buffers = world.buffers(&lens(&inputs)).unwrap();
        let (mut buffers, digest) = step(&world, buffers, &inputs).unwrap();
        println!("\nSTEP {digest:x}");
        match generation % 3 {
            // In order, in the middle of an operation, and with a buffer that lives on.
            0 => drop(world),
            1 => {
                let pending = world.all_reduce(buffers.remove(0), "never awaited");
                drop((world, pending));
            }
            _ => {
                drop(world);
                assert!(buffers[0].iter().all(|x| x.is_finite()));
            }
        }
        drop(buffers);
        let now = left_behind();
        assert_eq!(*before.get_or_insert(now), now, "threads, descriptors, mappings");
    }
}

/// Collects the ports and tells everybody who takes part: ranks `per_node` to a node.
fn introduce(ranks: &mut [(usize, &mut Rank)], per_node: usize) {
    let member = |(i, (id, rank)): (usize, &mut (usize, &mut Rank))| {
        format!("{id},node-{},{}", i / per_node, rank.expect("PORT"))
    };
    let members: Vec<String> = ranks.iter_mut().enumerate().map(member).collect();
    for (i, (_, rank)) in ranks.iter_mut().enumerate() {
        rank.tell(&format!("{i} {}", members.join(" ")));
    }
}

fn all(ranks: &mut [Rank]) -> Vec<(usize, &mut Rank)> {
    ranks.iter_mut().enumerate().collect()
}

fn trial(fault: Fault, (ranks, per_node): (usize, usize), seed: u64) {
    let run = format!("world-fault-{}-{fault:?}-{per_node}-{seed}", std::process::id());
    let budget_ms = if fault == Fault::Kill { 20_000 } else { 1_500 };
    let start = |rank| Rank::start(&format!("{run} {rank} 1000 {budget_ms}"));
    let mut ranks: Vec<Rank> = (0..ranks).map(start).collect();
    introduce(&mut all(&mut ranks), per_node);
    ranks.iter_mut().for_each(|rank| drop(rank.expect("READY")));
    let victim = fault.strike(&ranks, seed, Duration::from_millis(100));
    let begun = Instant::now();
    let survivors = || (0..ranks.len()).filter(|&rank| rank != victim);
    let survivors: Vec<usize> = survivors().collect();
    let ends: Vec<String> = survivors.iter().map(|&rank| ranks[rank].expect("END")).collect();
    let took = begun.elapsed();
    let what = format!("{fault:?} of {victim}, {per_node} per node, seed {seed}: {ends:#?}");
    // A rank that stands still is named by those that see it, and by the others a quarter of the budget later.
    let allowed = if fault == Fault::Kill { 1000 } else { budget_ms * 5 / 4 + 1000 };
    assert!(took < Duration::from_millis(allowed), "noticed after {took:?}, {what}");
    let words: Vec<Vec<&str>> = ends.iter().map(|end| end.splitn(5, ' ').collect()).collect();
    assert!(words.iter().all(|w| w[0].parse() == Ok(victim)), "{what}");
    let steps: Vec<u64> = words.iter().map(|w| w[1].parse().unwrap()).collect();
    assert!(steps.iter().all(|s| s.abs_diff(steps[0]) <= 1), "{what}");
    // Three ranks are one on each of three nodes, or three on one: sockets and shared memory again.
    let next = if per_node == 2 { 1 } else { survivors.len() };
    let mut left: Vec<(usize, &mut Rank)> =
        ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim).collect();
    introduce(&mut left, next);
    if fault == Fault::Stop {
        // It goes on in the old generation while the others are in the new one.
        drop(left);
        ranks[victim].signal(Signal::CONT);
    }
    let again: Vec<_> = survivors.iter().map(|&rank| ranks[rank].expect("AGAIN")).collect();
    assert!(again.iter().all(|d| *d == again[0]), "{what}: {again:?}");
    if fault == Fault::Stop {
        let end = ranks[victim].expect("END");
        assert!(end.starts_with(&format!("{victim} ")), "seed {seed}: it learns that it was given up: {end}");
    }
}

#[test]
fn a_killed_rank_is_named_within_a_second_and_the_others_go_on() {
    for seed in 0..trials(3) {
        trial(Fault::Kill, (4, 2), seed);
        trial(Fault::Kill, (4, 4), seed);
    }
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline_and_the_others_go_on() {
    for seed in 1000..1000 + trials(2) {
        trial(Fault::Stop, (4, 2), seed);
        trial(Fault::Stop, (4, 4), seed);
    }
}

#[test]
fn fifty_generations_leave_nothing_behind() {
    let run = format!("world-many-{}", std::process::id());
    let mut ranks: Vec<Rank> =
        (0..2).map(|rank| Rank::start(&format!("{run} {rank} 1000 20000 50"))).collect();
    for generation in 0..50 {
        introduce(&mut all(&mut ranks), 1 + generation % 2);
        let steps: Vec<String> = ranks.iter_mut().map(|rank| rank.expect("STEP")).collect();
        assert_eq!(steps[0], steps[1], "generation {generation}");
    }
    ranks.iter_mut().for_each(|rank| drop(rank.expect("test result: ok")));
}
