//! Operations of rails beside operations of everybody: two orders on the same streams.

use std::collections::VecDeque;
use std::time::Duration;

use super::faults::timeouts;
use super::fuzz::{for_each_seed, random_load};
use super::load::Load;
use super::{Rng, What, World};
use crate::engine::{OpKey, Scope};
use crate::plan::{Group, Kind};

/// Nodes of as many ranks each, what everybody does, and what each rail does.
struct Case {
    nodes: Vec<usize>,
    world: Vec<Load>,
    rails: Vec<Vec<Load>>,
}

impl Case {
    fn new(rng: &mut Rng) -> Self {
        let (count, locals) = (2 + rng.below(2) as usize, 1 + rng.below(3) as usize);
        let nodes = vec![locals; count];
        let ones = vec![1; count];
        let world = (0..1 + rng.below(4)).map(|_| random_load(rng, &nodes, 70_003)).collect();
        let rail = |rng: &mut Rng| (0..1 + rng.below(5)).map(|_| sum(rng, &ones)).collect();
        let rails = (0..locals).map(|_| rail(rng)).collect();
        Self { nodes, world, rails }
    }

    /// Each rank mixes the two orders in its own way.
    fn post(&self, world: &mut World) {
        let locals = self.nodes[0];
        for r in 0..world.nodes.len() {
            let (node, local) = (r / locals, r % locals);
            let members = (0..self.nodes.len()).map(|n| muster_proto::Rank((n * locals + local) as u32));
            let group = Group::flat(members.collect());
            let rail = |load: &Load| {
                let mut post = load.post(node);
                (post.scope, post.group) = (Scope::Rail, group.clone());
                post
            };
            let mut queues = [
                self.world.iter().map(|l| l.post(r)).collect(),
                self.rails[local].iter().map(rail).collect(),
            ] as [VecDeque<_>; 2];
            let mut at = Duration::ZERO;
            while queues.iter().any(|q| !q.is_empty()) {
                at += world.rng.us(300);
                let first = world.rng.below(2) as usize;
                let next = queues[first].pop_front();
                if let Some(post) = next.or_else(|| queues[1 - first].pop_front()) {
                    world.post(r, at, post);
                }
            }
        }
    }

    fn expected(&self, r: usize, key: OpKey) -> Vec<u8> {
        let locals = self.nodes[0];
        match key.scope {
            Scope::Rail => self.rails[r % locals][key.sequence as usize].expected().swap_remove(r / locals),
            _ => self.world[key.sequence as usize].expected().swap_remove(r),
        }
    }
}

fn sum(rng: &mut Rng, nodes: &[usize]) -> Load {
    let mut load = random_load(rng, nodes, 70_003);
    while !matches!(load.kind, Kind::AllReduce { .. }) {
        load = random_load(rng, nodes, 70_003);
    }
    load
}

#[test]
fn rails_and_the_world_do_not_mix_even_when_links_break() {
    for_each_seed("rails_and_the_world_do_not_mix_even_when_links_break", 150, |seed| {
        let case = Case::new(&mut Rng(seed ^ 0x7a11));
        let mut world = World::new(&case.nodes, seed, timeouts());
        world.per_peer = 1 + world.rng.below(2) as usize;
        case.post(&mut world);
        let n = world.nodes.len() as u64;
        for _ in 0..world.rng.below(8) {
            let (at, us) = (world.rng.us(3000), world.rng.below(50_000));
            let (a, b) = (world.rng.below(n) as usize, world.rng.below(n) as usize);
            world.at(at, if us % 3 == 0 { What::Pause(a, us) } else { What::Break(a, b) });
        }
        world.run(Duration::from_secs(100));
        for (r, node) in world.nodes.iter().enumerate() {
            assert!(node.failed.is_none(), "seed {seed}: rank {r} failed: {:?}", node.failed);
            let all = case.world.len() + case.rails[r % case.nodes[0]].len();
            assert_eq!(node.ended.len(), all, "seed {seed}: rank {r}: {:?}", node.engine.waiting());
            for (key, ended) in &node.ended {
                let output = ended.output.as_ref().unwrap_or(&ended.input).bytes();
                assert!(output == case.expected(r, *key), "seed {seed}: rank {r} has other bits in {key:?}");
            }
        }
    });
}
