//! A digest of the bits of a buffer.

use xxhash_rust::xxh3::Xxh3;

/// Numbers hashed at once.
const CHUNK: usize = 1024;

/// Hashes the bits of `values` in their order: equal digests mean bit-identical buffers, on every machine.
///
/// `0.0` and `-0.0` differ, as do NaNs with other payloads. Cost: one pass.
pub fn digest(values: &[f32]) -> u64 {
    let mut hasher = Xxh3::new();
    let mut bytes = [0u8; 4 * CHUNK];
    for chunk in values.chunks(CHUNK) {
        let bytes = &mut bytes[..4 * chunk.len()];
        for (slot, value) in bytes.chunks_exact_mut(4).zip(chunk) {
            // Little-endian whatever the machine, so that digests can be compared across a mixed cluster.
            slot.copy_from_slice(&value.to_bits().to_le_bytes());
        }
        hasher.update(bytes);
    }
    hasher.digest()
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
