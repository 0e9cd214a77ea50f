//! Everybody sends everything to everybody: one step. With two ranks it moves no byte more than any other way.

use super::build::Builder;
use super::{Place, Repr};

pub(super) fn all_reduce(b: &mut Builder<'_>, count: u64, in_place: bool) {
    let (n, me, window) = (b.n(), b.me, b.window as usize);
    let mut reduced: Vec<u32> = Vec::new();
    for (k, s) in b.segments_or_empty(count).into_iter().enumerate() {
        let len = s.end - s.start;
        let own = (Place::Input(s.start), Repr::Data);
        // What I reduced needed this segment of every peer, and the peer sent it under the same rule: so each has
        // at most two windows of mine unreduced.
        let gate: Vec<u32> = k.checked_sub(window).map(|k| reduced[k]).into_iter().collect();
        let sends: Vec<u32> = (1..n).map(|d| b.send(b.ahead(d), own, len, k as u64, &gate)).collect();
        let mut parts = vec![own; n];
        let mut waits = Vec::with_capacity(2 * n);
        for distance in 1..n {
            let from = (me + n - distance) % n;
            parts[from] = (b.temp(), Repr::Data);
            waits.push(b.recv(from, parts[from], len));
        }
        if in_place {
            waits.extend(sends);
        }
        let nodes = b.group.nodes();
        reduced.push(b.reduce(parts, nodes, Place::Output(s.start), len, &waits));
    }
}
