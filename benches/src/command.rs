//! The arguments of `muster bench`, and what each command does.

use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use muster_trainer::data::Sampler;
use muster_trainer::topology::{HostFacts, cpu_budget};
use serde_json::Value;

use crate::fingerprint::{Machine, Settings, load};
use crate::forecast;
use crate::schema::{BenchFile, Kind, Point, SCHEMA, VERSION};
use crate::{Env, allreduce, compare, kernels, report, scaling, step};

/// A benchmark.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Products: f32 and bf16, forward and both gradients, as a share of the FMA peak
    Gemm(KernelArgs),
    /// Attention of DeBERTa, forward and backward
    Attention(KernelArgs),
    /// Every single kernel: products, attention, AdamW, LayerNorm
    Kernels(KernelsArgs),
    /// All-reduce among processes of this machine: latency, bandwidth, share of memcpy
    Allreduce(AllreduceArgs),
    /// Training steps of MiniLM and DeBERTa shapes with random weights and banking77's row lengths
    Step(StepArgs),
    /// Strong and weak scaling of training over ranks, emulated nodes or a cluster, with a forecast
    Scaling(ScalingArgs),
    /// Compare two files: a verdict per metric, with noise taken into account
    Compare(CompareArgs),
    /// Make charts and tables of a file
    Report(ReportArgs),
    /// The rows of each training step, a line of JSON per step (for benches/peers/train_torch.py --order)
    #[command(hide = true)]
    Order(OrderArgs),
}

/// Where results go beside the terminal.
#[derive(Debug, Clone, Default, Args)]
pub struct Outputs {
    /// Write everything measured as JSON (docs/benchmarks.md)
    #[arg(long, value_name = "FILE.json")]
    pub output: Option<PathBuf>,
    /// Write a report with charts as one HTML page
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Write the charts as SVG files into this directory
    #[arg(long, value_name = "DIR")]
    pub charts: Option<PathBuf>,
}

/// Arguments of single kernels.
#[derive(Debug, Clone, Args)]
pub struct KernelArgs {
    /// Compute threads; default: the physical cores that the process may use
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Only cases whose name contains this
    #[arg(long, default_value = "")]
    pub only: String,
    /// How often everything is measured, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Files.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// Arguments of all kernels.
#[derive(Debug, Clone, Args)]
pub struct KernelsArgs {
    /// Which and how often.
    #[command(flatten)]
    pub kernels: KernelArgs,
    /// Print the names of the cases and end
    #[arg(long)]
    pub list: bool,
    /// Read cases from standard input and answer each with a line of JSON (benches/peers/kernels_torch.py)
    #[arg(long, conflicts_with = "list")]
    pub serve: bool,
}

/// Arguments of sums.
#[derive(Debug, Clone, Args)]
pub struct AllreduceArgs {
    /// What to measure.
    #[command(flatten)]
    pub options: allreduce::Options,
    /// Files.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// Arguments of training steps.
#[derive(Debug, Clone, Args)]
pub struct StepArgs {
    /// Compute threads; default: the physical cores that the process may use
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Rows of the global batch
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub rows: u32,
    /// Timed steps of a round
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10000))]
    pub steps: u32,
    /// How often everything is measured, in turns
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Only shapes whose name contains this
    #[arg(long, default_value = "")]
    pub model: String,
    /// Files.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// Arguments of scaling.
#[derive(Debug, Clone, Args)]
pub struct ScalingArgs {
    /// What to measure.
    #[command(flatten)]
    pub options: scaling::Options,
    /// Files.
    #[command(flatten)]
    pub outputs: Outputs,
}

/// Arguments of a comparison.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Before
    #[arg(value_name = "BEFORE.json")]
    pub before: PathBuf,
    /// After
    #[arg(value_name = "AFTER.json")]
    pub after: PathBuf,
    /// Change in percent that counts
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub threshold: f64,
    /// Compare only ratios, such as shares of the FMA peak: they hold on any machine
    #[arg(long)]
    pub ratios: bool,
    /// Compare absolute numbers although the machines differ
    #[arg(long, conflicts_with = "ratios")]
    pub across: bool,
}

