//! Direct reduce-scatter and all-gather: one owner per shard. Two steps, each byte moved as rarely as possible.

use std::ops::Range;

use super::build::Builder;
use super::shape::Shards;
use super::{Place, Repr};

pub(super) fn all_reduce(b: &mut Builder<'_>, count: u64) {
    let (n, me) = (b.n(), b.me);
    let shards = Shards::even(count, n, b.element_bytes);
    let cut: Vec<Vec<Range<u64>>> = (0..n).map(|p| b.segments(shards.range(p))).collect();
    let contributions = scatter(b, &cut);
    let mut reduced = Vec::with_capacity(cut[me].len());
    for (k, s) in cut[me].iter().enumerate() {
        reduced.push(contributions.reduce(b, k, s, Place::Output(s.start)));
    }
    for (k, s) in cut[me].iter().enumerate() {
        for distance in 1..n {
            let part = (Place::Output(s.start), Repr::Data);
            // A result goes before the contributions of the next segments: it opens the windows of the others.
            b.send(b.ahead(distance), part, s.end - s.start, k as u64, &[reduced[k]]);
        }
    }
    for distance in 1..n {
        let from = (me + n - distance) % n;
        for (k, s) in cut[from].iter().enumerate() {
            let result = b.recv(from, (Place::Output(s.start), Repr::Data), s.end - s.start);
            // A result proves that its owner needs no room for my contribution any more.
            if let Some(&send) = contributions.sends[from].get(k + b.window as usize) {
                b.after(result, send);
            }
        }
    }
}

pub(super) fn reduce_scatter(b: &mut Builder<'_>, counts: &[u64]) {
    let (n, me, window) = (b.n(), b.me, b.window as usize);
    let shards = Shards::of(counts);
    let cut: Vec<Vec<Range<u64>>> = (0..n).map(|p| b.segments(shards.range(p))).collect();
    let contributions = scatter(b, &cut);
    let start = shards.range(me).start;
    for (k, s) in cut[me].iter().enumerate() {
        let reduced = contributions.reduce(b, k, s, Place::Output(s.start - start));
        // Nothing comes back that would show that there is room, so it is said.
        if k + window < cut[me].len() {
            for distance in 1..n {
                b.signal(b.ahead(distance), 0, &[reduced]);
            }
        }
    }
    for distance in 1..n {
        let from = (me + n - distance) % n;
        for &send in contributions.sends[from].iter().skip(window) {
            let room = b.hear(from);
            b.after(room, send);
        }
    }
}

pub(super) fn all_gather(b: &mut Builder<'_>, counts: &[u64]) {
    let (n, me) = (b.n(), b.me);
    let shards = Shards::of(counts);
    let own = shards.range(me);
    for (k, s) in b.segments(own.clone()).into_iter().enumerate() {
        for distance in 1..n {
            let part = (Place::Input(s.start - own.start), Repr::Data);
            b.send(b.ahead(distance), part, s.end - s.start, k as u64, &[]);
        }
    }
    b.copy(0, own.start, own.end - own.start);
    for distance in 1..n {
        let from = (me + n - distance) % n;
        for s in b.segments(shards.range(from)) {
            b.recv(from, (Place::Output(s.start), Repr::Data), s.end - s.start);
        }
    }
}

/// The first step: everybody's contributions to everybody's shard.
struct Contributions {
    /// Of my contributions, by owner and segment.
    sends: Vec<Vec<u32>>,
    /// Of the others to my shard, by segment and position; mine is missing.
    received: Vec<Vec<Option<(Place, u32)>>>,
}

fn scatter(b: &mut Builder<'_>, cut: &[Vec<Range<u64>>]) -> Contributions {
    let (n, me) = (b.n(), b.me);
    let mut sends = vec![Vec::new(); n];
    let most = cut.iter().map(Vec::len).max().unwrap_or(0);
    for k in 0..most {
        // Everybody starts with the next one, so that no owner gets everything at once.
        for distance in 1..n {
            let to = b.ahead(distance);
            if let Some(s) = cut[to].get(k) {
                let part = (Place::Input(s.start), Repr::Data);
                sends[to].push(b.send(to, part, s.end - s.start, k as u64 + 1, &[]));
            }
        }
    }
    let mut received = Vec::with_capacity(cut[me].len());
    for s in &cut[me] {
        let mut parts = vec![None; n];
        for distance in 1..n {
            let from = (me + n - distance) % n;
            let temp = b.temp();
            parts[from] = Some((temp, b.recv(from, (temp, Repr::Data), s.end - s.start)));
        }
        received.push(parts);
    }
    Contributions { sends, received }
}

impl Contributions {
    /// Reduces segment `k` of my shard.
    fn reduce(&self, b: &mut Builder<'_>, k: usize, s: &Range<u64>, out: Place) -> u32 {
        let own = Place::Input(s.start);
        let received = &self.received[k];
        let parts = received.iter().map(|p| (p.map_or(own, |(temp, _)| temp), Repr::Data)).collect();
        let waits: Vec<u32> = received.iter().flatten().map(|(_, recv)| *recv).collect();
        let nodes = b.group.nodes();
        b.reduce(parts, nodes, out, s.end - s.start, &waits)
    }
}
