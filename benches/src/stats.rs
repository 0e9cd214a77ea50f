//! Medians, intervals and tests that assume no distribution. Random choices come from a fixed stream: the same samples
//! give the same interval.

use muster_kernels::rng;
use serde::{Deserialize, Serialize};

/// Resamplings of an interval.
const RESAMPLES: usize = 2000;
/// Seed of the resampling.
const SEED: u64 = 0x6d75_7374;

/// A median with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Estimate {
    /// Half the interval over the value, in percent.
    pub fn spread_percent(&self) -> f64 {
        if self.value == 0.0 { 0.0 } else { 50.0 * (self.high - self.low) / self.value.abs() }
    }
}

/// The median; 0 of nothing. An even count gives the mean of the middle two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => 0.5 * (sorted[n / 2 - 1] + sorted[n / 2]),
    }
}

/// The median of all samples, and an interval that knows that samples of one round resemble each other: rounds are
/// drawn with replacement, then samples within them.
///
/// Source: Davison, Hinkley, "Bootstrap Methods and their Application", 1997, section 3.8 (percentile intervals of a
/// two-stage bootstrap).
pub fn estimate(rounds: &[Vec<f64>]) -> Estimate {
    estimate_by(rounds, median)
}

/// As [`estimate`], for another statistic.
pub fn estimate_by(rounds: &[Vec<f64>], statistic: impl Fn(&[f64]) -> f64) -> Estimate {
    let rounds: Vec<&Vec<f64>> = rounds.iter().filter(|round| !round.is_empty()).collect();
    let all: Vec<f64> = rounds.iter().flat_map(|round| round.iter().copied()).collect();
    let value = if all.is_empty() { 0.0 } else { statistic(&all) };
    if all.len() < 2 {
        return Estimate { value, low: value, high: value };
    }
    let draws = (0..RESAMPLES).map(|i| {
        let mut stream = Stream::new(i as u64);
        let mut draw = Vec::with_capacity(all.len());
        for _ in 0..rounds.len() {
            let round = rounds[stream.below(rounds.len())];
            draw.extend((0..round.len()).map(|_| round[stream.below(round.len())]));
        }
        statistic(&draw)
    });
    let (low, high) = interval(draws.collect());
    Estimate { value, low, high }
}

/// The ratio of two medians, `a` over `b`, where round i of both was measured side by side: rounds are drawn in
/// pairs.
pub fn ratio(a: &[Vec<f64>], b: &[Vec<f64>]) -> Estimate {
    let pairs: Vec<(&Vec<f64>, &Vec<f64>)> =
        a.iter().zip(b).filter(|(a, b)| !a.is_empty() && !b.is_empty()).collect();
    let flat = |rounds: &[Vec<f64>]| rounds.iter().flatten().copied().collect::<Vec<_>>();
    let (all_a, all_b) = (flat(a), flat(b));
    let value = divide(median(&all_a), median(&all_b));
    if pairs.is_empty() {
        return Estimate { value, low: value, high: value };
    }
    let draws = (0..RESAMPLES).map(|i| {
        let mut stream = Stream::new(i as u64);
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for _ in 0..pairs.len() {
            let (a, b) = pairs[stream.below(pairs.len())];
            x.extend((0..a.len()).map(|_| a[stream.below(a.len())]));
            y.extend((0..b.len()).map(|_| b[stream.below(b.len())]));
        }
        divide(median(&x), median(&y))
    });
    let (low, high) = interval(draws.collect());
    Estimate { value, low, high }
}

/// The ratio of two medians, `a` over `b`, that were measured apart.
pub fn ratio_apart(a: &[Vec<f64>], b: &[Vec<f64>]) -> Estimate {
    let flat = |rounds: &[Vec<f64>]| rounds.iter().flatten().copied().collect::<Vec<_>>();
    let value = divide(median(&flat(a)), median(&flat(b)));
    let draw = |rounds: &[Vec<f64>], number: u64| {
        let rounds: Vec<&Vec<f64>> = rounds.iter().filter(|round| !round.is_empty()).collect();
        let mut stream = Stream::new(number);
        let mut drawn = Vec::new();
        for _ in 0..rounds.len() {
            let round = rounds[stream.below(rounds.len())];
            drawn.extend((0..round.len()).map(|_| round[stream.below(round.len())]));
        }
        median(&drawn)
    };
    let draws = (0..RESAMPLES as u64).map(|i| divide(draw(a, 2 * i), draw(b, 2 * i + 1)));
    let (low, high) = interval(draws.collect());
    Estimate { value, low, high }
}

