//! Deals the rows of a global batch to ranks: a pure function of the rows, their lengths and the ranks' threads.

use std::sync::Arc;

/// The part of each global batch that a rank computes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    rank: usize,
    /// Of each rank.
    threads: Arc<[u32]>,
}

impl Share {
    /// Everything: the share of the only rank.
    pub fn whole() -> Self {
        Self::new(0, vec![1])
    }

    /// The share of `rank`, where each rank has so many compute threads.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn new(rank: usize, threads: Vec<u32>) -> Self {
        assert!(rank < threads.len(), "rank {rank} of {}", threads.len());
        Self { rank, threads: threads.into() }
    }

    /// The rows of this rank, in the order in which they came.
    pub fn of(&self, rows: Vec<u64>, length: impl Fn(u64) -> usize) -> Vec<u64> {
        if self.threads.len() == 1 {
            return rows;
        }
        let mine = deal(&rows, length, &self.threads);
        rows.into_iter().zip(mine).filter(|(_, rank)| *rank == self.rank).map(|(row, _)| row).collect()
    }
}

/// The rank of each row: the longest rows first, each to the rank that would be done with it first.
///
/// Ranks get tokens in proportion to their threads, as nearly as rows allow. A rank may get none.
pub fn deal(rows: &[u64], length: impl Fn(u64) -> usize, threads: &[u32]) -> Vec<usize> {
    let mut order: Vec<(usize, usize)> = rows.iter().map(|&row| length(row)).zip(0..).collect();
    // Rows of one length go by their place in the batch.
    order.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut load = vec![0u64; threads.len()];
    let mut ranks = vec![0; rows.len()];
    for (tokens, place) in order {
        let done = |rank: usize| (load[rank] + tokens as u64) as u128;
        // done(a) / threads(a) < done(b) / threads(b), without rounding.
        let first = (0..threads.len())
            .min_by(|&a, &b| {
                let (left, right) =
                    (done(a) * u128::from(threads[b].max(1)), done(b) * u128::from(threads[a].max(1)));
                left.cmp(&right).then(a.cmp(&b))
            })
            .expect("a world has a rank");
        load[first] += tokens as u64;
        ranks[place] = first;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_row_goes_to_one_rank_and_loads_differ_by_less_than_the_longest_row(
            lens in prop::collection::vec(1usize..130, 0..200),
            ranks in 1usize..9,
        ) {
            let rows: Vec<u64> = (0..lens.len() as u64).map(|i| i * 7 + 3).collect();
            let length = |row: u64| lens[((row - 3) / 7) as usize];
            let shares: Vec<Vec<u64>> =
                (0..ranks).map(|r| Share::new(r, vec![4; ranks]).of(rows.clone(), length)).collect();
            let mut all: Vec<u64> = shares.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert_eq!(&all, &rows);
            let loads: Vec<usize> = shares.iter().map(|s| s.iter().map(|&row| length(row)).sum()).collect();
            let (least, most) = (loads.iter().min().unwrap(), loads.iter().max().unwrap());
            prop_assert!(most - least <= lens.iter().copied().max().unwrap_or(0), "{:?}", loads);
        }
    }

    #[test]
    fn ranks_with_more_threads_get_more_tokens() {
        let rows: Vec<u64> = (0..120).collect();
        let ranks = deal(&rows, |_| 10, &[3, 1]);
        let counts = [0, 1].map(|rank| ranks.iter().filter(|&&r| r == rank).count());
        assert_eq!(counts, [90, 30]);
    }

    #[test]
    fn a_batch_smaller_than_the_world_leaves_ranks_without_rows() {
        assert_eq!(deal(&[5, 6], |row| row as usize, &[1, 1, 1]), [1, 0]);
        assert_eq!(Share::new(2, vec![1, 1, 1]).of(vec![5, 6], |row| row as usize), [0u64; 0]);
    }
}
