//! Worlds in which things break: nobody ever sees wrong bits, and everybody hears of an end in time.

use std::time::Duration;

use super::fuzz::{for_each_seed, random_load};
use super::load::Load;
use super::{Rng, What, World};
use crate::error::Error;
use crate::plan::{Algorithm, Kind};
use crate::timeouts::Timeouts;

pub(super) fn timeouts() -> Timeouts {
    Timeouts::new(Duration::from_secs(2), Duration::from_secs(10)).unwrap()
}

/// A world with some operations at random times, and nothing that breaks yet.
fn world(seed: u64) -> (World, Vec<Load>) {
    let mut rng = Rng(seed ^ 0x5eed);
    let sizes: [&[usize]; 7] = [&[2], &[3], &[4], &[5], &[2, 2], &[1, 1, 1], &[2, 1]];
    let nodes = sizes[rng.below(7) as usize];
    let loads: Vec<Load> = (0..1 + rng.below(8)).map(|_| random_load(&mut rng, nodes, 70_003)).collect();
    let mut world = World::new(nodes, seed, timeouts());
    world.per_peer = 1 + rng.below(3) as usize;
    for r in 0..world.nodes.len() {
        let mut at = Duration::ZERO;
        for load in &loads {
            at += world.rng.us(400);
            world.post(r, at, load.post(r));
        }
    }
    (world, loads)
}

/// What was told as done has the right bits.
fn check_safety(world: &World, loads: &[Load], seed: u64) {
    for (r, node) in world.nodes.iter().enumerate() {
        for (key, ended) in &node.ended {
            let load = &loads[key.sequence as usize];
            if ended.result.is_ok() {
                let output = ended.output.as_ref().unwrap_or(&ended.input).bytes();
                assert!(
                    output == load.expected()[r],
                    "seed {seed}: rank {r} committed other bits for {load:?}"
                );
            }
            if let Some(output) = &ended.output {
                assert!(
                    ended.input.bytes() == load.input(r),
                    "seed {seed}: rank {r} lost its input of {load:?}"
                );
                let (output, size) = (output.bytes(), load.dtype.bytes());
                for range in &ended.held {
                    let range = range.start as usize * size..range.end as usize * size;
                    assert!(
                        output[range.clone()] == load.expected()[r][range],
                        "seed {seed}: rank {r} holds wrong bits"
                    );
                }
            }
        }
    }
}

fn assert_all_done(world: &World, seed: u64) {
    for (r, node) in world.nodes.iter().enumerate() {
        assert!(node.failed.is_none(), "seed {seed}: rank {r} failed: {:?}", node.failed);
        assert!(
            node.posts.is_empty() && node.ended.len() == node.keys.len(),
            "seed {seed}: rank {r} hangs: {:?} {:?}",
            node.engine.waiting(),
            world.streams()
        );
    }
}

#[test]
fn broken_links_pauses_and_flipped_bits_cost_time_only() {
    for_each_seed("broken_links_pauses_and_flipped_bits_cost_time_only", 120, |seed| {
        let (mut world, loads) = world(seed);
        let n = world.nodes.len() as u64;
        world.corrupt_percent = world.rng.below(2) * 3;
        for _ in 0..world.rng.below(10) {
            let at = world.rng.us(4000);
            let (a, b) = (world.rng.below(n) as usize, world.rng.below(n) as usize);
            let us = world.rng.below(100_000);
            world.at(at, if us % 3 == 0 { What::Pause(a, us) } else { What::Break(a, b) });
        }
        world.run(Duration::from_secs(100));
        assert_all_done(&world, seed);
        check_safety(&world, &loads, seed);
    });
}

#[test]
fn a_short_partition_is_repaired() {
    for_each_seed("a_short_partition_is_repaired", 100, |seed| {
        let (mut world, loads) = world(seed ^ 0x0c07);
        let side = world.rng.below(1 << world.nodes.len());
        let pairs = (0..world.nodes.len()).flat_map(|a| (0..a).map(move |b| (b, a)));
        world.cut = pairs.filter(|(a, b)| (side >> a) & 1 != (side >> b) & 1).collect();
        for (a, b) in world.cut.clone() {
            let at = world.rng.us(3000);
            world.at(at, What::Break(a, b));
        }
        world.at(Duration::from_millis(300), What::Heal);
        world.run(Duration::from_secs(100));
        assert_all_done(&world, seed);
        check_safety(&world, &loads, seed);
    });
}

