//! One rank's elements to others: broadcast and transfer. Nothing is reduced, so nothing needs room.

use super::build::Builder;
use super::shape::Shards;
use super::{Place, Repr};

/// Binomial tree: in each round everybody who has the elements sends them to one more. For few bytes.
pub(super) fn tree(b: &mut Builder<'_>, count: u64, root: usize) {
    let n = b.n();
    let virtual_me = (b.me + n - root) % n;
    let position = |v: usize| (v + root) % n;
    // My parent lacks my lowest bit; my children have one lower bit more.
    let lowest = if virtual_me == 0 { n.next_power_of_two() } else { virtual_me & virtual_me.wrapping_neg() };
    for (k, s) in b.segments_or_empty(count).into_iter().enumerate() {
        let len = s.end - s.start;
        let (source, after) = if virtual_me == 0 {
            b.copy(s.start, s.start, len);
            (Place::Input(s.start), vec![])
        } else {
            let place = Place::Output(s.start);
            (place, vec![b.recv(position(virtual_me - lowest), (place, Repr::Data), len)])
        };
        let mut bit = lowest / 2;
        while bit > 0 {
            if virtual_me + bit < n {
                b.send(position(virtual_me + bit), (source, Repr::Data), len, k as u64, &after);
            }
            bit /= 2;
        }
    }
}

/// The root gives each rank a shard, and those pass it on to all: the root sends its elements about once instead of
/// n - 1 times.
pub(super) fn scattered(b: &mut Builder<'_>, count: u64, root: usize) {
    let (n, me) = (b.n(), b.me);
    let shards = Shards::even(count, n, b.element_bytes);
    let cut: Vec<_> = (0..n).map(|p| b.segments(shards.range(p))).collect();
    if me == root {
        b.copy(0, 0, count);
        for k in 0..cut.iter().map(Vec::len).max().unwrap_or(0) {
            for distance in 1..n {
                let to = b.ahead(distance);
                for s in [cut[to].get(k), cut[root].get(k)].into_iter().flatten() {
                    b.send(to, (Place::Input(s.start), Repr::Data), s.end - s.start, k as u64, &[]);
                }
            }
        }
        return;
    }
    let mut mine = Vec::new();
    for k in 0..cut.iter().map(Vec::len).max().unwrap_or(0) {
        for owner in [me, root] {
            if let Some(s) = cut[owner].get(k) {
                let recv = b.recv(root, (Place::Output(s.start), Repr::Data), s.end - s.start);
                if owner == me {
                    mine.push((recv, s.clone()));
                }
            }
        }
    }
    for (k, (recv, s)) in mine.into_iter().enumerate() {
        for distance in 1..n {
            let to = b.ahead(distance);
            if to != root {
                b.send(to, (Place::Output(s.start), Repr::Data), s.end - s.start, k as u64, &[recv]);
            }
        }
    }
    for distance in 1..n {
        let from = (me + n - distance) % n;
        if from != root {
            for s in &cut[from] {
                b.recv(from, (Place::Output(s.start), Repr::Data), s.end - s.start);
            }
        }
    }
}

/// Position 0 sends, position 1 receives.
pub(super) fn transfer(b: &mut Builder<'_>, count: u64) {
    for (k, s) in b.segments_or_empty(count).into_iter().enumerate() {
        let len = s.end - s.start;
        if b.me == 0 {
            b.send(1, (Place::Input(s.start), Repr::Data), len, k as u64, &[]);
        } else {
            b.recv(0, (Place::Output(s.start), Repr::Data), len);
        }
    }
}