/// Arguments of a report.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// File of a benchmark
    #[arg(value_name = "FILE.json")]
    pub file: PathBuf,
    /// Write a page with charts
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Write the charts as SVG files into this directory
    #[arg(long, value_name = "DIR")]
    pub charts: Option<PathBuf>,
    /// Write tables and links to the charts as Markdown
    #[arg(long, value_name = "FILE.md")]
    pub markdown: Option<PathBuf>,
}

/// Arguments of the order of rows.
#[derive(Debug, Clone, Args)]
pub struct OrderArgs {
    /// Rows of the training data
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    rows: u64,
    /// Rows of the global batch
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=1 << 31))]
    batch: u64,
    /// Epochs
    #[arg(long, default_value_t = 3)]
    epochs: u64,
    /// Seed of the run
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a command has to say.
pub enum Said {
    /// It has printed everything itself.
    Nothing,
    /// A result, for programs and for people.
    Result {
        /// For programs.
        json: Value,
        /// For people.
        text: String,
        /// A comparison found something worse.
        worse: bool,
    },
}

/// Does what the command says.
///
/// # Errors
/// Whatever keeps it from measuring, reading or writing.
pub fn run(command: &BenchCommand, env: &Env<'_>) -> Result<Said> {
    let begun = Begun::now();
    match command {
        BenchCommand::Gemm(args) => begun.kernels(Kind::Gemm, "linear", args),
        BenchCommand::Attention(args) => begun.kernels(Kind::Attention, "attention", args),
        BenchCommand::Kernels(args) if args.list => kernels::list(&args.kernels.only).map(|()| Said::Nothing),
        BenchCommand::Kernels(args) if args.serve => {
            kernels::serve(threads(args.kernels.threads)).map(|()| Said::Nothing)
        }
        BenchCommand::Kernels(args) => begun.kernels(Kind::Kernels, "", &args.kernels),
        BenchCommand::Allreduce(args) if args.options.is_worker() => {
            allreduce::work(&args.options).map(|()| Said::Nothing)
        }
        BenchCommand::Allreduce(args) => {
            let points = allreduce::points(&args.options, env.program)?;
            let settings = Settings { threads: 1, workload: args.options.describe(), ..Settings::default() };
            begun.finish(Kind::Allreduce, points, settings, &args.outputs)
        }
        BenchCommand::Step(args) => {
            let threads = threads(args.threads);
            let settings = step::Settings { threads, rows: args.rows as usize, steps: args.steps as usize };
            let points = step::points(settings, &args.model, args.rounds as usize)?;
            let workload = format!("random weights, {} rows of banking77's lengths", args.rows);
            begun.finish(Kind::Step, points, alone(threads, workload), &args.outputs)
        }
        BenchCommand::Scaling(args) => begun.scaling(args, env),
        BenchCommand::Compare(args) => compare(args),
        BenchCommand::Report(args) => make_report(args),
        BenchCommand::Order(args) => order(args).map(|()| Said::Nothing),
    }
}

fn threads(wanted: Option<u16>) -> usize {
    wanted.map_or_else(|| cpu_budget(&HostFacts::detect(), None).threads, usize::from)
}

/// How one process uses the machine.
fn alone(threads: usize, workload: String) -> Settings {
    // The pool of these benchmarks binds nothing.
    Settings { threads, workload, ..Settings::default() }
}

/// When a benchmark began.
struct Begun {
    at: Instant,
    unix_s: u64,
    load: f64,
}

impl Begun {
    fn now() -> Self {
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { at: Instant::now(), unix_s, load: load() }
    }

    fn kernels(self, kind: Kind, family: &str, args: &KernelArgs) -> Result<Said> {
        let threads = threads(args.threads);
        let points = kernels::points(threads, family, &args.only, args.rounds as usize)?;
        ensure!(
            !points.is_empty(),
            "no case contains {:?}; muster bench kernels --list shows all",
            args.only
        );
        self.finish(kind, points, alone(threads, "single kernels".into()), &args.outputs)
    }

    fn scaling(self, args: &ScalingArgs, env: &Env<'_>) -> Result<Said> {
        let outcome = scaling::run(&args.options, env)?;
        let forecast = forecast::forecast(&outcome.points, outcome.flops_per_token);
        let mut settings = outcome.settings;
        let forecast = forecast.map_err(|why| settings.more.insert("no forecast".into(), why)).ok();
        let file = BenchFile { forecast, ..self.file(Kind::Scaling, outcome.points, settings) };
        say(&file, &args.outputs)
    }

