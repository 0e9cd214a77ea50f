//! A digest of the bits of a buffer.

use xxhash_rust::xxh3::xxh3_64;

/// Hashes the bytes of `values` as they are in memory (little-endian wherever this builds): equal digests mean
/// bit-identical buffers.
///
/// `0.0` and `-0.0` differ, as do NaNs with other payloads. Cost: one pass.
pub fn digest(values: &[f32]) -> u64 {
    const { assert!(cfg!(target_endian = "little"), "digests are compared between machines") };
    xxh3_64(bytemuck::cast_slice(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i as f32).sin()).collect()
    }

    #[test]
    fn equal_bits_give_equal_digests_and_any_changed_bit_another() {
        let values = numbers(2_500);
        let expected = digest(&values);
        assert_eq!(digest(&values.clone()), expected);
        for at in [0, 1, 1_023, 1_024, 2_499] {
            let mut changed = values.clone();
            changed[at] = f32::from_bits(changed[at].to_bits() ^ 1);
            assert_ne!(digest(&changed), expected, "bit of element {at}");
        }
        let mut swapped = values;
        swapped.swap(3, 2_000);
        assert_ne!(digest(&swapped), expected, "order counts");
    }

    #[test]
    fn zeros_of_both_signs_and_lengths_differ() {
        assert_ne!(digest(&[0.0]), digest(&[-0.0]));
        assert_ne!(digest(&[0.0]), digest(&[0.0, 0.0]));
        assert_ne!(digest(&[]), digest(&[0.0]));
    }

    #[test]
    fn the_digest_is_xxh3_of_the_little_endian_bytes() {
        let values = numbers(1_500);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(digest(&values), xxhash_rust::xxh3::xxh3_64(&bytes));
    }
}
