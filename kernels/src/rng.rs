//! Counter-based random numbers: pure functions of a key and a counter, so nothing has to be stored to repeat them.

/// The increment of SplitMix64: the golden ratio in 64 bits.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const ODD: u64 = 0xd134_2543_de82_ef95;

/// A permutation of the 64-bit integers in which every input bit reaches every output bit (the finaliser of
/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[inline(always)]
pub const fn scramble(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Hashes two words into one; for a fixed `a` it is a permutation of `b`.
#[inline(always)]
pub const fn mix(a: u64, b: u64) -> u64 {
    scramble(scramble(a.wrapping_add(GOLDEN)).wrapping_add(b.wrapping_mul(ODD)))
}

/// A uniform number in `[0, 1)` with 53 random bits.
pub fn uniform(key: u64, counter: u64) -> f64 {
    (mix(key, counter) >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// A normal number of mean 0 and variance 1 (Box and Muller, computed in f64).
pub fn normal(key: u64, counter: u64) -> f32 {
    let wide = mix(key, counter);
    let radius = 1.0 - uniform(wide, 0); // in (0, 1], so the logarithm is finite
    let angle = std::f64::consts::TAU * uniform(wide, 1);
    ((-2.0 * radius.ln()).sqrt() * angle.cos()) as f32
}

/// A uniform integer in `0..n`; its bias is below `n / 2^64`.
///
/// # Panics
/// If `n` is 0.
pub fn below(key: u64, counter: u64, n: u64) -> u64 {
    assert!(n > 0, "below(0) has no value to return");
    ((u128::from(mix(key, counter)) * u128::from(n)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checkpoint resumes bitwise only as long as the streams stay what they are.
    #[test]
    fn the_streams_are_pinned() {
        assert_eq!(mix(0, 0), 0x48218226ff3cd4bf);
        assert_eq!(mix(1, 2), 0xfea92520a9bf2821);
        assert_eq!(mix(2, 1), 0xd4665d3f9d47d3ca);
        assert_eq!(mix(u64::MAX, u64::MAX), 0x7d9742db60432951);
        assert_eq!(below(3, 4, 1000), 544);
        assert_eq!(uniform(3, 4), 0.5441939352202075);
    }

    #[test]
    fn every_input_bit_reaches_every_output_bit() {
        let mut flips = [[0_u32; 64]; 128];
        let trials = 2000;
        for t in 0..trials {
            let (a, b) = (mix(77, t), mix(78, t));
            for (bit, flips) in flips.iter_mut().enumerate() {
                let other = if bit < 64 { mix(a ^ (1 << bit), b) } else { mix(a, b ^ (1 << (bit - 64))) };
                let diff = mix(a, b) ^ other;
                (0..64).for_each(|o| flips[o] += ((diff >> o) & 1) as u32);
            }
        }
        // 8192 cells around trials/2 with sd sqrt(trials)/2 = 22: six sigma leaves no false alarm.
        for row in flips {
            for f in row {
                assert!((f as i64 - trials as i64 / 2).abs() < 6 * 23, "{f}");
            }
        }
    }

    #[test]
    fn uniform_normal_and_below_have_their_moments() {
        let n = 200_000_u64;
        let (mut u, mut m, mut v, mut k) = (0.0, 0.0, 0.0, 0.0);
        let mut counts = [0_u32; 7];
        for i in 0..n {
            let x = uniform(5, i);
            assert!((0.0..1.0).contains(&x));
            u += x;
            let z = f64::from(normal(6, i));
            m += z;
            v += z * z;
            k += z.powi(4);
            counts[below(7, i, 7) as usize] += 1;
        }
        let n = n as f64;
        // Five standard errors each.
        assert!((u / n - 0.5).abs() < 5.0 * (1.0 / 12.0 / n).sqrt());
        assert!((m / n).abs() < 5.0 / n.sqrt());
        assert!((v / n - 1.0).abs() < 5.0 * (2.0 / n).sqrt());
        assert!((k / n - 3.0).abs() < 5.0 * (96.0 / n).sqrt());
        for c in counts {
            assert!((f64::from(c) - n / 7.0).abs() < 5.0 * (n / 7.0).sqrt());
        }
    }
}
