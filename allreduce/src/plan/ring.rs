//! Ring: each rank talks to its two neighbours only. As few bytes as the direct algorithm, but 2 (n - 1) steps, and
//! the order of summation depends on the shard; for worlds where many senders at one receiver hurt.

use std::ops::Range;

use super::build::Builder;
use super::shape::Shards;
use super::{Place, Repr};

type Cut = Vec<Vec<Range<u64>>>;

pub(super) fn all_reduce(b: &mut Builder<'_>, count: u64) {
    let n = b.n();
    let shards = Shards::even(count, n, b.element_bytes);
    let cut: Cut = (0..n).map(|p| b.segments(shards.range(p))).collect();
    let reduced = scatter(b, &cut, 0);
    gather(b, &cut, &reduced, None);
}

pub(super) fn reduce_scatter(b: &mut Builder<'_>, counts: &[u64]) {
    let shards = Shards::of(counts);
    let cut: Cut = (0..b.n()).map(|p| b.segments(shards.range(p))).collect();
    scatter(b, &cut, shards.range(b.me).start);
}

pub(super) fn all_gather(b: &mut Builder<'_>, counts: &[u64]) {
    let shards = Shards::of(counts);
    let cut: Cut = (0..b.n()).map(|p| b.segments(shards.range(p))).collect();
    let own = shards.range(b.me);
    b.copy(0, own.start, own.end - own.start);
    gather(b, &cut, &[], Some(own.start));
}

/// Sums of each shard go around and end at its owner, which stores them `base` elements before their place.
/// Returns the tasks that store each segment of my shard.
///
/// The first segments of all shards go around before the second ones start. A message waits for the neighbour to
/// pass on one that is at least two older, which is always one that can go: the ring can't block itself.
fn scatter(b: &mut Builder<'_>, cut: &Cut, base: u64) -> Vec<u32> {
    let (n, me) = (b.n(), b.me);
    let window = (b.window as usize).max(n.min(16)).max(2);
    let (left, right) = ((me + n - 1) % n, b.ahead(1));
    // My sums with their temps, and the tasks after which the room of a received sum is free again.
    let (mut sends, mut freed, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    for k in 0..cut.iter().map(Vec::len).max().unwrap_or(0) {
        // The sum that arrived in the step before and has my contribution now.
        let mut sum: Option<(Place, u32)> = None;
        for step in 0..n - 1 {
            if let Some(s) = cut[(me + 2 * n - 1 - step) % n].get(k) {
                let place = sum.map_or(Place::Input(s.start), |(place, _)| place);
                let made: Vec<u32> = sum.map(|(_, task)| task).into_iter().collect();
                let order = sends.len() as u64;
                let send = b.send(right, (place, Repr::Partial), s.end - s.start, order, &made);
                freed.extend(sum.map(|_| send));
                sends.push((send, place));
            }
            sum = cut[(me + 2 * n - 2 - step) % n].get(k).map(|s| {
                let len = s.end - s.start;
                let received = (b.temp(), Repr::Partial);
                let recv = b.recv(left, received, len);
                let last = step == n - 2;
                let out = if last { Place::Output(s.start - base) } else { b.temp() };
                let own = (Place::Input(s.start), Repr::Data);
                let task = b.reduce(vec![received, own], &[2], out, len, &[recv]);
                if last {
                    freed.push(task);
                    stored.push(task);
                }
                (out, task)
            });
        }
    }
    for &task in &freed {
        b.signal(left, 0, &[task]);
    }
    for at in 0..sends.len() {
        let room = b.hear(right);
        // The right neighbour has the sum, so it need not be kept for a repair.
        b.hold(sends[at].1, room);
        if let Some(&(later, _)) = sends.get(at + window) {
            b.after(room, later);
        }
    }
    stored
}

/// Results go around: first mine, then those that arrive. Mine lie in the input `base` elements further down, or
/// in the output.
fn gather(b: &mut Builder<'_>, cut: &Cut, reduced: &[u32], base: Option<u64>) {
    let (n, me) = (b.n(), b.me);
    let (left, right) = ((me + n - 1) % n, b.ahead(1));
    let mut arrived: Vec<u32> = reduced.to_vec();
    for step in 0..n - 1 {
        let shard = (me + n - step) % n;
        for (k, s) in cut[shard].iter().enumerate() {
            let place = match base {
                Some(base) if step == 0 => Place::Input(s.start - base),
                _ => Place::Output(s.start),
            };
            let ready: Vec<u32> = arrived.get(k).copied().into_iter().collect();
            b.send(
                right,
                (place, Repr::Data),
                s.end - s.start,
                u64::from(u32::MAX / 2) + step as u64,
                &ready,
            );
        }
        let next = (me + 2 * n - 1 - step) % n;
        arrived.clear();
        for s in &cut[next] {
            arrived.push(b.recv(left, (Place::Output(s.start), Repr::Data), s.end - s.start));
        }
    }
}
