//! Points and forecasts as rows of text, for Markdown, HTML and the terminal.

use crate::compare::number;
use crate::forecast::{Forecast, GBITS};
use crate::schema::{BenchFile, Kind, Metric, Point};
use crate::stats::Estimate;

/// Head and rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Names of the columns.
    pub head: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

/// The tables of a file.
pub fn tables(file: &BenchFile) -> Vec<Table> {
    match file.kind {
        Kind::Scaling => {
            let mut tables = vec![rates(file), parts(file)];
            tables.extend(sums(file));
            if let Some(forecast) = &file.forecast {
                tables.push(forecast_table(forecast));
                tables.push(held_out(forecast));
            }
            tables
        }
        Kind::Allreduce => vec![plain(file, &["time_us", "min_us", "p99_us", "algbw", "busbw", "of_memcpy"])],
        Kind::Step => vec![plain(file, &["samples_per_s", "tokens_per_s", "gflops", "of_fma_peak"])],
        Kind::Gemm | Kind::Attention | Kind::Kernels => {
            vec![plain(file, &["seconds", "gflops", "of_fma_peak", "gbytes_per_s", "of_memory_bandwidth"])]
        }
    }
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

/// A median and how far its interval goes.
fn with_interval(estimate: &Estimate) -> String {
    if estimate.high > estimate.low {
        format!("{} ({} to {})", number(estimate.value), number(estimate.low), number(estimate.high))
    } else {
        number(estimate.value)
    }
}

fn interval(metric: Option<&Metric>) -> String {
    metric.map_or_else(String::new, |metric| with_interval(&metric.estimate))
}

fn percent(metric: Option<&Metric>) -> String {
    metric.map_or_else(String::new, |metric| {
        let Estimate { value, low, high } = metric.estimate;
        match high > low {
            true => format!("{:.0} % ({:.0} to {:.0})", 100.0 * value, 100.0 * low, 100.0 * high),
            false => format!("{:.0} %", 100.0 * value),
        }
    })
}

fn marks(point: &Point) -> String {
    let words: Vec<&str> = point.marks.iter().map(|mark| mark.kind.word()).collect();
    if words.is_empty() { "-".into() } else { words.join(", ") }
}

fn trained(file: &BenchFile) -> impl Iterator<Item = &Point> {
    file.points.iter().filter(|point| point.series != "sum")
}

fn rates(file: &BenchFile) -> Table {
    let row = |p: &Point| {
        let loss = p.value("loss_difference").map_or_else(
            || if p.library == "muster" { "not compared".into() } else { String::new() },
            |difference| format!("{difference:.0e}"),
        );
        vec![
            p.name.clone(),
            p.series.clone(),
            p.library.clone(),
            format!("{}", p.dimension("rows")),
            interval(p.get("samples_per_s")),
            p.value("tokens_per_s").map_or_else(String::new, number),
            p.value("speedup").map_or_else(String::new, |x| format!("{x:.2}")),
            percent(p.get("efficiency")),
            loss,
            marks(p),
        ]
    };
    Table {
        title: "Rates: median (95 % interval)".into(),
        head: strings(&[
            "place",
            "scaling",
            "library",
            "rows",
            "samples/s",
            "tokens/s",
            "speed-up",
            "of what the cores allow",
            "loss difference",
            "doubts",
        ]),
        rows: trained(file).map(row).collect(),
    }
}

fn parts(file: &BenchFile) -> Table {
    let milliseconds =
        |p: &Point, name: &str| p.value(name).map_or_else(String::new, |s| format!("{:.0}", 1e3 * s));
    let or_missing = |p: &Point, name: &str, show: &dyn Fn(f64) -> String| {
        let missing = if p.missing.contains_key(name) { "not measured" } else { "" };
        p.value(name).map_or_else(|| missing.to_owned(), show)
    };
    let row = |p: &Point| {
        let names = ["step_s", "compute_s", "communication_s", "wait_s", "data_s", "update_s"];
        let mut cells = vec![p.name.clone(), p.series.clone(), p.library.clone()];
        cells.extend(names.iter().map(|name| milliseconds(p, name)));
        cells.push(or_missing(p, "busbw", &|x| format!("{x:.2}")));
        cells.push(or_missing(p, "peak_bytes", &|bytes| format!("{:.0}", bytes / f64::from(1 << 20))));
        cells.push(or_missing(p, "joules_per_step", &number));
        cells
    };
    Table {
        title: "Parts of a step in ms (first rank), and what it takes".into(),
        head: strings(&[
            "place",
            "scaling",
            "library",
            "step",
            "compute",
            "exposed comm.",
            "wait",
            "data",
            "update",
            "busbw GB/s",
            "peak MiB/rank",
            "J/step",
        ]),
        rows: trained(file).map(row).collect(),
    }
}

fn sums(file: &BenchFile) -> Option<Table> {
    let row = |p: &Point| vec![p.name.clone(), interval(p.get("time_us")), interval(p.get("busbw"))];
    let rows: Vec<_> = file.points.iter().filter(|p| p.series == "sum").map(row).collect();
    let head = strings(&["sum of f32", "us", "busbw GB/s"]);
    (!rows.is_empty()).then_some(Table { title: "Sums without training".into(), head, rows })
}

/// Nodes against bandwidth, as Muster is today.
pub fn forecast_table(forecast: &Forecast) -> Table {
    let mut nodes: Vec<u32> = forecast.predictions.iter().map(|p| p.nodes).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let mut head = vec!["nodes".to_owned()];
    head.extend(GBITS.iter().map(|gbit| format!("{gbit} Gbit/s: samples/s (efficiency)")));
    let cell = |nodes: u32, gbit: f64, overlap: bool, bf16: bool| {
        let wanted = forecast.predictions.iter().find(|p| {
            p.nodes == nodes
                && p.gbit == gbit
                && p.overlap == overlap
                && p.bf16_wire == bf16
                && p.sparse
                && p.weak
        });
        wanted.map_or_else(String::new, |p| {
            format!("{} ({:.0} %)", number(p.samples_per_s), 100.0 * p.efficiency)
        })
    };
    head.push("10 Gbit/s without overlap".into());
    head.push("10 Gbit/s, bf16 on the wire".into());
    let row = |nodes: u32| {
        let mut cells = vec![nodes.to_string()];
        cells.extend(GBITS.iter().map(|&gbit| cell(nodes, gbit, true, false)));
        cells.push(cell(nodes, GBITS[0], false, false));
        cells.push(cell(nodes, GBITS[0], true, true));
        cells
    };
    Table {
        title: format!("Forecast for weak scaling, one rank a node, within {:.0} %", 100.0 * forecast.error),
        head,
        rows: nodes.into_iter().map(row).collect(),
    }
}

fn held_out(forecast: &Forecast) -> Table {
    let row = |point: &crate::forecast::HeldOut| {
        vec![
            point.name.clone(),
            format!("{:.3}", point.measured_s),
            format!("{:.3}", point.predicted_s),
            format!("{:+.1} %", 100.0 * point.error),
        ]
    };
    Table {
        title: "Each point predicted from all others: seconds of a step".into(),
        head: strings(&["held out", "measured", "predicted", "error"]),
        rows: forecast.held_out.iter().map(row).collect(),
    }
}

fn plain(file: &BenchFile, metrics: &[&str]) -> Table {
    let has = |name: &&str| file.points.iter().any(|p| p.get(name).is_some());
    let shown: Vec<&str> = metrics.iter().copied().filter(|name| has(name)).collect();
    let unit = |name: &str| {
        let metric = file.points.iter().find_map(|p| p.get(name));
        metric.map_or_else(
            || name.to_owned(),
            |m| match m.unit.as_str() {
                "ratio" => name.replace('_', " "),
                unit => format!("{} {unit}", name.replace("_per_s", "").replace("_us", "").replace('_', " ")),
            },
        )
    };
    let several = file.points.iter().any(|p| p.library != "muster");
    let mut head = vec!["case".to_owned()];
    if several {
        head.push("library".into());
    }
    head.extend(shown.iter().map(|name| unit(name)));
    let row = |p: &Point| {
        let mut cells = vec![p.name.clone()];
        if several {
            cells.push(p.library.clone());
        }
        cells.extend(shown.iter().map(|name| match p.get(name) {
            Some(metric) if metric.unit == "ratio" => percent(Some(metric)),
            metric => interval(metric),
        }));
        cells
    };
    Table { title: "Median (95 % interval)".into(), head, rows: file.points.iter().map(row).collect() }
}
