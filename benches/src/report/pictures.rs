//! Which charts a benchmark gets.

use anyhow::Result;

use super::charts::{BarChart, Dot, Line, LineChart, Scale};
use crate::forecast::{Forecast, GBITS, Prediction};
use crate::schema::{BenchFile, Kind, Point};

/// A chart with the name of its file.
pub struct Picture {
    /// Name without extension.
    pub name: &'static str,
    /// What it shows, in a sentence.
    pub about: String,
    /// The SVG.
    pub svg: String,
}

/// All charts of a file.
///
/// # Errors
/// A chart that can't be drawn.
pub fn pictures(file: &BenchFile) -> Result<Vec<Picture>> {
    match file.kind {
        Kind::Scaling => scaling(file),
        Kind::Allreduce => allreduce(file),
        Kind::Step => bars(file, "samples_per_s", "samples/s (median and 95 % interval)", "Training steps"),
        Kind::Gemm | Kind::Attention | Kind::Kernels => {
            bars(file, "gflops", "GFLOP/s (median and 95 % interval)", "Kernels")
        }
    }
}

fn dot(point: &Point, x: f64, metric: &str) -> Option<Dot> {
    let estimate = point.get(metric)?.estimate;
    Some(Dot { x, y: estimate.value, low: estimate.low, high: estimate.high })
}

