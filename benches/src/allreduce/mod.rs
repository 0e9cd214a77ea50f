//! Collective operations in the manner of nccl-tests: sizes, minimum, median and p99 of the slowest rank, algbw
//! and busbw, and how near they come to memcpy, measured by the same processes.
//!
//! Every rank is a process of its own: this program again, as `bench allreduce --worker ..`. A sample is the mean of
//! a batch of operations; the parent takes the slowest rank.

mod case;
mod network;
mod peers;
mod report;
mod worker;
mod world;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

pub use case::{Case, Path};
use report::Line;

use crate::schema::Point;

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
    /// How often everything is measured, in turns
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Let Open MPI do the same, in turns
    #[arg(long, conflicts_with = "addresses")]
    mpi: bool,
    /// Interpreter with PyTorch: let Gloo do the same, in turns
    #[arg(long, value_name = "PATH", conflicts_with = "addresses")]
    torch_python: Option<std::path::PathBuf>,
    /// Addresses of all ranks, for a run across machines: this process is rank --rank, and TCP the only path
    #[arg(long, value_delimiter = ',', requires = "rank")]
    addresses: Vec<std::net::SocketAddr>,
    /// Key that all ranks share, at least 16 bytes
    #[arg(long, default_value = "muster bench, no secret")]
    key: String,
    /// Internal: this process is a rank of the named run
    #[arg(long, hide = true)]
    worker: Option<String>,
    /// Which rank this process is, with --addresses
    #[arg(long)]
    rank: Option<usize>,
}

impl Options {
    /// Whether this process is a rank that its parent reads.
    pub fn is_worker(&self) -> bool {
        self.worker.is_some()
    }

    /// How the points were made, for the file.
    pub fn describe(&self) -> String {
        let ranks = self.addresses.len().max(self.ranks);
        format!("sums of {} over {ranks} ranks, in place or apart by path", self.dtype)
    }
}

/// Is one rank of a benchmark; lines go to standard output.
///
/// # Errors
/// Ranks that don't come together.
pub fn work(options: &Options) -> Result<()> {
    worker::run(options, options.worker.as_deref().context("a worker has a run")?)
}

/// Runs the benchmark on processes of this machine, started as `program bench allreduce ..`; or is one rank of one across
/// machines.
///
/// # Errors
/// Ranks that don't come together, or that end early.
pub fn points(options: &Options, program: &std::path::Path) -> Result<Vec<Point>> {
    if !options.addresses.is_empty() {
        return worker::across_machines(options);
    }
    ensure!(options.ranks > 0, "--ranks must be at least 1");
    let dir = tempfile::Builder::new()
        .prefix("muster-bench-")
        .tempdir()
        .context("can't make a temporary directory")?;
    let peers = peers::prepare(options, dir.path())?;
    let cases = options.paths.len() * options.sizes.len();
    let mut rounds: Vec<Vec<Line>> = vec![Vec::new(); cases];
    let mut theirs: Vec<Vec<Line>> = vec![Vec::new(); peers.len() * options.sizes.len()];
    for round in 0..options.rounds.max(1) {
        let run = format!("bench-{}-{round}", std::process::id());
        let start = |rank| Rank::start(options, program, &run, rank);
        let mut children = (0..options.ranks).map(start).collect::<Result<Vec<_>>>()?;
        for lines in &mut rounds {
            let all = children.iter_mut().map(Rank::line).collect::<Result<Vec<_>>>()?;
            lines.push(Line::slowest(&all));
        }
        children.into_iter().try_for_each(Rank::end)?;
        for (peer, lines) in peers.iter().zip(theirs.chunks_exact_mut(options.sizes.len())) {
            for (lines, line) in lines.iter_mut().zip(peer.run(options, dir.path())?) {
                lines.push(line);
            }
        }
    }
    let mut points = Vec::new();
    let sizes = || options.sizes.iter();
    for (path, lines) in options.paths.iter().zip(rounds.chunks_exact(options.sizes.len())) {
        points.extend(sizes().zip(lines).map(|(&case, lines)| report::point(options, *path, case, lines)));
    }
    for (peer, lines) in peers.iter().zip(theirs.chunks_exact(options.sizes.len())) {
        let named = sizes().zip(lines);
        points.extend(
            named.map(|(&case, lines)| report::of_peer(options, (peer.library, peer.path), case, lines)),
        );
    }
    Ok(points)
}

/// A rank's process.
struct Rank {
    rank: usize,
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Rank {
    fn start(options: &Options, program: &std::path::Path, run: &str, rank: usize) -> Result<Self> {
        let join = |list: Vec<String>| list.join(",");
        let mut child = Command::new(program)
            .args(["bench", "allreduce"])
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