fn divide(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

fn interval(mut draws: Vec<f64>) -> (f64, f64) {
    draws.sort_by(f64::total_cmp);
    let at = |share: f64| draws[((draws.len() - 1) as f64 * share).round() as usize];
    (at(0.025), at(0.975))
}

/// Two-sided probability that two samples of one distribution differ as much as these: Mann-Whitney's U with the normal
/// approximation and ties. 1 where a sample has fewer than four values: nothing can be said.
///
/// Source: Mann, Whitney, "On a test of whether one of two random variables is stochastically larger than the other",
/// Annals of Mathematical Statistics 18(1), 1947.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let (n, m) = (a.len() as f64, b.len() as f64);
    if a.len() < 4 || b.len() < 4 {
        return 1.0;
    }
    let mut all: Vec<(f64, bool)> =
        a.iter().map(|&x| (x, true)).chain(b.iter().map(|&x| (x, false))).collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (mut rank_sum, mut ties, mut start) = (0.0, 0.0, 0);
    while start < all.len() {
        let end = start + all[start..].iter().take_while(|x| x.0 == all[start].0).count();
        let rank = (start + end + 1) as f64 / 2.0;
        rank_sum += rank * all[start..end].iter().filter(|x| x.1).count() as f64;
        let tied = (end - start) as f64;
        ties += tied * tied * tied - tied;
        start = end;
    }
    let total = n + m;
    let u = rank_sum - n * (n + 1.0) / 2.0;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = ((u - n * m / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    2.0 * upper_tail(z)
}

/// Probability that a standard normal variable exceeds `z >= 0`, within 1e-7.
///
/// Source: Abramowitz, Stegun, "Handbook of Mathematical Functions", 1964, 26.2.17.
fn upper_tail(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let coefficients = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let poly = coefficients.iter().rev().fold(0.0, |sum, c| (sum + c) * t);
    (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt() * poly
}

/// Random numbers that depend on nothing but the resampling's number.
struct Stream {
    key: u64,
    next: u64,
}

impl Stream {
    fn new(number: u64) -> Self {
        Self { key: rng::mix(SEED, number), next: 0 }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next += 1;
        rng::below(self.key, self.next, bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_the_median_and_grows_with_differences_between_rounds() {
        let calm = estimate(&[vec![10.0, 10.1, 9.9, 10.0], vec![10.0, 10.1, 9.9, 10.05]]);
        assert!(calm.low <= calm.value && calm.value <= calm.high, "{calm:?}");
        assert!(calm.spread_percent() < 1.5, "{calm:?}");
        let wild = estimate(&[vec![10.0, 10.1, 9.9, 10.0], vec![14.0, 14.1, 13.9, 14.0]]);
        assert!(wild.low < 10.2 && wild.high > 13.8, "whole rounds are drawn: {wild:?}");
        assert_eq!(estimate(&[]).value, 0.0);
        assert_eq!(estimate(&[vec![3.0]]), Estimate { value: 3.0, low: 3.0, high: 3.0 });
    }

    #[test]
    fn a_ratio_of_paired_rounds_ignores_what_slows_both() {
        let a = [vec![10.0, 10.2], vec![20.0, 20.4], vec![30.0, 30.6]];
        let b = a.clone().map(|round| round.iter().map(|x| x / 2.0).collect::<Vec<_>>());
        let both = ratio(&a, &b);
        assert!((both.value - 2.0).abs() < 1e-9 && both.low > 1.9 && both.high < 2.1, "{both:?}");
    }

    #[test]
    fn u_matches_a_table() {
        // Two clearly apart samples of 8: U = 0, p (normal, corrected for continuity) = 0.00094.
        let low: Vec<f64> = (0..8).map(f64::from).collect();
        let high: Vec<f64> = (10..18).map(f64::from).collect();
        assert!((mann_whitney(&low, &high) - 9.4e-4).abs() < 2e-5, "{}", mann_whitney(&low, &high));
        assert!(mann_whitney(&low, &low) > 0.95);
        assert_eq!(mann_whitney(&[1.0; 8], &[1.0; 8]), 1.0, "ties only");
        assert_eq!(mann_whitney(&low[..3], &high), 1.0, "too few");
    }
}
