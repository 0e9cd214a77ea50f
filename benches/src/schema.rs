//! The one file format of all benchmarks: what was measured, where, how, and every sample.
//!
//! A file is a list of points; a point is a list of metrics with their samples, round by round. Readers refuse a newer
//! version and ignore nothing: unknown fields of the same version are errors of the writer. `docs/benchmarks.md`
//! describes the fields.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::fingerprint::{Machine, Settings};
use crate::forecast::Forecast;
use crate::stats::{self, Estimate};

/// What the field `schema` says.
pub const SCHEMA: &str = "muster-bench";
/// The version that this program writes; it reads this one and older ones.
pub const VERSION: u32 = 1;

/// A benchmark file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchFile {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`VERSION`] of the writer.
    pub version: u32,
    /// What was measured.
    pub kind: Kind,
    /// Seconds since 1970 at the start.
    pub started_unix_s: u64,
    /// Seconds that it took.
    pub took_s: f64,
    /// The command, to do it again.
    pub command: String,
    /// The machine.
    pub machine: Machine,
    /// How it was used.
    pub settings: Settings,
    /// Everything that was measured.
    pub points: Vec<Point>,
    /// The model that the points gave, and what it predicts (scaling only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
}

/// Which benchmark wrote a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Products.
    Gemm,
    /// Attention, forward and backward.
    Attention,
    /// Every single kernel.
    Kernels,
    /// Sums over ranks.
    Allreduce,
    /// Training steps of one process.
    Step,
    /// Training over ranks.
    Scaling,
}

/// One thing that was measured in one setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Points of one series make one line of a chart: `strong`, `weak`, a path, a kernel.
    pub series: String,
    /// Name for people, unique within series and library.
    pub name: String,
    /// Who did the work: `muster`, `pytorch-gloo`, `openmpi`.
    pub library: String,
    /// The numbers that set it apart: ranks, nodes, gbit, rows, bytes, ...
    pub dims: BTreeMap<String, f64>,
    /// What was measured.
    pub metrics: Vec<Metric>,
    /// What makes the numbers doubtful.
    pub marks: Vec<Mark>,
    /// Metrics that could not be measured, and why.
    #[serde(default)]
    pub missing: BTreeMap<String, String>,
}

/// Whether more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Rates.
    Higher,
    /// Times, bytes, joules.
    Lower,
    /// It describes, and is not judged.
    Neither,
}

/// A measured quantity.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// Its unit; `ratio` for numbers that are comparable between machines.
    pub unit: String,
    /// Which way is good.
    pub better: Better,
    /// Median and 95 % interval.
    #[serde(flatten)]
    pub estimate: Estimate,
    /// Every sample, round by round.
    pub samples: Vec<Vec<f64>>,
}

/// A doubt about a point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Which doubt.
    pub kind: MarkKind,
    /// What was seen.
    pub text: String,
}

/// The doubts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// A quota or the temperature stopped the CPU.
    Throttled,
    /// The hypervisor gave the CPU to others.
    Stolen,
    /// Other programs used the CPU.
    Busy,
    /// Threads were not bound.
    Unpinned,
    /// More compute threads than cores.
    Oversubscribed,
    /// The loss differs from that of one rank.
    LossDiffers,
}

impl MarkKind {
    /// The word in tables.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Throttled => "throttled",
            Self::Stolen => "stolen",
            Self::Busy => "busy",
            Self::Unpinned => "unpinned",
            Self::Oversubscribed => "oversubscribed",
            Self::LossDiffers => "loss differs",
        }
    }
}

impl Metric {
    /// A metric from its samples, round by round.
    pub fn new(name: &str, unit: &str, better: Better, samples: Vec<Vec<f64>>) -> Self {
        let estimate = stats::estimate(&samples);
        Self { name: name.into(), unit: unit.into(), better, estimate, samples }
    }
}

impl Point {
    /// A point without metrics.
    pub fn new(series: &str, name: &str, library: &str) -> Self {
        Self {
            series: series.into(),
            name: name.into(),
            library: library.into(),
            dims: BTreeMap::new(),
            metrics: Vec::new(),
            marks: Vec::new(),
            missing: BTreeMap::new(),
        }
    }

