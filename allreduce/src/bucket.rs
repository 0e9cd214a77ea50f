//! Buckets: ranges of the flat gradient arena in the order in which backward finishes them.
//!
//! Parameters lie in forward order, so backward finishes the arena from its end. The first bucket is small, so that
//! the first transfer starts early; the others are large enough to pay for their latency. Every rank computes the
//! same plan from the same sizes, and [`BucketPlan::fingerprint`] proves it.

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

/// Borders of buckets lie at multiples of this many elements (64 bytes of f32): a SIMD register or cache line is
/// never shared by two buckets.
pub const ALIGN: usize = 16;

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

/// A range of the arena that is sent at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Elements of the arena.
    pub range: Range<usize>,
    /// Parameters that write into it, as indices in forward order. A parameter across a border is in both buckets.
    pub params: Range<usize>,
}

/// All buckets, in the order in which backward finishes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    buckets: Vec<Bucket>,
    arena_len: usize,
}

/// Why no plan can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A bucket could not hold a single aligned block.
    #[error("buckets of {first_bytes} and {target_bytes} bytes: each needs at least {} bytes", ALIGN * ELEMENT_BYTES)]
    TooSmall {
        /// Size of the first bucket.
        first_bytes: usize,
        /// Size of the others.
        target_bytes: usize,
    },
    /// The parameters are not ascending ranges inside the arena.
    #[error(
        "parameter {index} covers {start}..{end}, which overlaps the one before it or leaves the arena of {arena_len}"
    )]
    Layout {
        /// Index of the parameter.
        index: usize,
        /// Its first element.
        start: usize,
        /// Behind its last element.
        end: usize,
        /// Elements of the arena.
        arena_len: usize,
    },
}

impl BucketPlan {
    /// Divides an arena of `arena_len` elements whose parameters are `params`, in forward order.
    ///
    /// # Errors
    /// Sizes below one aligned block, or parameters that overlap or leave the arena.
    pub fn new(arena_len: usize, params: &[Range<usize>], options: BucketOptions) -> Result<Self, PlanError> {
        let BucketOptions { first_bytes, target_bytes } = options;
        if first_bytes.min(target_bytes) < ALIGN * ELEMENT_BYTES {
            return Err(PlanError::TooSmall { first_bytes, target_bytes });
        }
        check(arena_len, params)?;
        let mut buckets = Vec::new();
        let mut end = arena_len;
        while end > 0 {
            let bytes = if buckets.is_empty() { first_bytes } else { target_bytes };
            let start = end.saturating_sub(bytes / ELEMENT_BYTES).next_multiple_of(ALIGN);
            // An unaligned arena end would otherwise give an empty first bucket.
            let start = if start >= end { (end - 1) / ALIGN * ALIGN } else { start };
            buckets.push(Bucket { range: start..end, params: touching(params, &(start..end)) });
            end = start;
        }
        Ok(Self { buckets, arena_len })
    }

    /// The buckets in the order in which backward finishes them: from the end of the arena to its start.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Elements of the arena.
    pub fn arena_len(&self) -> usize {
        self.arena_len
    }

    /// How many buckets are complete once backward has finished every parameter from `param` on.
    pub fn complete_after(&self, param: usize) -> usize {
        self.buckets
            .iter()
            .take_while(|bucket| bucket.params.start >= param || bucket.params.is_empty())
            .count()
    }

    /// A number that is equal on ranks with equal plans.
    pub fn fingerprint(&self) -> u64 {
        let borders = self.buckets.iter().flat_map(|bucket| (bucket.range.start as u64).to_le_bytes());
        let bytes: Vec<u8> = (self.arena_len as u64).to_le_bytes().into_iter().chain(borders).collect();
        xxh3_64(&bytes)
    }
}

fn check(arena_len: usize, params: &[Range<usize>]) -> Result<(), PlanError> {
    let mut last = 0;
    for (index, param) in params.iter().enumerate() {
        let (start, end) = (param.start, param.end);
        if start < last || end < start || end > arena_len {
            return Err(PlanError::Layout { index, start, end, arena_len });
        }
        last = end;
    }
    Ok(())
}

fn touching(params: &[Range<usize>], range: &Range<usize>) -> Range<usize> {
    let first = params.partition_point(|param| param.end <= range.start);
    let last = params.partition_point(|param| param.start < range.end);
    first..last.max(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = (1 << 20) / ELEMENT_BYTES;

    fn plan(arena_len: usize, params: &[Range<usize>]) -> BucketPlan {
        let options = BucketOptions { first_bytes: 1 << 20, target_bytes: 4 << 20 };
        BucketPlan::new(arena_len, params, options).unwrap()
    }

    #[test]
    fn buckets_cover_the_arena_once_from_its_end() {
        for arena_len in [1, 15, 16, 17, MIB - 1, MIB, MIB + 1, 5 * MIB, 9 * MIB + 12_345] {
            let plan = plan(arena_len, &[]);
            let mut end = arena_len;
            for bucket in plan.buckets() {
                assert_eq!(bucket.range.end, end, "no gap and no overlap");
                assert!(!bucket.range.is_empty());
                assert_eq!(bucket.range.start % ALIGN, 0, "borders are aligned");
                end = bucket.range.start;
            }
            assert_eq!(end, 0, "arena of {arena_len}");
        }
        assert!(plan(0, &[]).buckets().is_empty());
    }

    #[test]
    fn the_first_bucket_is_small_and_the_others_have_the_target_size() {
        let plan = plan(9 * MIB, &[]);
        let sizes: Vec<_> = plan.buckets().iter().map(|b| b.range.len() / MIB).collect();
        assert_eq!(sizes, [1, 4, 4]);
    }

    #[test]
    fn a_bucket_is_complete_when_every_parameter_in_it_is() {
        // The middle parameter lies across the border of the first two buckets.
        let params = [0..4 * MIB, 4 * MIB..5 * MIB + 16, 5 * MIB + 16..6 * MIB];
        let plan = plan(6 * MIB, &params);
        let touched: Vec<_> = plan.buckets().iter().map(|b| b.params.clone()).collect();
        assert_eq!(touched, [1..3, 0..2, 0..1]);
        let complete: Vec<_> = (0..4).map(|param| plan.complete_after(param)).collect();
        assert_eq!(complete, [3, 1, 0, 0]);
    }

    #[test]
    fn equal_sizes_give_equal_fingerprints_and_others_do_not() {
        let a = plan(9 * MIB, &[]);
        assert_eq!(a.fingerprint(), plan(9 * MIB, &[]).fingerprint());
        assert_ne!(a.fingerprint(), plan(9 * MIB + 16, &[]).fingerprint());
        let other = BucketPlan::new(9 * MIB, &[], BucketOptions::default()).unwrap();
        assert_ne!(a.fingerprint(), other.fingerprint());
    }

    #[test]
    fn impossible_sizes_and_layouts_are_refused() {
        let small = BucketOptions { first_bytes: 60, target_bytes: 4096 };
        let error = BucketPlan::new(100, &[], small).unwrap_err().to_string();
        assert_eq!(error, "buckets of 60 and 4096 bytes: each needs at least 64 bytes");
        for params in [[0..10, 5..20], [0..10, 20..101]] {
            let error = BucketPlan::new(100, &params, BucketOptions::default()).unwrap_err();
            assert!(matches!(error, PlanError::Layout { index: 1, arena_len: 100, .. }), "{error}");
        }
    }
}
