//! How the work is cut: sequences into blocks of queries, and those into tasks. Neither depends on the threads.

use std::ops::Range;

use super::Shape;
use super::scratch::{BLOCK, HEADS};

/// Tasks of a call, about: several for each core of a large socket.
const TASKS: usize = 128;
/// Fewest queries of a task: below, laying out relative rows (or waking a thread) costs more than the attention.
const TASK_QUERIES: usize = 64;

/// Some units (sequences or blocks of queries) and some heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Task {
    /// Which range of units this is.
    pub(super) group: usize,
    pub(super) units: Range<usize>,
    pub(super) heads: Range<usize>,
}

/// Units of one sequence, and a head.
pub(super) type Run<'t, U> = (&'t [U], usize);

impl Task {
    /// Each run of units of one sequence, as `same` says, with each head in turn: heads are neighbours in memory, and
    /// blocks of a sequence share its keys.
    fn runs<'t, U>(&'t self, units: &'t [U], same: fn(&U, &U) -> bool) -> impl Iterator<Item = Run<'t, U>> {
        let runs = units[self.units.clone()].chunk_by(same);
        runs.flat_map(move |run| self.heads.clone().map(move |head| (run, head)))
    }
}

/// The runs of a task, each with the one that is next; after the last that is the first of the next task, which most
/// often runs on the same thread.
pub(super) fn runs<'t, U>(
    tasks: &'t [Task],
    task: usize,
    units: &'t [U],
    same: fn(&U, &U) -> bool,
) -> impl Iterator<Item = (Run<'t, U>, Option<Run<'t, U>>)> {
    let after = tasks.get(task + 1).and_then(|t| t.runs(units, same).next());
    let next = tasks[task].runs(units, same).skip(1).map(Some).chain([after]);
    tasks[task].runs(units, same).zip(next)
}

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

/// The part of a sequence to ask for while part `i` of `count` is at work: first token and number of tokens.
pub(super) fn share((first, n): (usize, usize), i: usize, count: usize) -> (usize, usize) {
    let (from, to) = (i * n / count, (i + 1) * n / count);
    (first + from, to - from)
}

/// Sequences that are not empty: first token and length.
pub(super) fn sequences(shape: &Shape<'_>) -> Vec<(usize, usize)> {
    (0..shape.rows()).map(|r| shape.row(r)).filter(|&(_, n)| n > 0).collect()
}

/// Cuts units, with (queries, keys) each, into at most `most` ranges of about equal cost, and those by heads.
///
/// With relative terms a task lays out the relative rows of its heads: few heads, and one where they are long.
pub(super) fn tasks<U>(
    units: &[U],
    size: impl Fn(&U) -> (usize, usize),
    heads: usize,
    relative: bool,
    most: usize,
) -> Vec<Task> {
    let queries: usize = units.iter().map(|u| size(u).0).sum();
    let short = units.iter().all(|u| size(u).1 <= BLOCK);
    let wanted = match (relative, short) {
        (false, _) => TASKS,
        (true, false) => TASKS.div_ceil(heads),
        (true, true) => TASKS.div_ceil(heads.div_ceil(HEADS)),
    };
    let count = wanted.min(queries / TASK_QUERIES).min(units.len()).min(most).max(1);
    let heads_each = match (relative, short) {
        (false, _) => (count * heads / TASKS).clamp(1, heads),
        (true, false) => 1,
        (true, true) => HEADS,
    };
    let groups = groups(units, size, count);
    let mut all = Vec::with_capacity(groups.len() * heads.div_ceil(heads_each));
    for (group, units) in groups.into_iter().enumerate() {
        for from in (0..heads).step_by(heads_each) {
            let heads = from..heads.min(from + heads_each);
            all.push(Task { group, units: units.clone(), heads });
        }
    }
    all
}

/// Cuts units into at most `count` ranges of about equal cost.
fn groups<U>(units: &[U], size: impl Fn(&U) -> (usize, usize), count: usize) -> Vec<Range<usize>> {
    // What does not grow with the keys (loading, storing) weighs as much as some tens of them.
    let cost = |u: &U| {
        let (queries, keys) = size(u);
        queries * (keys + 32)
    };
    let total: usize = units.iter().map(cost).sum();
    let (mut all, mut from, mut done) = (Vec::with_capacity(count), 0, 0);
    for (i, unit) in units.iter().enumerate() {
        done += cost(unit);
        // A unit that covers several shares closes one range: none is empty.
        if done * count >= total * (all.len() + 1) {
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
    fn tasks_cover_each_unit_and_head_once() {
        for (units, heads) in [(1, 1), (3, 12), (100, 12), (1000, 16), (40, 500)] {
            let lengths: Vec<usize> = (0..units).map(|i| 7 + (i * 31) % 49).collect();
            for relative in [false, true] {
                let all = tasks(&lengths, |&n| (n, n), heads, relative, usize::MAX);
                assert!(all.len() < 2 * TASKS.max(heads));
                let mut next = 0;
                for units in all.iter().filter(|t| t.heads.start == 0).map(|t| &t.units) {
                    assert!(units.start == next && units.end > units.start);
                    next = units.end;
                }
                assert_eq!(next, units);
                let pairs: usize = all.iter().map(|t| t.units.len() * t.heads.len()).sum();
                assert_eq!(pairs, units * heads);
                assert!(!relative || all.iter().all(|t| t.heads.len() <= HEADS));
            }
        }
        assert!(tasks(&[0_usize; 0], |&n| (n, n), 3, true, 9).is_empty());
        assert_eq!(tasks(&[512, 512, 512], |&n| (n, n), 1, true, 2).len(), 2);
    }

    #[test]
    fn a_task_says_what_comes_next() {
        let tasks =
            [Task { group: 0, units: 1..4, heads: 4..6 }, Task { group: 0, units: 1..4, heads: 6..7 }];
        let units = ['a', 'b', 'B', 'c'];
        let of = |task| runs(&tasks, task, &units, char::eq_ignore_ascii_case).collect::<Vec<_>>();
        let (both, last) = (&['b', 'B'][..], &['c'][..]);
        assert_eq!(of(0)[0], ((both, 4), Some((both, 5))));
        assert_eq!(of(0)[1], ((both, 5), Some((last, 4))));
        assert_eq!(of(0)[3], ((last, 5), Some((both, 6))));
        assert_eq!(of(1), [((both, 6), Some((last, 6))), ((last, 6), None)]);
    }
}
