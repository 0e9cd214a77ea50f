//! Recursive doubling: partners at distance 1, 2, 4, .. exchange partial sums, first within each node, then among
//! the nodes. Few steps and few connections; every byte moves log2(n) times.
//!
//! This is the canonical order of summation itself: see [`crate::order`].

use std::ops::Range;

use super::build::Builder;
use super::{Place, Repr};

pub(super) fn all_reduce(b: &mut Builder<'_>, count: u64) {
    let (me, n) = (b.me, b.n());
    let per_node = b.group.equal_nodes().unwrap_or(n);
    let node_start = me / per_node * per_node;
    let local: Vec<usize> = (node_start..node_start + per_node).collect();
    let rail: Vec<usize> = (me % per_node..n).step_by(per_node).collect();
    for (k, s) in b.segments_or_empty(count).into_iter().enumerate() {
        let mut walk = Walk { b, len: s.end - s.start, order: k as u64 };
        // A copy: in place, the result may overwrite the input while its first message may have to be repeated.
        let own = walk.weigh((Place::Input(s.start), Repr::Data));
        let node_sum = walk.stage(&local, own);
        let sum = walk.stage(&rail, node_sum);
        walk.store(sum, &s);
    }
}

/// A partial sum and the task that makes it.
#[derive(Clone, Copy)]
struct Value {
    place: Place,
    ready: u32,
}

struct Walk<'a, 'b> {
    b: &'a mut Builder<'b>,
    len: u64,
    order: u64,
}

impl Walk<'_, '_> {
    /// Leaves the sum over these positions at each of them.
    fn stage(&mut self, positions: &[usize], own: Value) -> Value {
        let n = positions.len();
        let active = 1_usize << n.ilog2();
        // The first 2 * folded positions work in pairs; the even one of a pair takes part for both.
        let folded = n - active;
        let me = positions.iter().position(|&p| p == self.b.me).unwrap_or(0);
        let paired = me < 2 * folded;
        if paired && me % 2 == 1 {
            self.send(positions[me - 1], own);
            return self.receive(positions[me - 1]);
        }
        let mut value = own;
        if paired {
            let other = self.receive(positions[me + 1]);
            value = self.combine(value, other);
        }
        let mine = if paired { me / 2 } else { me - folded };
        let position = |v: usize| positions[if v < folded { 2 * v } else { v + folded }];
        let mut distance = 1;
        while distance < active {
            let partner = mine ^ distance;
            self.send(position(partner), value);
            let other = self.receive(position(partner));
            value = if partner < mine { self.combine(other, value) } else { self.combine(value, other) };
            distance *= 2;
        }
        if paired {
            self.send(positions[me + 1], value);
        }
        value
    }

    fn send(&mut self, to: usize, value: Value) {
        self.b.send(to, (value.place, Repr::Partial), self.len, self.order, &[value.ready]);
    }

    fn receive(&mut self, from: usize) -> Value {
        let place = self.temp();
        Value { place, ready: self.b.recv(from, (place, Repr::Partial), self.len) }
    }

    /// My contribution as a partial sum of one.
    fn weigh(&mut self, own: (Place, Repr)) -> Value {
        let place = self.temp();
        Value { place, ready: self.b.reduce(vec![own], &[1], place, self.len, &[]) }
    }

    fn combine(&mut self, low: Value, high: Value) -> Value {
        let place = self.temp();
        let parts = vec![(low.place, Repr::Partial), (high.place, Repr::Partial)];
        Value { place, ready: self.b.reduce(parts, &[2], place, self.len, &[low.ready, high.ready]) }
    }

    /// Divides and rounds into the output.
    fn store(&mut self, sum: Value, s: &Range<u64>) {
        let part = vec![(sum.place, Repr::Partial)];
        self.b.reduce(part, &[1], Place::Output(s.start), self.len, &[sum.ready]);
    }

    /// A temp that is kept to the end: nothing proves earlier that its message arrived.
    fn temp(&mut self) -> Place {
        let place = self.b.temp();
        self.b.keep(place);
        place
    }
}