    /// With a number that sets it apart.
    #[must_use]
    pub fn dim(mut self, name: &str, value: f64) -> Self {
        self.dims.insert(name.into(), value);
        self
    }

    /// With a metric.
    #[must_use]
    pub fn metric(mut self, metric: Metric) -> Self {
        self.metrics.push(metric);
        self
    }

    /// A metric by name.
    pub fn get(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// The median of a metric.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.get(name).map(|metric| metric.estimate.value)
    }

    /// A number that sets it apart; 0 where it has none.
    pub fn dimension(&self, name: &str) -> f64 {
        self.dims.get(name).copied().unwrap_or(0.0)
    }

    /// Whether it carries a doubt.
    pub fn has(&self, kind: MarkKind) -> bool {
        self.marks.iter().any(|mark| mark.kind == kind)
    }

    /// Adds a doubt, once of each kind: the first text stays.
    pub fn mark(&mut self, kind: MarkKind, text: String) {
        if !self.has(kind) {
            self.marks.push(Mark { kind, text });
        }
    }
}

impl BenchFile {
    /// Reads a file.
    ///
    /// # Errors
    /// What can't be read, is no benchmark, or is of a newer version.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} can't be used", path.display()))
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// As [`BenchFile::read`].
    pub fn parse(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            schema: Option<String>,
            version: Option<u32>,
        }
        let head: Head = serde_json::from_str(text).context("it is not the JSON of a benchmark")?;
        match (head.schema.as_deref(), head.version) {
            (Some(SCHEMA), Some(1..=VERSION)) => {}
            (Some(SCHEMA), Some(newer)) => {
                bail!("it has version {newer}, this program reads up to {VERSION}: use a newer muster")
            }
            _ => bail!(
                "it has no \"schema\": \"{SCHEMA}\" with a version: make one with muster bench ... --output"
            ),
        }
        serde_json::from_str(text).context("it lacks a field or has a wrong one")
    }

    /// Writes a file under a temporary name and renames it.
    ///
    /// # Errors
    /// A disk that refuses.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        let partial = path.with_extension("json.partial");
        std::fs::write(&partial, text).with_context(|| format!("can't write {}", partial.display()))?;
        std::fs::rename(&partial, path).with_context(|| format!("can't write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> BenchFile {
        let rates = Metric::new("samples_per_s", "1/s", Better::Higher, vec![vec![9.0, 10.0], vec![11.0]]);
        let mut point = Point::new("strong", "2 ranks", "muster").dim("ranks", 2.0).metric(rates);
        point.mark(MarkKind::Busy, "others used 1.2 CPUs".into());
        point.mark(MarkKind::Busy, "a second text".into());
        point.missing.insert("joules_per_step".into(), "not measured: no RAPL".into());
        BenchFile {
            schema: SCHEMA.into(),
            version: VERSION,
            kind: Kind::Scaling,
            started_unix_s: 1,
            took_s: 2.5,
            command: "muster bench scaling".into(),
            machine: Machine::detect(),
            settings: Settings::default(),
            points: vec![point],
            forecast: None,
        }
    }

    #[test]
    fn a_file_survives_the_disk_with_every_sample() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.json");
        let file = file();
        file.write(&path).expect("written");
        let read = BenchFile::read(&path).expect("read");
        assert_eq!(read, file);
        let point = &read.points[0];
        assert_eq!(point.get("samples_per_s").expect("a metric").samples, [vec![9.0, 10.0], vec![11.0]]);
        assert_eq!((point.value("samples_per_s"), point.marks.len()), (Some(10.0), 1));
    }

    #[test]
    fn other_files_and_newer_versions_are_refused_with_what_to_do() {
        let mut json = serde_json::to_value(file()).expect("plain values");
        json["version"] = 2.into();
        let newer = BenchFile::parse(&json.to_string()).expect_err("newer");
        assert!(newer.to_string().contains("up to 1: use a newer muster"), "{newer}");
        let other = BenchFile::parse("{\"schema\": \"x\"}").expect_err("another file");
        assert!(other.to_string().contains("--output"), "{other}");
        json["version"] = 1.into();
        json["points"][0]["metrics"][0]["unit"].take();
        let broken = BenchFile::parse(&json.to_string()).expect_err("a wrong field");
        assert!(format!("{broken:#}").contains("invalid type: null"), "{broken:#}");
    }
}
