//! Cuts the rows of a global batch into micro-batches under a token budget, and lays their tokens end to end.
//!
//! Rows are sorted by length, longest first, and cut into contiguous groups: rows of a group are of similar length,
//! and the largest memory demand of a step comes first. The number of groups is the smallest that contiguous groups
//! allow; the cuts then spread the tokens as evenly as the budget permits. Everything is a function of the lengths and
//! the row numbers, so a repeated step has the same micro-batches bit for bit.

use crate::batch::MicroBatch;

use super::cache::TokenStore;

/// What one micro-batch may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Tokens; a single row above it gets a micro-batch of its own.
    pub tokens: usize,
    /// Rows.
    pub rows: usize,
}

impl Budget {
    /// A budget in tokens only.
    pub fn tokens(tokens: usize) -> Self {
        Self { tokens, rows: usize::MAX }
    }
}

/// Packs `rows` into micro-batches: every row exactly once, longest first.
///
/// # Panics
/// A budget of 0 rows.
pub fn pack(rows: &[u64], length: impl Fn(u64) -> usize, budget: Budget) -> Vec<Vec<u64>> {
    assert!(budget.rows > 0, "a micro-batch holds at least one row");
    let mut sorted: Vec<(usize, u64)> = rows.iter().map(|&row| (length(row), row)).collect();
    sorted.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut groups = Vec::new();
    let mut start = 0;
    for end in cuts(&sorted, budget) {
        groups.push(sorted[start..end].iter().map(|&(_, row)| row).collect());
        start = end;
    }
    groups
}

/// Ends of the groups: as few as possible, each near its share of the tokens that are left.
fn cuts(sorted: &[(usize, u64)], budget: Budget) -> Vec<usize> {
    let furthest = furthest_ends(sorted, budget);
    // Groups needed from each row on, when every group is filled.
    let mut needed = vec![0usize; sorted.len() + 1];
    for start in (0..sorted.len()).rev() {
        needed[start] = 1 + needed[furthest[start]];
    }
    let mut left: usize = sorted.iter().map(|&(len, _)| len).sum();
    let mut ends = Vec::with_capacity(needed[0]);
    let mut start = 0;
    while start < sorted.len() {
        let groups = needed[start];
        let share = left / groups;
        let mut tokens = 0;
        let mut end = start;
        while end < furthest[start] {
            let len = sorted[end].0;
            // One more row brings the group nearer to its share, or the other groups could not hold it.
            let nearer = (tokens + len).abs_diff(share) <= tokens.abs_diff(share);
            if !nearer && end > start && needed[end] < groups {
                break;
            }
            tokens += len;
            end += 1;
        }
        left -= tokens;
        ends.push(end);
        start = end;
    }
    ends
}

/// For each row, the end of the longest group that starts there and keeps the budget.
fn furthest_ends(sorted: &[(usize, u64)], budget: Budget) -> Vec<usize> {
    let mut ends = Vec::with_capacity(sorted.len());
    let (mut end, mut tokens) = (0, 0usize);
    for start in 0..sorted.len() {
        while end < sorted.len()
            && (end == start || (tokens + sorted[end].0 <= budget.tokens && end - start < budget.rows))
        {
            tokens += sorted[end].0;
            end += 1;
        }
        ends.push(end);
        tokens -= sorted[start].0;
    }
    ends
}

/// Lays the tokens of `rows` end to end, with positions, token types and targets.
///
/// # Panics
/// A row that the store does not have.
pub fn collate(store: &TokenStore, rows: &[u64]) -> MicroBatch {
    let mut batch = MicroBatch::empty();
    for &row in rows {
        let (ids, second_from) = store.row(row as usize);
        batch.push(row, ids, second_from);
    }
    batch.targets = store.shape().collate(rows.iter().map(|&row| store.target_words(row as usize)));
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Packs the rows `0..lengths.len()`.
    fn pack_all(lengths: &[usize], budget: Budget) -> Vec<Vec<u64>> {
        let rows: Vec<u64> = (0..lengths.len() as u64).collect();
        pack(&rows, |row| lengths[row as usize], budget)
    }

    fn sums(groups: &[Vec<u64>], lengths: &[usize]) -> Vec<usize> {
        groups.iter().map(|group| group.iter().map(|&row| lengths[row as usize]).sum()).collect()
    }

    proptest! {
        #[test]
        fn every_row_once_within_the_budget_and_in_length_order(
            lengths in prop::collection::vec(1usize..600, 1..200), tokens in 1usize..3000, rows in 1usize..50,
        ) {
            let budget = Budget { tokens, rows };
            let groups = pack_all(&lengths, budget);
            let flat: Vec<u64> = groups.iter().flatten().copied().collect();
            let mut once = flat.clone();
            once.sort_unstable();
            prop_assert_eq!(once, (0..lengths.len() as u64).collect::<Vec<_>>());
            prop_assert!(flat.windows(2).all(|w| lengths[w[0] as usize] >= lengths[w[1] as usize]));
            for (group, sum) in groups.iter().zip(sums(&groups, &lengths)) {
                prop_assert!(sum <= tokens || group.len() == 1, "{} tokens in {} rows", sum, group.len());
                prop_assert!(!group.is_empty() && group.len() <= rows);
            }
        }

        #[test]
        fn no_more_groups_than_greedy_filling_makes(
            lengths in prop::collection::vec(1usize..600, 1..200), tokens in 600usize..3000,
        ) {
            let mut sorted = lengths.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            let (mut greedy, mut filled) = (1, 0);
            for len in sorted {
                if filled + len > tokens {
                    (greedy, filled) = (greedy + 1, 0);
                }
                filled += len;
            }
            prop_assert_eq!(pack_all(&lengths, Budget::tokens(tokens)).len(), greedy);
        }

        #[test]
        fn short_rows_are_spread_evenly(
            lengths in prop::collection::vec(1usize..64, 32..200), tokens in 256usize..2048,
        ) {
            // With rows that are small against the budget no group is tiny: each misses its share by a row at most,
            // and a full group by what does not fit; together less than half of the mean here.
            let groups = pack_all(&lengths, Budget::tokens(tokens));
            let sums = sums(&groups, &lengths);
            let mean = lengths.iter().sum::<usize>() / sums.len();
            prop_assert!(sums.iter().all(|&sum| sum + 64 >= mean / 2), "{:?}, mean {}", sums, mean);
        }

        #[test]
        fn the_order_in_which_rows_come_does_not_matter(lengths in prop::collection::vec(1usize..100, 1..60)) {
            let forward: Vec<u64> = (0..lengths.len() as u64).collect();
            let backward: Vec<u64> = forward.iter().rev().copied().collect();
            let length = |row: u64| lengths[row as usize];
            let budget = Budget::tokens(300);
            prop_assert_eq!(pack(&forward, length, budget), pack(&backward, length, budget));
        }
    }

    #[test]
    fn the_last_micro_batch_is_not_a_leftover() {
        // Greedy filling would give 10 + 10 + 1 rows.
        let groups = pack_all(&[10; 21], Budget::tokens(100));
        assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [7, 7, 7]);
    }

    #[test]
    fn a_row_over_the_budget_stands_alone() {
        let groups = pack_all(&[5, 500, 5], Budget::tokens(100));
        assert_eq!(groups, [vec![1], vec![0, 2]]);
    }

    #[test]
    fn no_rows_give_no_micro_batches() {
        assert!(pack_all(&[], Budget::tokens(100)).is_empty());
    }
}
