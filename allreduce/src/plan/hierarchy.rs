//! Two levels: a direct reduce-scatter within each node; then the ranks with the same place in their node, a rail,
//! reduce their shard among the nodes; then an all-gather within each node. Steps depend on the number of nodes
//! only, and every rank of a node drives a part of the network.
//!
//! With shared memory inside the nodes the first and last stage are that transport's; a rail alone is a direct
//! all-reduce of a flat group.

use std::ops::Range;

use super::build::Builder;
use super::shape::Shards;
use super::{Place, Repr};

/// A segment of a local shard, and the node whose rank reduces it among the nodes.
struct Piece {
    range: Range<u64>,
    owner: usize,
}

pub(super) fn all_reduce(b: &mut Builder<'_>, count: u64) {
    let n = b.n();
    let locals = b.group.equal_nodes().unwrap_or(1);
    let nodes = n / locals;
    let (node, local) = (b.me / locals, b.me % locals);
    let at = |node: usize, local: usize| node * locals + local;
    let shards = Shards::even(count, locals, b.element_bytes);
    let cut: Vec<Vec<Piece>> = (0..locals).map(|l| pieces(b, shards.range(l), nodes)).collect();
    let window = (b.window as usize).max(2 * nodes);

    // Contributions to the shards of this node.
    let mut contributions: Vec<Vec<u32>> = vec![Vec::new(); locals];
    for k in 0..cut.iter().map(Vec::len).max().unwrap_or(0) {
        for distance in 1..locals {
            let to = (local + distance) % locals;
            if let Some(p) = cut[to].get(k) {
                let part = (Place::Input(p.range.start), Repr::Data);
                contributions[to].push(b.send(at(node, to), part, len(p), 3 * k as u64 + 2, &[]));
            }
        }
    }
    let mut node_sums = Vec::new();
    for p in &cut[local] {
        let own = (Place::Input(p.range.start), Repr::Data);
        let (mut parts, mut waits) = (vec![own; locals], Vec::new());
        for distance in 1..locals {
            let from = (local + locals - distance) % locals;
            parts[from] = (b.temp(), Repr::Data);
            waits.push(b.recv(at(node, from), parts[from], len(p)));
        }
        let out = b.temp();
        node_sums.push((out, b.reduce(parts, &[locals], out, len(p), &waits)));
    }

    // The rail: sums of the nodes to the piece's owner, and the result back.
    let mut results = Vec::new();
    let mut previous: Vec<Vec<u32>> = vec![Vec::new(); nodes];
    for (k, p) in cut[local].iter().enumerate() {
        let (sum, made) = node_sums[k];
        let order = 3 * k as u64;
        if p.owner == node {
            let (mut parts, mut waits) = (vec![(sum, Repr::Partial); nodes], vec![made]);
            for distance in 1..nodes {
                let from = (node + nodes - distance) % nodes;
                parts[from] = (b.temp(), Repr::Partial);
                waits.push(b.recv(at(from, local), parts[from], len(p)));
            }
            let result = Place::Output(p.range.start);
            let task = b.reduce(parts, &vec![1; nodes], result, len(p), &waits);
            for distance in 1..nodes {
                let to = (node + distance) % nodes;
                b.send(at(to, local), (result, Repr::Data), len(p), order, &[task]);
            }
            results.push(task);
        } else {
            let older = &previous[p.owner];
            let mut gate = vec![made];
            gate.extend(older.len().checked_sub(b.window as usize).map(|i| older[i]));
            b.send(at(p.owner, local), (sum, Repr::Partial), len(p), order + 1, &gate);
            let result = b.recv(at(p.owner, local), (Place::Output(p.range.start), Repr::Data), len(p));
            // Until the result is here the sum may have to be sent again.
            b.hold(sum, result);
            previous[p.owner].push(result);
            results.push(result);
        }
    }

    // Results to the others of this node.
    for (k, p) in cut[local].iter().enumerate() {
        for distance in 1..locals {
            let to = (local + distance) % locals;
            let part = (Place::Output(p.range.start), Repr::Data);
            b.send(at(node, to), part, len(p), 3 * k as u64, &[results[k]]);
        }
    }
    for distance in 1..locals {
        let from = (local + locals - distance) % locals;
        for (k, p) in cut[from].iter().enumerate() {
            let result = b.recv(at(node, from), (Place::Output(p.range.start), Repr::Data), len(p));
            if let Some(&send) = contributions[from].get(k + window) {
                b.after(result, send);
            }
        }
    }
}

fn len(piece: &Piece) -> u64 {
    piece.range.end - piece.range.start
}

/// Cuts a local shard into segments that take turns among the owners, so that all of them work all the time.
fn pieces(b: &Builder<'_>, shard: Range<u64>, nodes: usize) -> Vec<Piece> {
    let parts = Shards::even(shard.end - shard.start, nodes, b.element_bytes);
    let of = |owner: usize| {
        let range = parts.range(owner);
        b.segments(shard.start + range.start..shard.start + range.end)
    };
    let cut: Vec<_> = (0..nodes).map(of).collect();
    let most = cut.iter().map(Vec::len).max().unwrap_or(0);
    let turn = |k: usize| {
        let cut = &cut;
        (0..nodes).filter_map(move |owner| Some(Piece { range: cut[owner].get(k)?.clone(), owner }))
    };
    (0..most).flat_map(turn).collect()
}