#[test]
fn survivors_of_a_crash_name_the_lost_rank_at_once() {
    for_each_seed("survivors_of_a_crash_name_the_lost_rank_at_once", 120, |seed| {
        let (mut world, loads) = world(seed ^ 0xdead);
        let dead = world.rng.below(world.nodes.len() as u64) as usize;
        let at = world.rng.us(4000);
        world.at(at, What::Crash(dead));
        world.run(Duration::from_millis(1000));
        check_safety(&world, &loads, seed);
        for (r, node) in world.nodes.iter().enumerate().filter(|(r, _)| *r != dead) {
            let all_done = node.ended.len() == loads.len() && node.ended.values().all(|e| e.result.is_ok());
            match &node.failed {
                Some(error @ Error::PeerLost { .. }) => {
                    assert_eq!(error.culprit().unwrap().0 as usize, dead, "seed {seed}: rank {r}: {error}");
                }
                // A peer that it never had a connection to may come late; that is for the first deadline.
                None if !all_done => assert!(never_met(&world), "seed {seed}: rank {r} hangs"),
                None => {}
                other => panic!("seed {seed}: rank {r}: {other:?}"),
            }
        }
    });
}

/// Whether somebody that goes on has never met a rank that crashed, which may then only be late.
fn never_met(world: &World) -> bool {
    let goes_on = |r: usize| !world.nodes[r].crashed && world.nodes[r].failed.is_none();
    let met = |r: usize, dead: usize| {
        world.streams.iter().any(|s| {
            let end = s.ends.iter().position(|e| *e == r);
            s.ends.contains(&dead) && end.is_some_and(|end| s.met[end])
        })
    };
    let dead: Vec<usize> = (0..world.nodes.len()).filter(|r| world.nodes[*r].crashed).collect();
    (0..world.nodes.len()).filter(|r| goes_on(*r)).any(|r| dead.iter().any(|&d| !met(r, d)))
}

#[test]
fn nobody_waits_longer_than_the_budget_for_a_rank_that_stopped() {
    for_each_seed("nobody_waits_longer_than_the_budget_for_a_rank_that_stopped", 100, |seed| {
        let (mut world, loads) = world(seed ^ 0x570b);
        let stopped = world.rng.below(world.nodes.len() as u64) as usize;
        let at = world.rng.us(3000);
        world.at(at, What::Pause(stopped, 3_600_000_000));
        world.run(Duration::from_secs(14));
        check_safety(&world, &loads, seed);
        for (r, node) in world.nodes.iter().enumerate().filter(|(r, _)| *r != stopped) {
            let all_done = node.posts.is_empty() && node.ended.len() == node.keys.len();
            assert!(
                all_done,
                "seed {seed}: rank {r} hangs: {:?} {:?} {}",
                node.engine.waiting(),
                world.streams(),
                stopped
            );
            if let Some(error) = &node.failed {
                assert_eq!(error.culprit().unwrap().0 as usize, stopped, "seed {seed}: rank {r}: {error}");
            }
        }
    });
}

#[test]
fn different_operations_are_a_mismatch_on_every_rank() {
    for_each_seed("different_operations_are_a_mismatch_on_every_rank", 100, |seed| {
        let mut rng = Rng(seed);
        let nodes = [2 + rng.below(4) as usize];
        let mut load = random_load(&mut rng, &nodes, 70_003);
        if let Kind::Broadcast { count: 0, .. } = load.kind {
            load.kind = Kind::AllReduce { count: 0, in_place: true };
        }
        if let Kind::ReduceScatter { counts } | Kind::AllGather { counts } = &mut load.kind {
            // Without any element there is no message either.
            counts.iter_mut().for_each(|c| *c += 1);
        }
        let mut world = World::new(&nodes, seed, timeouts());
        world.goes_on = true;
        let odd = rng.below(nodes[0] as u64) as usize;
        for r in 0..nodes[0] {
            let mut post = load.post(r);
            if r == odd {
                post.name = "other".into();
            }
            let after = world.rng.us(300);
            world.post(r, after, post);
        }
        world.run(Duration::from_secs(1));
        for (r, node) in world.nodes.iter().enumerate() {
            match &node.failed {
                Some(Error::Mismatch { mine, theirs, .. }) => {
                    assert!(mine.contains("other") != theirs.contains("other"), "{mine} {theirs}");
                }
                other => panic!("seed {seed} {load:?}: rank {r}: {other:?}"),
            }
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let run = |seed| {
        let (mut world, _) = world(seed);
        world.corrupt_percent = 2;
        world.at(Duration::from_micros(700), What::Break(0, 1));
        world.at(Duration::from_micros(900), What::Pause(1, 5000));
        world.run(Duration::from_secs(100));
        world.digest()
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(1), run(2));
}

#[test]
fn a_ring_of_64_ranks_needs_two_connections_each() {
    let nodes = vec![1; 64];
    let mut world = World::new(&nodes, 1, Timeouts::default());
    let mut load = random_load(&mut Rng(3), &nodes, 1000);
    load.kind = Kind::AllReduce { count: 5000, in_place: false };
    load.algorithm = Some(Algorithm::Ring);
    load.weights = vec![1.0; 64];
    for r in 0..64 {
        world.post(r, Duration::from_micros(1), load.post(r));
    }
    world.run(Duration::from_secs(100));
    assert_all_done(&world, 1);
    assert_eq!(world.streams.len(), 64);
}
