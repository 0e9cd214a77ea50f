//! Runs plans of all ranks against each other with expressions instead of numbers.

use std::collections::VecDeque;

use super::*;
use crate::order;

fn spec(kind: Kind, algorithm: Algorithm, nodes: &[usize], me: usize) -> Spec {
    // Tiny segments, so that small counts have many.
    let tuning = Tuning { segment_bytes: 64, window: 2 };
    Spec { kind, algorithm, group: Group::world(nodes), me, element_bytes: 4, partial_bytes: 4, tuning }
}

/// What lies at an element: an expression over ranks.
type Cells = Vec<String>;

struct Runner {
    plan: Plan,
    waits: Vec<u32>,
    ready: VecDeque<u32>,
    temps: Vec<Cells>,
    users: Vec<u32>,
    input: Cells,
    output: Cells,
    /// Messages that a peer sent: (index, cells).
    writes: Vec<u32>,
    received: Vec<Vec<bool>>,
    unreduced_most: usize,
}

impl Runner {
    fn new(spec: &Spec, name: usize) -> Self {
        let plan = Plan::new(spec);
        let input = (0..plan.input_len).map(|_| name.to_string()).collect();
        Self {
            waits: plan.waits.clone(),
            ready: (0..plan.tasks.len() as u32).filter(|&t| plan.waits[t as usize] == 0).collect(),
            temps: vec![vec![]; plan.temp_users.len()],
            users: plan.temp_users.clone(),
            input,
            output: vec![String::new(); plan.output_len as usize],
            writes: vec![0; plan.output_len as usize],
            received: plan.peers.iter().map(|p| vec![false; p.recvs.len()]).collect(),
            unreduced_most: 0,
            plan,
        }
    }

    fn read(&self, place: Place, len: u64) -> Cells {
        let cut = |cells: &Cells, at: u64| cells[at as usize..(at + len) as usize].to_vec();
        match place {
            _ if len == 0 => vec![],
            Place::Input(at) => cut(&self.input, at),
            Place::Output(at) => cut(&self.output, at),
            Place::Temp(t) => {
                assert!(self.users[t as usize] > 0, "temp {t} is read after its last use");
                self.temps[t as usize].clone()
            }
        }
    }

    fn write(&mut self, place: Place, cells: Cells) {
        match place {
            Place::Temp(t) => {
                self.temps[t as usize] = cells;
                let held = self.temps.iter().filter(|t| !t.is_empty()).count();
                self.unreduced_most = self.unreduced_most.max(held);
            }
            Place::Output(at) => {
                for (i, cell) in cells.into_iter().enumerate() {
                    self.output[at as usize + i] = cell;
                    self.writes[at as usize + i] += 1;
                }
            }
            Place::Input(_) => panic!("inputs are never written"),
        }
    }

    fn done(&mut self, task: u32) {
        for &temp in self.plan.releases.of(task) {
            self.users[temp as usize] -= 1;
            if self.users[temp as usize] == 0 {
                self.temps[temp as usize].clear();
            }
        }
        for &next in self.plan.next.of(task).to_vec().iter() {
            self.waits[next as usize] -= 1;
            if self.waits[next as usize] == 0 {
                self.ready.push_back(next);
            }
        }
    }

    /// Does a ready task; returns a message: peer, index, cells.
    fn step(&mut self, pick: usize) -> Option<(usize, u32, Cells)> {
        let task = self.ready.remove(pick % self.ready.len())?;
        match self.plan.tasks[task as usize].clone() {
            // Ready from the start; done when the message is here.
            Task::Recv(_) => None,
            Task::Send(t) => {
                let cells = self.read(t.place, t.len);
                self.done(task);
                Some((self.plan.peers[t.peer as usize].rank.0 as usize, t.index, cells))
            }
            Task::Reduce(r) => {
                let parts: Vec<Cells> = r.parts.iter().map(|(place, _)| self.read(*place, r.len)).collect();
                let at = |i: usize| {
                    order::fold(&r.nodes, |p| Some(parts[p][i].clone()), |a, b| format!("({a} {b})")).unwrap()
                };
                let cells = (0..r.len as usize).map(at).collect();
                self.write(r.out, cells);
                self.done(task);
                None
            }
            Task::Copy { from, to, len } => {
                let cells = self.read(Place::Input(from), len);
                self.write(Place::Output(to), cells);
                self.done(task);
                None
            }
        }
    }