/// The lines of a series: by library and by links.
fn lines<'a>(points: &'a [Point], series: &'a str, metric: &'a str) -> Vec<Line> {
    let own: Vec<&Point> =
        points.iter().filter(|p| p.series == series || p.dimension("ranks") == 1.0).collect();
    let own: Vec<&Point> = own.into_iter().filter(|p| p.series == "strong" || p.series == "weak").collect();
    let mut kinds: Vec<(String, f64)> = Vec::new();
    for point in own.iter().filter(|p| p.dimension("ranks") > 1.0) {
        let kind = (point.library.clone(), link(point));
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let mut found = Vec::new();
    for (library, gbit) in kinds {
        let base = own.iter().filter(|p| p.library == library && p.dimension("ranks") == 1.0);
        let more =
            own.iter().filter(|p| p.library == library && p.dimension("ranks") > 1.0 && link(p) == gbit);
        let mut dots: Vec<Dot> =
            base.take(1).chain(more).filter_map(|p| dot(p, p.dimension("ranks"), metric)).collect();
        dots.sort_by(|a, b| a.x.total_cmp(&b.x));
        if dots.is_empty() {
            continue;
        }
        let place = match gbit {
            LOCAL => "shared memory".to_owned(),
            UNKNOWN => "cluster".to_owned(),
            gbit => format!("{gbit} Gbit/s"),
        };
        found.push(Line { label: format!("{library}, {place}"), dots, color: found.len(), dashed: false });
    }
    found
}

/// The place of a line that has no bandwidth.
const LOCAL: f64 = 0.0;
const UNKNOWN: f64 = -1.0;

fn link(point: &Point) -> f64 {
    match (point.dimension("gbit"), point.dimension("nodes")) {
        (0.0, nodes) if nodes > 1.0 => UNKNOWN,
        (gbit, _) => gbit,
    }
}

fn scaling(file: &BenchFile) -> Result<Vec<Picture>> {
    let mut pictures = Vec::new();
    for (series, name) in [("strong", "Strong"), ("weak", "Weak")] {
        if !file.points.iter().any(|p| p.series == series && p.dimension("ranks") > 1.0) {
            continue;
        }
        let mut speedup = lines(&file.points, series, "speedup");
        let ranks = speedup.iter().flat_map(|l| &l.dots).map(|d| d.x).fold(1.0, f64::max);
        ideal(&mut speedup, ranks, |x| x, "ideal: a core set for each rank");
        let capped = |x: f64| {
            file.points.iter().find(|p| p.dimension("ranks") == x).map_or(x, |p| p.dimension("ideal"))
        };
        if capped(ranks) < ranks {
            ideal(&mut speedup, ranks, capped, "most that the cores here allow");
        }
        let chart = LineChart {
            title: format!("{name} scaling: speed-up over one rank of the same library"),
            x_label: "ranks".into(),
            y_label: "speed-up of samples/s".into(),
            x: Scale::Log2,
            y: Scale::Log2,
            lines: speedup,
        };
        let about = format!("{name} scaling, medians with 95 % intervals; dashed lines are bounds.");
        let key = if series == "strong" { "strong-speedup" } else { "weak-speedup" };
        pictures.push(Picture { name: key, about, svg: chart.draw()? });
        let mut rates = lines(&file.points, series, "samples_per_s");
        let first =
            rates.iter().find(|l| l.label.starts_with("muster")).and_then(|l| l.dots.first()).map(|d| d.y);
        if let Some(one) = first {
            ideal(&mut rates, ranks, |x| one * x, "ideal for muster");
        }
        let chart = LineChart {
            title: format!("{name} scaling: rows per second"),
            x_label: "ranks".into(),
            y_label: "samples/s".into(),
            x: Scale::Log2,
            y: Scale::Log2,
            lines: rates,
        };
        let about =
            format!("{name} scaling in samples/s, peers in the same picture; both axes by factors of two.");
        let key = if series == "strong" { "strong-rate" } else { "weak-rate" };
        pictures.push(Picture { name: key, about, svg: chart.draw()? });
    }
    pictures.push(split(file)?);
    if let Some(forecast) = &file.forecast {
        pictures.push(forecast_picture(forecast)?);
    }
    Ok(pictures)
}

fn ideal(lines: &mut Vec<Line>, most: f64, of: impl Fn(f64) -> f64, label: &str) {
    let powers = (0..=most.log2().floor() as u32).map(|p| f64::from(1_u32 << p)).chain([most]);
    let mut dots: Vec<Dot> = powers.map(|x| (x, of(x))).map(|(x, y)| Dot { x, y, low: y, high: y }).collect();
    dots.dedup_by(|a, b| a.x == b.x);
    lines.push(Line { label: label.into(), dots, color: 6, dashed: true });
}

/// Where the time of a step goes.
fn split(file: &BenchFile) -> Result<Picture> {
    const PARTS: [(&str, &str); 5] = [
        ("compute_s", "forward, backward"),
        ("communication_s", "exposed communication"),
        ("wait_s", "waiting for slower ranks"),
        ("data_s", "waiting for rows"),
        ("update_s", "update and vote"),
    ];
    let own = file.points.iter().filter(|p| p.get("compute_s").is_some());
    let bar = |p: &Point| {
        let parts = PARTS.map(|(metric, _)| p.value(metric).unwrap_or(0.0)).to_vec();
        (format!("{}, {}", p.name, p.series), parts, None)
    };
    let chart = BarChart {
        title: "Where the time of a step goes (first rank, medians)".into(),
        x_label: "seconds per step".into(),
        parts: PARTS.map(|(_, label)| label.to_owned()).to_vec(),
        bars: own.map(bar).collect(),
    };
    Ok(Picture {
        name: "step-split",
        about: "The parts of a step; each is a median.".into(),
        svg: chart.draw()?,
    })
}

fn forecast_picture(forecast: &Forecast) -> Result<Picture> {
    let mut lines = Vec::new();
    for overlap in [true, false] {
        for (color, gbit) in GBITS.into_iter().enumerate() {
            let wanted = |p: &&Prediction| {
                p.gbit == gbit && p.overlap == overlap && p.sparse && !p.bf16_wire && p.weak
            };
            let bar = if overlap { forecast.error } else { 0.0 };
            let dot = |p: &Prediction| Dot {
                x: f64::from(p.nodes),
                y: p.efficiency,
                low: p.efficiency / (1.0 + bar),
                high: p.efficiency / (1.0 - bar.min(0.9)),
            };
            let dots = forecast.predictions.iter().filter(wanted).map(dot).collect();
            let label = format!("{gbit} Gbit/s{}", if overlap { "" } else { ", no overlap" });
            lines.push(Line { label, dots, color, dashed: !overlap });
        }
    }
    ideal(&mut lines, 1024.0, |_| 1.0, "ideal");
    let chart = LineChart {
        title: "Forecast: weak scaling over nodes of one rank each".into(),
        x_label: "nodes".into(),
        y_label: "efficiency".into(),
        x: Scale::Log2,
        y: Scale::Linear,
        lines,
    };
    let about = format!(
        "Predicted from the measured points; bars are the largest error on held-out points ({:.0} %).",
        100.0 * forecast.error
    );
    Ok(Picture { name: "forecast", about, svg: chart.draw()? })
}

fn allreduce(file: &BenchFile) -> Result<Vec<Picture>> {
    let mut lines: Vec<Line> = Vec::new();
    for point in &file.points {
        let label = format!("{}, {}", point.library, point.series);
        let Some(dot) = dot(point, point.dimension("bytes"), "busbw") else { continue };
        match lines.iter_mut().find(|line| line.label == label) {
            Some(line) => line.dots.push(dot),
            None => {
                let color = lines.len();
                lines.push(Line { label, dots: vec![dot], color, dashed: false });
            }
        }
    }
    lines.iter_mut().for_each(|line| line.dots.sort_by(|a, b| a.x.total_cmp(&b.x)));
    let ranks = file.points.iter().map(|p| p.dimension("ranks")).fold(0.0, f64::max);
    let chart = LineChart {
        title: format!("All-reduce over {ranks} ranks"),
        x_label: "bytes of each rank's buffer".into(),
        y_label: "bus bandwidth in GB/s".into(),
        x: Scale::Log2,
        y: Scale::Log2,
        lines,
    };
    let about = "Bus bandwidth as nccl-tests define it; both axes by factors of two.".into();
    Ok(vec![Picture { name: "allreduce", about, svg: chart.draw()? }])
}

fn bars(file: &BenchFile, metric: &str, x_label: &str, title: &str) -> Result<Vec<Picture>> {
    let bar = |p: &Point| {
        let estimate = p.get(metric)?.estimate;
        Some((p.name.clone(), vec![estimate.value], Some((estimate.low, estimate.high))))
    };
    let chart = BarChart {
        title: format!("{title}, {} threads", file.settings.threads),
        x_label: x_label.into(),
        parts: Vec::new(),
        bars: file.points.iter().filter_map(bar).collect(),
    };
    if chart.bars.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![Picture { name: "rates", about: format!("{title}: more is better."), svg: chart.draw()? }])
}
