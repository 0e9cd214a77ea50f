//! Buckets: ranges of the flat gradient arena in the order in which backward finishes them.
//!
//! Parameters lie in forward order, so backward finishes the arena from its end. The first bucket is small, so that
//! the first transfer starts early; the others are large enough to pay for their latency. A bucket holds whole
//! parameters: one that is larger than a bucket is a bucket of its own. Every rank computes the same plan from the
//! same layout.

use std::ops::Range;

/// Bytes of one gradient.
const ELEMENT_BYTES: usize = 4;

/// Sizes of buckets, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketOptions {
    /// Of the first bucket.
    pub first_bytes: usize,
    /// Of the others.
    pub target_bytes: usize,
}

impl Default for BucketOptions {
    /// 1 MiB, then 25 MiB.
    fn default() -> Self {
        Self { first_bytes: 1 << 20, target_bytes: 25 << 20 }
    }
}

/// All buckets, in the order in which backward finishes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    buckets: Vec<Range<usize>>,
    arena_len: usize,
}

/// Why no plan can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("border {index} of the arena of {arena_len} elements is {border}; borders start at 0 and ascend")]
pub struct PlanError {
    /// Index of the border.
    pub index: usize,
    /// Its element.
    pub border: usize,
    /// Elements of the arena.
    pub arena_len: usize,
}

impl BucketPlan {
    /// Divides an arena of `arena_len` elements; `starts` are the elements at which a bucket may start, ascending
    /// from 0. The bucket that starts at 0 ends at `first_end`, one of `starts`, and holds nothing else.
    ///
    /// # Errors
    /// Borders that don't ascend inside the arena.
    pub fn new(
        arena_len: usize,
        starts: &[usize],
        first_end: usize,
        options: BucketOptions,
    ) -> Result<Self, PlanError> {
        let mut last = None;
        for (index, &border) in starts.iter().enumerate() {
            let follows = last.map_or(border == 0, |last| border > last);
            if !follows || border >= arena_len {
                return Err(PlanError { index, border, arena_len });
            }
            last = Some(border);
        }
        let mut buckets = Vec::new();
        let mut end = arena_len;
        for &start in starts.iter().rev() {
            let bytes = if buckets.is_empty() { options.first_bytes } else { options.target_bytes };
            if (end - start) * ELEMENT_BYTES >= bytes || start == 0 || start == first_end {
                buckets.push(start..end);
                end = start;
            }
        }
        Ok(Self { buckets, arena_len })
    }

    /// The buckets in the order in which backward finishes them: from the end of the arena to its start.
    pub fn buckets(&self) -> &[Range<usize>] {
        &self.buckets
    }

    /// Elements of the arena.
    pub fn arena_len(&self) -> usize {
        self.arena_len
    }

    /// The bucket that holds an element.
    ///
    /// # Panics
    /// If the arena has no such element.
    pub fn bucket_of(&self, element: usize) -> usize {
        assert!(element < self.arena_len, "element {element} of an arena of {}", self.arena_len);
        self.buckets.partition_point(|bucket| bucket.start > element)
    }

    /// How many buckets are complete once every element from `element` on is final.
    pub fn complete_from(&self, element: usize) -> usize {
        self.buckets.partition_point(|bucket| bucket.start >= element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = (1 << 20) / ELEMENT_BYTES;

    fn plan(arena_len: usize, starts: &[usize]) -> BucketPlan {
        let options = BucketOptions { first_bytes: 1 << 20, target_bytes: 4 << 20 };
        BucketPlan::new(arena_len, starts, arena_len, options).unwrap()
    }

    #[test]
    fn buckets_cover_the_arena_once_from_its_end_and_hold_whole_parameters() {
        let starts: Vec<usize> = (0..40).map(|i| i * MIB / 3).collect();
        let plan = plan(14 * MIB, &starts);
        let mut end = 14 * MIB;
        for bucket in plan.buckets() {
            assert_eq!(bucket.end, end, "no gap and no overlap");
            assert!(starts.contains(&bucket.start));
            end = bucket.start;
        }
        assert_eq!(end, 0);
        let thirds: Vec<_> = plan.buckets().iter().map(|b| b.len() / (MIB / 3)).collect();
        assert_eq!(thirds[0], 3, "the first one is small");
        assert!(thirds[1..thirds.len() - 1].iter().all(|&t| t == 12), "{thirds:?}");
    }

    #[test]
    fn a_large_parameter_is_a_bucket_of_its_own() {
        let plan = plan(60 * MIB, &[0, 50 * MIB, 55 * MIB, 59 * MIB]);
        let sizes: Vec<_> = plan.buckets().iter().map(|b| b.len() / MIB).collect();
        assert_eq!(sizes, [1, 4, 5, 50]);
    }

    #[test]
    fn a_bucket_is_complete_when_every_parameter_in_it_is() {
        let plan = plan(6 * MIB, &[0, MIB, 5 * MIB]);
        assert_eq!(plan.buckets(), [5 * MIB..6 * MIB, MIB..5 * MIB, 0..MIB]);
        let complete = [6 * MIB, 5 * MIB + 1, 5 * MIB, 2 * MIB, MIB, 1, 0].map(|e| plan.complete_from(e));
        assert_eq!(complete, [0, 0, 1, 1, 2, 2, 3]);
        let of = [0, MIB - 1, MIB, 5 * MIB - 1, 5 * MIB, 6 * MIB - 1].map(|e| plan.bucket_of(e));
        assert_eq!(of, [2, 2, 1, 1, 0, 0]);
    }

    #[test]
    fn the_first_parameter_can_have_a_bucket_of_its_own() {
        let options = BucketOptions { first_bytes: 1 << 20, target_bytes: 4 << 20 };
        let plan = BucketPlan::new(6 * MIB, &[0, MIB / 2, MIB, 5 * MIB], MIB / 2, options).unwrap();
        assert_eq!(plan.buckets(), [5 * MIB..6 * MIB, MIB..5 * MIB, MIB / 2..MIB, 0..MIB / 2]);
    }

    #[test]
    fn impossible_borders_are_refused() {
        assert!(plan(0, &[]).buckets().is_empty());
        for starts in [[5, 10], [0, 0], [0, 100]] {
            let error = BucketPlan::new(100, &starts, 100, BucketOptions::default()).unwrap_err();
            assert_eq!(error.arena_len, 100, "{error}");
        }
    }
}