    fn finish(self, kind: Kind, points: Vec<Point>, settings: Settings, outputs: &Outputs) -> Result<Said> {
        say(&self.file(kind, points, settings), outputs)
    }

    fn file(self, kind: Kind, points: Vec<Point>, settings: Settings) -> BenchFile {
        let words = std::env::args().skip(1).map(|word| match word.contains([' ', '"', '\'']) {
            true => format!("{word:?}"),
            false => word,
        });
        BenchFile {
            schema: SCHEMA.into(),
            version: VERSION,
            kind,
            started_unix_s: self.unix_s,
            took_s: self.at.elapsed().as_secs_f64(),
            command: format!("muster {}", words.collect::<Vec<_>>().join(" ")),
            machine: Machine::detect(),
            settings: Settings { load: self.load, ..settings },
            points,
            forecast: None,
        }
    }
}

/// Writes the files that are wanted, and says what was measured.
fn say(file: &BenchFile, outputs: &Outputs) -> Result<Said> {
    if let Some(path) = &outputs.output {
        file.write(path)?;
    }
    write_report(file, outputs.report.as_deref(), outputs.charts.as_deref())?;
    let mut text = report::markdown(file, None)?;
    if let Some(why) = file.settings.more.get("no forecast") {
        text.push_str(&format!("\nno forecast: {why}\n"));
    }
    Ok(Said::Result { json: serde_json::to_value(file)?, text, worse: false })
}

fn write_report(file: &BenchFile, page: Option<&Path>, charts: Option<&Path>) -> Result<Vec<String>> {
    if let Some(path) = page {
        std::fs::write(path, report::html(file)?)
            .with_context(|| format!("can't write {}", path.display()))?;
    }
    charts.map_or(Ok(Vec::new()), |folder| report::write_charts(file, folder))
}

fn make_report(args: &ReportArgs) -> Result<Said> {
    let file = BenchFile::read(&args.file)?;
    let mut written = write_report(&file, args.report.as_deref(), args.charts.as_deref())?;
    written.extend(args.report.iter().map(|path| path.display().to_string()));
    if let Some(path) = &args.markdown {
        let folder = args.charts.as_ref().map(|charts| charts.to_string_lossy().into_owned());
        let text = report::markdown(&file, folder.as_deref())?;
        std::fs::write(path, text).with_context(|| format!("can't write {}", path.display()))?;
        written.push(path.display().to_string());
    }
    let text = match written.is_empty() {
        true => report::markdown(&file, None)?,
        false => written.iter().map(|path| format!("wrote {path}\n")).collect(),
    };
    Ok(Said::Result { json: serde_json::json!({ "written": written }), text, worse: false })
}

fn compare(args: &CompareArgs) -> Result<Said> {
    ensure!(
        (0.0..=1000.0).contains(&args.threshold),
        "--threshold {} is no percentage from 0 to 1000",
        args.threshold
    );
    let (before, after) = (BenchFile::read(&args.before)?, BenchFile::read(&args.after)?);
    ensure!(
        before.kind == after.kind,
        "{} and {} are of different benchmarks",
        args.before.display(),
        args.after.display()
    );
    let rules =
        compare::Rules { threshold: args.threshold / 100.0, ratios: args.ratios, across: args.across };
    let compared = compare::compare(&before, &after, &rules);
    ensure!(
        !compared.compared.is_empty(),
        "the files have nothing to compare: {}",
        compared.notes.join("; ")
    );
    let worse = compared.count(compare::Verdict::Worse) > 0;
    Ok(Said::Result { json: serde_json::to_value(&compared)?, text: compared.text(), worse })
}

#[allow(clippy::print_stdout, reason = "the rows are the program's output")]
fn order(args: &OrderArgs) -> Result<()> {
    let sampler = Sampler::new(args.seed, args.rows, args.batch);
    for epoch in 0..args.epochs {
        let order = sampler.epoch_order(epoch);
        let steps = sampler.steps_per_epoch();
        for step in epoch * steps..(epoch + 1) * steps {
            println!("{}", serde_json::to_string(&order.rows_of_step(step).collect::<Vec<_>>())?);
        }
    }
    Ok(())
}
