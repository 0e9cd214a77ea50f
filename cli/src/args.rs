//! Arguments of every command.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use muster_proto::v1::Origin;

use crate::cluster::args as cluster;

/// Fine-tunes transformer models on CPUs.
#[derive(Debug, Parser)]
#[command(name = "muster", version, max_term_width = 100, after_help = crate::exit::HELP)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// Print results as JSON, for programs
    #[arg(long, global = true)]
    pub json: bool,
    /// Format of log lines and errors on stderr
    #[arg(long, global = true, value_name = "FORMAT", default_value = "human")]
    pub log_format: LogFormat,
    /// Log more: -v debug, -vv trace (MUSTER_LOG or RUST_LOG set filters per module)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Log errors only and draw no progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

/// Format of log lines and errors. Values have no help of their own, which keeps `--help` short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Human,
    Json,
}

/// Whether a run goes on with what its output directory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Resume {
    Never,
    Always,
    /// For those who can't look first, such as a pod that takes over from another.
    Auto,
}

impl Resume {
    /// The same as a rank is told it.
    pub fn origin(self) -> Origin {
        match self {
            Self::Never => Origin::Fresh,
            Self::Always => Origin::Resume,
            Self::Auto => Origin::ResumeOrFresh,
        }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model as a run file describes it
    Train(TrainArgs),
    /// Show every value that a run derives, with its reason, without training
    Plan(PlanArgs),
    /// Measure a trained model on labelled data
    Eval(EvalArgs),
    /// Apply a trained model to new texts; prints one JSON object per text
    Predict(PredictArgs),
    /// Write report.html, a page about a run, from its output directory; a finished run has one
    Report(ReportArgs),
    /// Show what this machine offers to Muster, and what would be slow and why
    Doctor,
    /// Measure kernels, sums, steps and scaling; compare and chart the results
    #[command(subcommand)]
    Bench(muster_bench::BenchCommand),
    /// Find the fastest ranks, micro-batch and threads of a run by short trials, and write them into a new run file
    Tune(muster_bench::tune::Options),
    /// Take part in a run as one of its ranks; agents start it
    #[command(hide = true)]
    Rank,
    /// Give runs to the nodes of a cluster and keep their ranks together
    Coordinator(cluster::CoordinatorArgs),
    /// Run the ranks of this node for a coordinator
    Trainer(cluster::TrainerArgs),
    /// Queue a run at a coordinator
    Submit(cluster::SubmitArgs),
    /// List the runs of a coordinator
    Runs(cluster::RunsArgs),
    /// Show what a run does, or what it waits for
    Status(cluster::OneRunArgs),
    /// Show what the ranks of a run wrote
    Logs(cluster::LogsArgs),
    /// Ask a run to save and end
    Cancel(cluster::OneRunArgs),
    /// List the nodes of a coordinator
    Nodes(cluster::NodesArgs),
}

/// A run file and changes to it.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Run file (docs/run-file.md)
    #[arg(value_name = "RUN.toml")]
    pub run: PathBuf,
    /// Replace a value of the run file: --set train.learning_rate=1e-5
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
}

/// Arguments of `muster train`.
#[derive(Debug, Clone, Args)]
pub struct TrainArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Continue from the newest checkpoint of the output directory; =auto: if there is one
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, hide_possible_values = true)]
    #[arg(default_value = "never", hide_default_value = true, default_missing_value = "always")]
    pub resume: Resume,
    /// Train with so many processes on this machine, each on a part of its cores
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ranks: u32,
}

/// Arguments of `muster plan`.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Forecast rates on 2 to 1024 nodes from what `muster bench scaling --output` measured
    #[arg(long, value_name = "SCALING.json")]
    pub measured: Option<PathBuf>,
}

/// Arguments of `muster report`.
#[derive(Debug, Clone, Args)]
pub struct ReportArgs {
    /// Output directory of a run, which may still go on
    #[arg(value_name = "DIR")]
    pub output_dir: PathBuf,
}

/// Arguments of `muster eval`.
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    /// Directory of a trained model
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Labelled data: CSV, TSV, JSONL or Parquet, by extension
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub data: Vec<PathBuf>,
    #[command(flatten)]
    pub columns: Columns,
    /// Column of the label; several for multi-label 0/1 columns or several targets
    #[arg(long, value_name = "NAME", default_value = "label", value_delimiter = ',')]
    pub label: Vec<String>,
    #[command(flatten)]
    pub compute: Compute,
}

/// Arguments of `muster predict`.
#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("input").required(true).multiple(false).args(["text", "file"])))]
pub struct PredictArgs {
    /// Directory of a trained model
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// A text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub text: Vec<String>,
    /// A file of texts: CSV, TSV, JSONL or Parquet by extension, otherwise one text per line; - reads lines from stdin
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub columns: Columns,
    /// Where the JSON lines go; default: stdout
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub compute: Compute,
}

/// Which columns of a data file hold texts.
#[derive(Debug, Clone, Args)]
pub struct Columns {
    /// Column of the text
    #[arg(long, value_name = "NAME", default_value = "text")]
    pub text_column: String,
    /// Column of the second text of a pair
    #[arg(long, value_name = "NAME")]
    pub text_pair_column: Option<String>,
}

/// How much is computed at once.
#[derive(Debug, Clone, Args)]
pub struct Compute {
    /// Longest sequence in tokens; default: that of the training
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(5..))]
    pub max_length: Option<u32>,
    /// Compute threads; default: the physical cores that the process may use, within its CPU quota
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}
