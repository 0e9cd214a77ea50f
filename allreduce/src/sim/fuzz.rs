//! Every algorithm, type, operation, size and world against the scalar oracle, bit by bit.

use std::time::Duration;

use super::load::Load;
use super::{Rng, World};
use crate::element::{DataType, Operation};
use crate::plan::{Algorithm, Kind};
use crate::timeouts::Timeouts;

/// Sizes around everything that changes at a size: units, segments of 64 KiB, copies kept up to 64 KiB.
const SIZES: [u64; 14] = [0, 1, 2, 3, 15, 16, 17, 31, 33, 1000, 16_383, 16_385, 33_001, 70_003];

fn world_of(rng: &mut Rng) -> Vec<usize> {
    let worlds: [&[usize]; 14] = [
        &[1],
        &[2],
        &[3],
        &[4],
        &[5],
        &[6],
        &[7],
        &[8],
        &[9],
        &[1, 1],
        &[2, 2],
        &[2, 1],
        &[2, 2, 2],
        &[3, 3],
    ];
    worlds[rng.below(worlds.len() as u64) as usize].to_vec()
}

pub(super) fn random_load(rng: &mut Rng, nodes: &[usize], most: u64) -> Load {
    let n: usize = nodes.iter().sum();
    let size = |rng: &mut Rng| {
        let sizes: Vec<u64> = SIZES.into_iter().filter(|s| *s <= most).collect();
        sizes[rng.below(sizes.len() as u64) as usize]
    };
    let counts = |rng: &mut Rng| (0..n).map(|_| size(rng) / n as u64 + rng.below(3)).collect();
    let kind = match rng.below(8) {
        0 => Kind::ReduceScatter { counts: counts(rng) },
        1 => Kind::AllGather { counts: counts(rng) },
        2 => Kind::Broadcast { count: size(rng), root: rng.below(n as u64) as usize },
        _ => Kind::AllReduce { count: size(rng), in_place: rng.chance(50) },
    };
    let dtype = DataType::ALL[rng.below(6) as usize];
    let wire = if dtype == DataType::F32 && rng.chance(40) { DataType::Bf16 } else { dtype };
    let mut operation = Operation::ALL[rng.below(4) as usize];
    if dtype.is_integer() && operation == Operation::Mean {
        operation = Operation::Sum;
    }
    let algorithm = match rng.below(6) {
        5 => None,
        i => Some(Algorithm::ALL[i as usize]),
    };
    let equal = nodes.iter().all(|len| *len == nodes[0]);
    let fits = |a: &Algorithm| equal || !matches!(a, Algorithm::Doubling | Algorithm::Hierarchical);
    let weight = |rng: &mut Rng| match rng.below(4) {
        0 => 0.0,
        1 if !dtype.is_integer() => (1 + rng.below(8)) as f32 * 0.5,
        _ => 1.0,
    };
    let plain = rng.chance(50);
    let reduces = matches!(kind, Kind::AllReduce { .. } | Kind::ReduceScatter { .. });
    let weights = (0..n).map(|_| if plain || !reduces { 1.0 } else { weight(rng) }).collect();
    let skip = rng.below(8 / dtype.bytes() as u64) as usize * dtype.bytes();
    Load {
        kind,
        algorithm: algorithm.filter(fits),
        nodes: nodes.to_vec(),
        dtype,
        wire,
        operation,
        weights,
        seed: rng.next(),
        skip,
    }
}

fn check(nodes: &[usize], loads: &[Load], seed: u64) {
    let mut world = World::new(nodes, seed, Timeouts::default());
    world.per_peer = 1 + world.rng.below(2) as usize;
    for r in 0..world.nodes.len() {
        for load in loads {
            let after = world.rng.us(100);
            world.post(r, after, load.post(r));
        }
    }
    world.run(Duration::from_secs(600));
    for (r, node) in world.nodes.iter().enumerate() {
        assert!(node.refused_posts.is_empty(), "seed {seed}: {:?} {loads:?}", node.refused_posts);
        assert_eq!(node.ended.len(), loads.len(), "seed {seed} {loads:?}: rank {r} has not finished");
        for ((_, ended), load) in node.ended.iter().zip(loads) {
            assert!(ended.result.is_ok(), "seed {seed} {load:?}: {:?}", ended.result);
            let output = ended.output.as_ref().unwrap_or(&ended.input).bytes();
            let expected = &load.expected()[r];
            let differs = output.iter().zip(expected).position(|(a, b)| a != b);
            assert!(
                differs.is_none() && output.len() == expected.len(),
                "seed {seed} {load:?}: rank {r} byte {differs:?}"
            );
            if ended.output.is_some() {
                assert_eq!(ended.input.bytes(), load.input(r), "seed {seed} {load:?}: the input was written");
            }
        }
    }
}

/// How many seeds a test takes, and the only one if `MUSTER_SIM_SEED` names one.
pub(super) fn seeds(normal: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    match number("MUSTER_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("MUSTER_SIM_SEEDS").unwrap_or(normal),
    }
}

/// Runs a test for each seed and says how to run a failure again.
pub(super) fn for_each_seed(name: &str, normal: u64, test: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in seeds(normal) {
        if let Err(panic) = std::panic::catch_unwind(|| test(seed)) {
            eprintln!("again: MUSTER_SIM_SEED={seed} cargo test --release -p muster-allreduce {name}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn results_are_those_of_the_oracle() {
    for_each_seed("results_are_those_of_the_oracle", 300, |seed| {
        let mut rng = Rng(seed);
        let nodes = world_of(&mut rng);
        let loads = vec![random_load(&mut rng, &nodes, u64::MAX)];
        check(&nodes, &loads, seed);
    });
}

#[test]
fn many_operations_at_once_do_not_mix() {
    for_each_seed("many_operations_at_once_do_not_mix", 40, |seed| {
        let mut rng = Rng(seed ^ 0xabcd);
        let nodes = world_of(&mut rng);
        let loads: Vec<Load> = (0..12).map(|_| random_load(&mut rng, &nodes, 20_000)).collect();
        check(&nodes, &loads, seed);
    });
}

#[test]
fn every_algorithm_gives_the_same_bits() {
    for nodes in [vec![4], vec![5], vec![3, 3], vec![8]] {
        for dtype in DataType::ALL {
            for algorithm in Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::Ring) {
                let load = Load {
                    kind: Kind::AllReduce { count: 40_001, in_place: false },
                    algorithm: Some(algorithm),
                    dtype,
                    wire: dtype,
                    operation: if dtype.is_integer() { Operation::Sum } else { Operation::Mean },
                    weights: vec![1.0; nodes.iter().sum()],
                    seed: 11,
                    skip: 0,
                    nodes: nodes.clone(),
                };
                check(&nodes, &[load], 3);
            }
        }
    }
}