    fn receive(&mut self, from: usize, index: u32, cells: Cells) {
        let peer = self.plan.peers.iter().position(|p| p.rank.0 as usize == from).unwrap();
        let task = self.plan.peers[peer].recvs[index as usize];
        let Task::Recv(t) = self.plan.tasks[task as usize] else { panic!() };
        assert_eq!(t.len, cells.len() as u64);
        assert!(!std::mem::replace(&mut self.received[peer][index as usize], true));
        if t.len > 0 {
            self.write(t.place, cells);
        }
        self.done(task);
    }
}

/// Runs all ranks in a pseudo-random order and returns their runners.
fn run(kind: &Kind, algorithm: Algorithm, nodes: &[usize], seed: u64) -> Vec<Runner> {
    let n: usize = nodes.iter().sum();
    let specs: Vec<Spec> = (0..n).map(|me| spec(kind.clone(), algorithm, nodes, me)).collect();
    let mut runners: Vec<Runner> = specs.iter().enumerate().map(|(me, s)| Runner::new(s, me)).collect();
    let mut flying: Vec<(usize, usize, u32, Cells)> = vec![];
    let mut state = seed;
    loop {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let pick = (state >> 33) as usize;
        let busy: Vec<usize> = (0..n).filter(|&r| !runners[r].ready.is_empty()).collect();
        if !flying.is_empty() && (busy.is_empty() || pick.is_multiple_of(3)) {
            let (from, to, index, cells) = flying.swap_remove(pick % flying.len());
            runners[to].receive(from, index, cells);
        } else if busy.is_empty() {
            break;
        } else {
            let me = busy[pick % busy.len()];
            if let Some((to, index, cells)) = runners[me].step(pick / 7) {
                flying.push((me, to, index, cells));
            }
        }
    }
    for (me, r) in runners.iter().enumerate() {
        let missing = r.received.iter().flatten().filter(|got| !**got).count();
        assert_eq!(missing, 0, "{algorithm:?} {kind:?} {nodes:?}: rank {me} misses messages");
        assert!(r.waits.iter().all(|w| *w == 0), "{algorithm:?} {kind:?} {nodes:?}: rank {me} is stuck");
        assert!(
            r.writes.iter().all(|w| *w == 1),
            "{algorithm:?} {kind:?} {nodes:?}: rank {me}: {:?}",
            r.writes
        );
    }
    runners
}

fn worlds() -> Vec<Vec<usize>> {
    let mut worlds: Vec<Vec<usize>> = (1..10).map(|n| vec![n]).collect();
    worlds.extend([vec![1, 1], vec![2, 2], vec![3, 3], vec![2, 2, 2], vec![1; 5], vec![3, 2], vec![4, 4, 4]]);
    worlds
}

fn possible(algorithm: Algorithm, nodes: &[usize]) -> bool {
    let equal = nodes.iter().all(|len| *len == nodes[0]);
    match algorithm {
        Algorithm::Hierarchical | Algorithm::Doubling => equal,
        _ => true,
    }
}

