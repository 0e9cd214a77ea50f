//! What is printed.

use serde::{Deserialize, Serialize};

use super::{Case, Options, Path};

/// What one rank measured of one case; times in microseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
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
}

impl Line {
    /// As numbers, to send.
    pub fn numbers(&self) -> [f64; 5] {
        [self.min_us, self.median_us, self.p99_us, self.memcpy_us, self.cpu]
    }

    /// From numbers that were sent; missing ones are 0.
    pub fn of(numbers: &[f64]) -> Self {
        let at = |i: usize| numbers.get(i).copied().unwrap_or(0.0);
        Self { min_us: at(0), median_us: at(1), p99_us: at(2), memcpy_us: at(3), cpu: at(4) }
    }

    /// The slowest rank in each respect.
    pub fn slowest(lines: &[Self]) -> Self {
        let most = |f: fn(&Self) -> f64| lines.iter().map(f).fold(0.0, f64::max);
        Self {
            min_us: most(|l| l.min_us),
            median_us: most(|l| l.median_us),
            p99_us: most(|l| l.p99_us),
            memcpy_us: most(|l| l.memcpy_us),
            cpu: most(|l| l.cpu),
        }
    }
}

#[derive(Serialize)]
struct Row {
    library: &'static str,
    ranks: usize,
    path: String,
    dtype: String,
    bytes: usize,
    #[serde(flatten)]
    line: Line,
    /// 1e9 bytes per second.
    algbw: f64,
    busbw: f64,
}

/// Prints the head of the table.
#[allow(clippy::print_stdout, reason = "the report is the program's output")]
pub fn title(options: &Options) {
    if !options.json {
        println!("{} ranks, {}, sum; the slowest rank\n", options.ranks, options.dtype);
        println!("| path | bytes | min us | median us | p99 us | algbw GB/s | busbw GB/s | of memcpy |");
        println!("|---|---|---|---|---|---|---|---|");
    }
}

/// Prints a row.
#[allow(clippy::print_stdout, reason = "the report is the program's output")]
pub fn row(options: &Options, path: Path, case: Case, line: &Line) {
    let algbw = case.bytes as f64 / line.median_us / 1e3;
    let ranks = options.ranks as f64;
    let busbw = algbw * 2.0 * (ranks - 1.0) / ranks;
    if options.json {
        let row = Row {
            library: "muster",
            ranks: options.ranks,
            path: path.to_string(),
            dtype: options.dtype.clone(),
            bytes: case.bytes,
            line: *line,
            algbw,
            busbw,
        };
        // Numbers and strings always serialise.
        println!("{}", serde_json::to_string(&row).unwrap_or_default());
        return;
    }
    println!(
        "| {path} | {} | {:.2} | {:.2} | {:.2} | {algbw:.3} | {busbw:.3} | {:.0} % |",
        case.bytes,
        line.min_us,
        line.median_us,
        line.p99_us,
        100.0 * line.memcpy_us / line.median_us
    );
}
