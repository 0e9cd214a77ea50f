//! The random stream of the data path: SplitMix64 keyed by (seed, purpose, index).
//!
//! Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

use muster_kernels::rng::{GOLDEN, scramble};

/// What a stream is for; streams of different purposes are independent.
#[derive(Debug, Clone, Copy)]
pub enum Purpose {
    /// Order of the rows of an epoch.
    EpochOrder = 1,
    /// Rows set aside for evaluation.
    Split = 2,
}

/// A value that depends on every bit of the three parts.
pub fn key(seed: u64, purpose: Purpose, index: u64) -> u64 {
    let with_purpose =
        scramble(seed.wrapping_add(GOLDEN)).wrapping_add((purpose as u64).wrapping_mul(GOLDEN));
    scramble(scramble(with_purpose).wrapping_add(index.wrapping_mul(GOLDEN)))
}

/// A sequence of random words.
pub struct Stream {
    state: u64,
}

impl Stream {
    /// Starts the stream of a key.
    pub fn new(key: u64) -> Self {
        Self { state: key }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        scramble(self.state)
    }

    /// A value below `bound`, each equally likely (multiplication with rejection: Lemire, arXiv 1805.10941).
    ///
    /// # Panics
    /// `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no value is below 0");
        let biased = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= biased {
                return (product >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_splitmix64() {
        // First outputs of the reference implementation for seed 1234567.
        let mut stream = Stream::new(1_234_567);
        let got: Vec<u64> = (0..3).map(|_| stream.next_u64()).collect();
        assert_eq!(got, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn values_below_a_bound_are_evenly_spread() {
        let mut stream = Stream::new(key(7, Purpose::Split, 0));
        let mut counts = [0u32; 5];
        for _ in 0..50_000 {
            counts[stream.below(5) as usize] += 1;
        }
        // Standard deviation of a count is sqrt(50,000 × 0.2 × 0.8) = 89; five of them.
        assert!(counts.iter().all(|&c| (9_553..10_447).contains(&c)), "{counts:?}");
    }
}