#[test]
fn every_algorithm_reduces_in_the_canonical_order() {
    for nodes in worlds() {
        let n: usize = nodes.iter().sum();
        let expected = order::fold(&nodes, |r| Some(r.to_string()), |a, b| format!("({a} {b})")).unwrap();
        for algorithm in Algorithm::ALL.into_iter().filter(|a| possible(*a, &nodes)) {
            for count in [0, 1, 15, 16, 17, 100, 333] {
                let kind = Kind::AllReduce { count, in_place: count % 2 == 0 };
                for (me, r) in run(&kind, algorithm, &nodes, count + 1).iter().enumerate() {
                    for cell in &r.output {
                        if algorithm == Algorithm::Ring {
                            let mut ranks: Vec<&str> =
                                cell.split(['(', ')', ' ']).filter(|s| !s.is_empty()).collect();
                            ranks.sort_unstable();
                            assert_eq!(ranks.len(), n, "{nodes:?} rank {me}: {cell}");
                            ranks.dedup();
                            assert_eq!(ranks.len(), n, "{nodes:?} rank {me}: {cell}");
                        } else {
                            assert_eq!(*cell, expected, "{algorithm:?} {nodes:?} rank {me}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn shards_of_any_size_are_scattered_and_gathered() {
    for n in 1..8 {
        for algorithm in [Algorithm::Direct, Algorithm::Ring] {
            for seed in 0..4 {
                let counts: Vec<u64> = (0..n as u64).map(|i| (i * 37 + seed * 11) % 90 * (i % 3)).collect();
                let total: u64 = counts.iter().sum();
                let gathered = run(&Kind::AllGather { counts: counts.clone() }, algorithm, &[n], seed);
                let expected: Cells =
                    (0..n).flat_map(|r| std::iter::repeat_n(r.to_string(), counts[r] as usize)).collect();
                assert!(gathered.iter().all(|r| r.output == expected), "{algorithm:?} {counts:?}");
                let scattered = run(&Kind::ReduceScatter { counts: counts.clone() }, algorithm, &[n], seed);
                let lens: u64 = scattered.iter().map(|r| r.output.len() as u64).sum();
                assert_eq!(lens, total);
                let whole = order::fold(&[n], |r| Some(r.to_string()), |a, b| format!("({a} {b})")).unwrap();
                if algorithm == Algorithm::Direct {
                    assert!(scattered.iter().flat_map(|r| &r.output).all(|c| *c == whole));
                }
            }
        }
    }
}

#[test]
fn a_broadcast_reaches_everybody_from_every_root() {
    for n in 1..10 {
        for root in 0..n {
            for algorithm in [Algorithm::Doubling, Algorithm::Direct] {
                for count in [0, 1, 200] {
                    let kind = Kind::Broadcast { count, root };
                    for r in run(&kind, algorithm, &[n], count + root as u64) {
                        assert_eq!(
                            r.output,
                            vec![root.to_string(); count as usize],
                            "{algorithm:?} {n} {root}"
                        );
                    }
                }
            }
        }
    }
    let ends = run(&Kind::Transfer { count: 100 }, Algorithm::OneShot, &[2], 3);
    assert_eq!(ends[1].output, vec!["0".to_owned(); 100]);
}

#[test]
fn room_for_received_segments_is_bounded() {
    let count = 20_000;
    let kind = Kind::AllReduce { count, in_place: false };
    for (algorithm, nodes) in [
        (Algorithm::OneShot, vec![2]),
        (Algorithm::OneShot, vec![5]),
        (Algorithm::Direct, vec![2]),
        (Algorithm::Direct, vec![7]),
        (Algorithm::Ring, vec![5]),
        (Algorithm::Hierarchical, vec![3, 3]),
    ] {
        let n: usize = nodes.iter().sum();
        for r in run(&kind, algorithm, &nodes, 5) {
            // Windows of two segments; in a ring a sum is also held while it is passed on.
            let bound = 2 * 2 * n * 4;
            assert!(r.unreduced_most <= bound, "{algorithm:?} {nodes:?}: {} temps at once", r.unreduced_most);
        }
    }
}

#[test]
fn every_rank_talks_only_to_those_it_needs() {
    let nodes = vec![1; 64];
    let kind = Kind::AllReduce { count: 1 << 20, in_place: false };
    let plan = |algorithm| Plan::new(&spec(kind.clone(), algorithm, &nodes, 13));
    assert_eq!(plan(Algorithm::Ring).peers().count(), 2);
    assert_eq!(plan(Algorithm::Doubling).peers().count(), 6);
    let direct = plan(Algorithm::Direct);
    let sent: u64 = direct.sent().map(|(_, elements, _)| elements).sum();
    assert_eq!(sent, 2 * 63 * (1 << 20) / 64, "no more than the lower bound");
}
