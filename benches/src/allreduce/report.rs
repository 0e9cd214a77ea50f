//! What a rank tells, and the point that it becomes.

use serde::{Deserialize, Serialize};

use super::{Case, Options, Path};
use crate::schema::{Better, Metric, Point};

/// What one rank measured of one case; times in microseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Line {
    /// Fastest sample.
    pub min_us: f64,
    /// Median of the samples.
    pub median_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Median of copies of this size that all ranks made at the same time.
    pub memcpy_us: f64,
    /// CPU seconds per second of waiting and working.
    pub cpu: f64,
    /// Every sample, in the order in which it was taken.
    #[serde(default)]
    pub samples_us: Vec<f64>,
}

impl Line {
    /// As numbers, to send.
    pub fn numbers(&self) -> [f64; 5] {
        [self.min_us, self.median_us, self.p99_us, self.memcpy_us, self.cpu]
    }

    /// From numbers that were sent; missing ones are 0.
    pub fn of(numbers: &[f64]) -> Self {
        let at = |i: usize| numbers.get(i).copied().unwrap_or(0.0);
        Self {
            min_us: at(0),
            median_us: at(1),
            p99_us: at(2),
            memcpy_us: at(3),
            cpu: at(4),
            samples_us: Vec::new(),
        }
    }

    /// The slowest rank in each respect.
    pub fn slowest(lines: &[Self]) -> Self {
        let most = |f: fn(&Self) -> f64| lines.iter().map(f).fold(0.0, f64::max);
        let slowest = lines.iter().max_by(|a, b| a.median_us.total_cmp(&b.median_us));
        Self {
            min_us: most(|l| l.min_us),
            median_us: most(|l| l.median_us),
            p99_us: most(|l| l.p99_us),
            memcpy_us: most(|l| l.memcpy_us),
            cpu: most(|l| l.cpu),
            samples_us: slowest.map(|line| line.samples_us.clone()).unwrap_or_default(),
        }
    }
}

/// The point of one case from its rounds.
pub fn point(options: &Options, path: Path, case: Case, rounds: &[Line]) -> Point {
    let one = |f: fn(&Line) -> f64| rounds.iter().map(|line| vec![f(line)]).collect::<Vec<_>>();
    let name = format!("{path} {} {}", options.dtype, case.bytes);
    timed(options, Point::new(&path.to_string(), &name, "muster"), case, rounds)
        .metric(Metric::new(
            "of_memcpy",
            "ratio",
            Better::Higher,
            one(|line| line.memcpy_us / line.median_us),
        ))
        .metric(Metric::new("cpu", "CPUs", Better::Neither, one(|line| line.cpu)))
}

/// The same of a peer, by library and path.
pub fn of_peer(options: &Options, (library, path): (&str, &str), case: Case, rounds: &[Line]) -> Point {
    let name = format!("{path} f32 {}", case.bytes);
    timed(options, Point::new(path, &name, library), case, rounds)
}

fn timed(options: &Options, point: Point, case: Case, rounds: &[Line]) -> Point {
    let ranks = options.ranks as f64;
    // Of every rank's buffer; a gather and the yardsticks move it once.
    let share = 2.0 * (ranks - 1.0) / ranks;
    let samples = |line: &Line| match line.samples_us.is_empty() {
        true => vec![line.median_us],
        false => line.samples_us.clone(),
    };
    let per_sample = |f: &dyn Fn(f64) -> f64| -> Vec<Vec<f64>> {
        rounds.iter().map(|line| samples(line).into_iter().map(f).collect()).collect()
    };
    let one = |f: fn(&Line) -> f64| rounds.iter().map(|line| vec![f(line)]).collect::<Vec<_>>();
    let algbw = move |us: f64| case.bytes as f64 / us / 1e3;
    point
        .dim("ranks", ranks)
        .dim("bytes", case.bytes as f64)
        .metric(Metric::new("time_us", "us", Better::Lower, per_sample(&|us| us)))
        .metric(Metric::new("algbw", "GB/s", Better::Higher, per_sample(&algbw)))
        .metric(Metric::new("busbw", "GB/s", Better::Higher, per_sample(&move |us| share * algbw(us))))
        .metric(Metric::new("min_us", "us", Better::Lower, one(|line| line.min_us)))
        .metric(Metric::new("p99_us", "us", Better::Lower, one(|line| line.p99_us)))
}
