//! How the work is cut: sequences into blocks of queries, and those into tasks. Neither depends on the threads.

use std::ops::Range;

use super::Shape;
use super::scratch::BLOCK;

/// Most tasks of a call, about: several for each core of a large socket.
const TASKS: usize = 512;
/// With relative terms every task lays out its head's relative rows, so there are fewer.
const TASKS_RELATIVE: usize = 128;
/// Fewest queries of a task: below, laying out relative rows (or waking a thread) costs more than the attention.
const TASK_QUERIES: usize = 64;

/// A block of queries of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Queries {
    /// First token and length of the sequence.
    pub(super) first: usize,
    pub(super) n: usize,
    /// First query and number of queries.
    pub(super) from: usize,
    pub(super) rows: usize,
}

/// Cuts a sequence into blocks of about equal size.
pub(super) fn blocks((first, n): (usize, usize)) -> impl Iterator<Item = Queries> {
    let count = n.div_ceil(BLOCK);
    (0..count).map(move |b| {
        let (from, to) = (b * n / count, (b + 1) * n / count);
        Queries { first, n, from, rows: to - from }
    })
}

/// Sequences that are not empty: first token and length.
pub(super) fn sequences(shape: &Shape<'_>) -> Vec<(usize, usize)> {
    (0..shape.rows()).map(|r| shape.row(r)).filter(|&(_, n)| n > 0).collect()
}

/// Cuts units into ranges of about equal cost, as many as `heads` tasks each make a call's number of tasks; at most
/// `most`.
pub(super) fn groups<T>(
    units: &[T],
    queries_and_keys: impl Fn(&T) -> (usize, usize),
    heads: usize,
    relative: bool,
    most: usize,
) -> Vec<Range<usize>> {
    let tasks = if relative { TASKS_RELATIVE } else { TASKS };
    // What does not grow with the keys (loading, storing) weighs as much as some tens of them.
    let cost = |u: &T| {
        let (queries, keys) = queries_and_keys(u);
        queries * (keys + 32)
    };
    let queries: usize = units.iter().map(|u| queries_and_keys(u).0).sum();
    let total: usize = units.iter().map(cost).sum();
    let wanted = tasks.div_ceil(heads).min(queries / TASK_QUERIES).min(units.len()).min(most).max(1);
    let (mut all, mut from, mut done) = (Vec::with_capacity(wanted), 0, 0);
    for (i, unit) in units.iter().enumerate() {
        done += cost(unit);
        // A unit that covers several shares closes one range: none is empty.
        if done * wanted >= total * (all.len() + 1) {
            all.push(from..i + 1);
            from = i + 1;
        }
    }
    debug_assert_eq!(from, units.len(), "the last share ends with the last unit");
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_each_query_once_and_are_even() {
        for n in 1..600 {
            let all: Vec<_> = blocks((7, n)).collect();
            let mut next = 0;
            for b in &all {
                assert_eq!((b.from, b.first, b.n), (next, 7, n));
                assert!(b.rows <= BLOCK && b.rows * 2 >= BLOCK.min(n));
                next += b.rows;
            }
            assert_eq!(next, n);
        }
    }

    #[test]
    fn groups_cover_each_unit_once_and_are_balanced() {
        for (units, heads) in [(1, 1), (3, 12), (100, 12), (1000, 16), (40, 500)] {
            let lengths: Vec<usize> = (0..units).map(|i| 7 + (i * 31) % 49).collect();
            for relative in [false, true] {
                let all = groups(&lengths, |&n| (n, n), heads, relative, usize::MAX);
                assert!(!all.is_empty() && all.len() * heads < TASKS.max(heads) + heads);
                let mut next = 0;
                for r in &all {
                    assert!(r.start == next && r.end > r.start);
                    next = r.end;
                }
                assert_eq!(next, units);
            }
        }
        assert!(groups(&[0_usize; 0], |&n| (n, n), 3, true, 9).is_empty());
        assert_eq!(groups(&[512, 512, 512], |&n| (n, n), 1, true, 2).len(), 2);
    }
}
