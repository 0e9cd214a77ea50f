//! Collective operations in the manner of nccl-tests: sizes, minimum, median and p99 of the slowest rank, algbw
//! and busbw, and how near they come to memcpy, measured by the same processes.
//!
//! Every rank is a process of its own: this program again, as `allreduce --worker ..`. A sample is the mean of
//! a batch of operations; the parent takes the slowest rank.

mod case;
mod network;
mod report;
mod worker;
mod world;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

pub use case::{Case, Path};
use report::Line;

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Ranks on this machine
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Bytes per rank, as bytes:samples:batch; the last two may be left out
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4,64,1024,16384,65536,262144,1048576,4194304,16777216"
    )]
    sizes: Vec<Case>,
    /// Where the data lies and how it moves
    #[arg(long, value_delimiter = ',', default_value = "arena,foreign")]
    paths: Vec<Path>,
    /// Element type: f32 or bf16
    #[arg(long, default_value = "f32")]
    dtype: String,
    /// Ranks to a node, for the paths of `World`: nodes are joined by TCP. Without, one node has all
    #[arg(long)]
    per_node: Option<usize>,
    /// Let every rank write its input before each operation, as a backward pass does; without, lines stay in
    /// the caches of the cores that read them
    #[arg(long)]
    fresh: bool,
    /// Print one JSON object per line instead of the table
    #[arg(long)]
    json: bool,
    /// Addresses of all ranks, for a run across machines: this process is rank --rank, and TCP the only path
    #[arg(long, value_delimiter = ',', requires = "rank")]
    addresses: Vec<std::net::SocketAddr>,
    /// Key that all ranks share, at least 16 bytes
    #[arg(long, default_value = "muster-bench, no secret")]
    key: String,
    /// Internal: this process is a rank of the named run
    #[arg(long, hide = true)]
    worker: Option<String>,
    /// Which rank this process is, with --addresses
    #[arg(long)]
    rank: Option<usize>,
}

/// Runs the benchmark, or one rank of it.
pub fn run(options: &Options) -> Result<()> {
    if let Some(run) = &options.worker {
        return worker::run(options, run);
    }
    if !options.addresses.is_empty() {
        return worker::across_machines(options);
    }
    ensure!(options.ranks > 0, "--ranks must be at least 1");
    let mut children = Vec::new();
    let run = format!("bench-{}", std::process::id());
    for rank in 0..options.ranks {
        children.push(Rank::start(options, &run, rank)?);
    }
    report::title(options);
    for &path in &options.paths {
        for &case in &options.sizes {
            let lines = children.iter_mut().map(Rank::line).collect::<Result<Vec<_>>>()?;
            report::row(options, path, case, &Line::slowest(&lines));
        }
    }
    children.into_iter().try_for_each(Rank::end)
}

/// A rank's process.
struct Rank {
    rank: usize,
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Rank {
    fn start(options: &Options, run: &str, rank: usize) -> Result<Self> {
        let join = |list: Vec<String>| list.join(",");
        let mut child = Command::new(std::env::current_exe()?)
            .arg("allreduce")
            .args(["--ranks", &options.ranks.to_string(), "--rank", &rank.to_string(), "--worker", run])
            .args(["--dtype", &options.dtype, "--key", &options.key])
            .args(["--sizes", &join(options.sizes.iter().map(ToString::to_string).collect())])
            .args(["--paths", &join(options.paths.iter().map(ToString::to_string).collect())])
            .args(options.fresh.then_some("--fresh"))
            .args(options.per_node.map(|n| format!("--per-node={n}")))
            .stdout(Stdio::piped())
            .spawn()
            .context("could not start a rank")?;
        let out = child.stdout.take().context("a rank has no standard output")?;
        Ok(Self { rank, child, lines: BufReader::new(out).lines() })
    }

    fn line(&mut self) -> Result<Line> {
        let Some(line) = self.lines.next() else {
            bail!("rank {} ended early: {}", self.rank, self.child.wait()?);
        };
        serde_json::from_str(&line?).with_context(|| format!("rank {} wrote nonsense", self.rank))
    }

    fn end(mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "rank {} ended with {status}", self.rank);
        Ok(())
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Where another rank has failed; this one may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
