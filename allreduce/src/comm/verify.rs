//! Whether all ranks have the same bits.

use muster_proto::Rank;

use crate::error::{Error, Result};

/// Compares the digests of all ranks, `buckets` of each in rank order. The majority is right; without one, rank 0.
///
/// # Errors
/// [`Error::Divergence`] for the first bucket in which a rank differs, and the first such rank.
pub fn compare_digests(step: u64, digests: &[u64], buckets: usize) -> Result<()> {
    for bucket in 0..buckets {
        let of_bucket: Vec<u64> = digests.iter().skip(bucket).step_by(buckets).copied().collect();
        let votes = |digest: u64| of_bucket.iter().filter(|d| **d == digest).count();
        let mut right = of_bucket.first().copied().unwrap_or_default();
        for &digest in &of_bucket {
            if votes(digest) > votes(right) {
                right = digest;
            }
        }
        if let Some(at) = of_bucket.iter().position(|d| *d != right) {
            return Err(Error::Divergence { rank: Rank(at as u32), bucket, step });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minority_is_named_with_its_bucket() {
        assert!(compare_digests(1, &[5, 6, 5, 6, 5, 6], 2).is_ok());
        let error = compare_digests(9, &[5, 7, 5, 6, 5, 6], 2).unwrap_err();
        assert!(matches!(error, Error::Divergence { rank: Rank(0), bucket: 1, step: 9 }), "{error}");
        let error = compare_digests(9, &[5, 6], 1).unwrap_err();
        assert!(matches!(error, Error::Divergence { rank: Rank(1), bucket: 0, .. }), "{error}");
        assert!(compare_digests(9, &[], 0).is_ok());
    }
}
