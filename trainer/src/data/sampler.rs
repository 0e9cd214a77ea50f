//! The order of training rows: a pure function of (seed, epoch), cut into global batches.
//!
//! There is no state to save. A cursor is the number of global rows consumed since the start of the run; it means the
//! same whatever the number of ranks (case 50) and is exact at the ends of epochs (case 39). The last batch of an
//! epoch is kept and may be smaller, so every row is seen once per epoch.

use std::ops::Range;

use super::rng::{self, Purpose, Stream};
use muster_proto::limits::MAX_ROWS;

/// Deals the rows of a data set into steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampler {
    seed: u64,
    rows: u64,
    global_batch: u64,
}

impl Sampler {
    /// Makes the sampler of a run.
    ///
    /// # Panics
    /// No rows, an empty global batch, or more rows than `MAX_ROWS` (data sets refuse both earlier).
    pub fn new(seed: u64, rows: u64, global_batch: u64) -> Self {
        assert!(rows > 0 && rows <= MAX_ROWS, "a data set has 1..={MAX_ROWS} rows, got {rows}");
        assert!(global_batch > 0, "a global batch has at least one row");
        Self { seed, rows, global_batch }
    }

    /// Rows of an epoch.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Steps of an epoch, the partial one included.
    pub fn steps_per_epoch(&self) -> u64 {
        self.rows.div_ceil(self.global_batch)
    }

    /// Epoch (from 0) of a step (from 0).
    pub fn epoch_of_step(&self, step: u64) -> u64 {
        step / self.steps_per_epoch()
    }

    /// Rows in a step's global batch.
    pub fn row_count(&self, step: u64) -> u64 {
        let range = self.range_in_epoch(step);
        range.end - range.start
    }

    /// Global rows consumed before a step: the cursor of a run that stopped there.
    pub fn cursor_of_step(&self, step: u64) -> u64 {
        self.epoch_of_step(step) * self.rows + self.range_in_epoch(step).start
    }

    /// The step at which a run with this cursor goes on; `None` if the cursor is inside a global batch, which happens
    /// when the global batch or the data changed.
    pub fn step_of_cursor(&self, cursor: u64) -> Option<u64> {
        let (epoch, inside) = (cursor / self.rows, cursor % self.rows);
        let whole = inside % self.global_batch == 0;
        whole.then(|| epoch * self.steps_per_epoch() + inside / self.global_batch)
    }

    /// Rows of a step, computed from nothing but (seed, step).
    ///
    /// Cost: permutes the whole epoch; a loop keeps an `EpochOrder`.
    pub fn rows_of_step(&self, step: u64) -> Vec<u64> {
        self.epoch_order(self.epoch_of_step(step)).rows_of_step(step).collect()
    }

    /// The order of one epoch. Cost: 4 bytes and one random number per row.
    pub fn epoch_order(&self, epoch: u64) -> EpochOrder {
        let mut order: Vec<u32> = (0..self.rows as u32).collect();
        let mut stream = Stream::new(rng::key(self.seed, Purpose::EpochOrder, epoch));
        for last in (1..order.len()).rev() {
            order.swap(last, stream.below(last as u64 + 1) as usize);
        }
        EpochOrder { sampler: *self, epoch, order }
    }

    fn range_in_epoch(&self, step: u64) -> Range<u64> {
        let start = step % self.steps_per_epoch() * self.global_batch;
        start..(start + self.global_batch).min(self.rows)
    }
}

/// The permutation of one epoch, kept while its steps are dealt.
pub struct EpochOrder {
    sampler: Sampler,
    epoch: u64,
    order: Vec<u32>,
}

impl EpochOrder {
    /// The epoch, from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Rows of a step of this epoch, in order.
    ///
    /// # Panics
    /// The step belongs to another epoch.
    pub fn rows_of_step(&self, step: u64) -> impl Iterator<Item = u64> + '_ {
        assert_eq!(self.sampler.epoch_of_step(step), self.epoch, "step {step} is of another epoch");
        let range = self.sampler.range_in_epoch(step);
        self.order[range.start as usize..range.end as usize].iter().map(|&row| row.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_epoch_deals_every_row_once(seed in any::<u64>(), rows in 1u64..300, batch in 1u64..70, epoch in 0u64..5) {
            let sampler = Sampler::new(seed, rows, batch);
            let steps = sampler.steps_per_epoch();
            let mut seen = Vec::new();
            for step in epoch * steps..(epoch + 1) * steps {
                let dealt = sampler.rows_of_step(step);
                prop_assert_eq!(dealt.len() as u64, sampler.row_count(step));
                prop_assert_eq!(sampler.cursor_of_step(step), epoch * rows + seen.len() as u64);
                prop_assert_eq!(sampler.step_of_cursor(sampler.cursor_of_step(step)), Some(step));
                prop_assert_eq!(sampler.epoch_of_step(step), epoch);
                seen.extend(dealt);
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..rows).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_order_is_a_function_of_seed_and_epoch() {
        let order = |seed, epoch| {
            let sampler = Sampler::new(seed, 1000, 1000);
            sampler.rows_of_step(epoch)
        };
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn the_global_batch_does_not_change_the_order() {
        let whole = Sampler::new(3, 100, 100).rows_of_step(0);
        let sampler = Sampler::new(3, 100, 7);
        let pieces: Vec<u64> =
            (0..sampler.steps_per_epoch()).flat_map(|step| sampler.rows_of_step(step)).collect();
        assert_eq!(whole, pieces);
    }

    #[test]
    fn a_cursor_inside_a_batch_names_no_step() {
        // 10 rows in batches of 4: 4, 4, 2; the cursor of epoch 1 starts at 10.
        let sampler = Sampler::new(1, 10, 4);
        let steps: Vec<Option<u64>> = [0, 4, 8, 10, 14, 6].map(|c| sampler.step_of_cursor(c)).to_vec();
        assert_eq!(steps, [Some(0), Some(1), Some(2), Some(3), Some(4), None]);
    }

    #[test]
    fn every_position_is_equally_likely_for_a_row() {
        // 4,000 epochs of 8 rows: row 0 lands on each position 500 times, standard deviation 21; five of them.
        let sampler = Sampler::new(11, 8, 8);
        let mut counts = [0i32; 8];
        for epoch in 0..4000 {
            let rows = sampler.rows_of_step(epoch);
            counts[rows.iter().position(|&row| row == 0).expect("every row is dealt")] += 1;
        }
        assert!(counts.iter().all(|c| (c - 500).abs() < 105), "{counts:?}");
    }
}
