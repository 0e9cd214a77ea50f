//! Strong and weak scaling of training over ranks: real processes on this machine, over emulated nodes, or over the nodes
//! of a coordinator, in interleaved rounds.

mod case;
mod energy;
mod links;
mod network;
mod peer;
mod points;

mod take;
mod trial;
mod workload;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use muster_trainer::topology::HostFacts;

use case::{Case, Cores, Library, Place};
pub use case::{Series, default_ranks};
use network::{Emulation, Network};
use points::Column;
use take::{Length, Session};
pub use trial::{Plan, Trial, plan_run, trial};
pub use workload::{Workload, table};

use crate::Env;
use crate::fingerprint::Settings;
use crate::schema::Point;

/// Steps of the runs that only tell the losses of one rank.
const PARITY_STEPS: usize = 3;

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Run file; default: DeBERTa-v3-xsmall's shape and data made on the spot
    #[arg(value_name = "RUN.toml")]
    pub run: Option<PathBuf>,
    /// Replace a value of the run file: --set train.precision=f32
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Shape of the made model: minilm-l6, deberta-v3-xsmall, deberta-v3-large-4, tiny
    #[arg(long, value_name = "NAME", default_value = "deberta-v3-xsmall", conflicts_with = "run")]
    pub model: String,
    /// Rows of a step of the made run
    #[arg(long, value_name = "ROWS", default_value_t = 32, conflicts_with = "run", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: u32,
    /// Ranks on this machine, each on its share of the cores; default: 1, 2, 4, ... up to the cores
    #[arg(long, value_name = "COUNTS", value_delimiter = ',')]
    pub ranks: Vec<usize>,
    /// Emulated nodes, as nodes=4,gbit=1 (needs root); may be repeated
    #[arg(long, value_name = "KEY=VALUE,...")]
    emulate: Vec<Emulation>,
    /// Measure over the nodes of this coordinator, as host:port; needs --dir on a file system that all nodes see
    #[arg(long, value_name = "HOST:PORT", requires = "dir", conflicts_with_all = ["emulate", "ranks"])]
    pub coordinator: Option<String>,
    /// Numbers of nodes, with --coordinator
    #[arg(
        long,
        value_name = "COUNTS",
        value_delimiter = ',',
        requires = "coordinator",
        default_value = "1,2,4"
    )]
    pub nodes: Vec<usize>,
    /// Bandwidth of the links of the cluster in 1e9 bit/s, for the forecast
    #[arg(long, value_name = "GBIT", requires = "coordinator")]
    pub gbit: Option<f64>,
    /// strong: the same step by more ranks; weak: rows grow with the ranks
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "strong,weak")]
    series: Vec<Series>,
    /// How often every point is measured, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Counted steps of a measurement
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub steps: u32,
    /// Steps before them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub warmup: u32,
    /// Interpreter with PyTorch and transformers: DDP over Gloo does the same work, in turns
    #[arg(long, value_name = "PATH", conflicts_with_all = ["run", "coordinator"])]
    pub torch_python: Option<PathBuf>,
    /// Rounds of PyTorch; its processes take long to start
    #[arg(long, default_value_t = 1, requires = "torch_python", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub torch_rounds: u32,
    /// Directory for run files, data and logs, which is kept; default: a temporary one
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// What a scaling benchmark gives beside its points.
pub struct Outcome {
    /// The points.
    pub points: Vec<Point>,
    /// How the machine was used.
    pub settings: Settings,
    /// Floating-point operations per token of the run, for the forecast.
    pub flops_per_token: f64,
}

/// Measures.
///
/// # Errors
/// A run that can't start or go on, a place that can't be made, or a signal.
pub fn run(options: &Options, env: &Env<'_>) -> Result<Outcome> {
    let host = HostFacts::detect();
    let temporary = tempfile::Builder::new()
        .prefix("muster-bench-")
        .tempdir()
        .context("can't make a temporary directory")?;
    let dir = options.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&dir).with_context(|| format!("can't make {}", dir.display()))?;
    let dir = std::path::absolute(&dir).context("can't use the directory")?;
    let workload = match &options.run {
        Some(run) => Workload::of_run(&dir, run, &options.overrides)?,
        None => Workload::make(&dir, &options.model, options.batch as usize)?,
    };
    let places = places(options, &host)?;
    let local = places.iter().filter(|place| !matches!(place, Place::Cluster { .. }));
    let cores = Cores::deal(&host, local.map(|place| place.ranks()).max().unwrap_or(1))?;
    let plan = plan_run(env, &dir, &workload, &options.overrides, &cores.first(1))?;
    let session = Session {
        env,
        dir: &dir,
        workload: &workload,
        overrides: &options.overrides,
        cores: &cores,
        coordinator: options.coordinator.as_deref(),
        python: options.torch_python.as_deref(),
        bf16: plan.precision == "bf16",
    };
    let cases = cases(options, &places, workload.global_batch)?;
    let (columns, links) = measure(&session, options, &cases)?;
    let one_rank = one_rank(&session, &columns)?;
    let pinned = plan.is_pinned() || cores.first(1).len() == 1;
    let context = points::Context {
        cores: &cores,
        pinned,
        bf16: session.bf16,
        one_rank: &one_rank,
        gradient_bytes: plan.gradient_bytes,
    };
    let mut points = points::all(&columns, &context);
    for point in &mut points {
        describe(point, &plan, options);
    }
    beside(&mut points, &links);
    points.extend(links);
    let settings = Settings {
        threads: cores.threads,
        pinned,
        precision: plan.precision.clone(),
        workload: format!("{}, {} rows a step", workload.describe, workload.global_batch),
        load: 0.0,
        more: [("rounds", options.rounds), ("steps", options.steps), ("warmup", options.warmup)]
            .map(|(name, value)| (name.to_owned(), value.to_string()))
            .into(),
    };
    Ok(Outcome { points, settings, flops_per_token: plan.flops / plan.tokens_per_step.max(1.0) })
}

fn places(options: &Options, host: &HostFacts) -> Result<Vec<Place>> {
    if options.coordinator.is_some() {
        ensure!(options.nodes.iter().all(|&nodes| nodes > 0), "--nodes must be at least 1");
        return Ok(with_one(&options.nodes).into_iter().map(|nodes| Place::Cluster { nodes }).collect());
    }
    let ranks = match (options.ranks.is_empty(), options.emulate.is_empty()) {
        (false, _) => with_one(&options.ranks),
        // Emulated nodes are compared with one rank.
        (true, false) => vec![1],
        (true, true) => default_ranks(host),
    };
    ensure!(ranks.iter().all(|&ranks| (1..=1024).contains(&ranks)), "--ranks must be 1 to 1024");
    let local = ranks.into_iter().map(|ranks| Place::Local { ranks });
    Ok(local.chain(options.emulate.iter().map(|&emulation| Place::Emulated(emulation))).collect())
}

/// Ascending, each once, and 1 among them: what the others are compared with.
fn with_one(counts: &[usize]) -> Vec<usize> {
    let mut all: Vec<usize> = counts.iter().copied().chain([1]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn cases(options: &Options, places: &[Place], rows: usize) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for &place in places {
        for &series in &options.series {
            // One rank does the same in both.
            let is_one = place.ranks() == 1 && cases.iter().any(|case: &Case| case.place == place);
            if is_one {
                continue;
            }
            let rows = if series == Series::Weak { rows * place.ranks() } else { rows };
            workload::check_rows(rows, place.ranks())?;
            cases.push(Case { series, library: Library::Muster, place, rows });
            if options.torch_python.is_some() && (series == Series::Strong || options.series.len() == 1) {
                cases.push(Case { series, library: Library::Torch, place, rows });
            }
        }
    }
    Ok(cases)
}

/// All rounds, each with every case; emulated networks live as long as needed.
fn measure(session: &Session<'_>, options: &Options, cases: &[Case]) -> Result<(Vec<Column>, Vec<Point>)> {
    let mut columns: Vec<Column> = cases.iter().map(|&case| Column { case, rounds: Vec::new() }).collect();
    let mut sums = Vec::new();
    let networks: Vec<(Emulation, Network)> =
        options.emulate.iter().map(|e| Ok((*e, Network::build(e)?))).collect::<Result<_>>()?;
    let network = |place: Place| match place {
        Place::Emulated(wanted) => networks.iter().find(|(e, _)| *e == wanted).map(|(_, network)| network),
        _ => None,
    };
    let length = Length { warmup: options.warmup as usize, steps: options.steps as usize };
    let rounds = options.rounds as usize;
    for round in 0..rounds {
        let mut measured_links: Vec<Place> = Vec::new();
        // Another one begins each round: nobody always follows the same neighbour.
        for turn in 0..columns.len() {
            let column = &mut columns[(turn + round) % cases.len()];
            let case = column.case;
            let torch = case.library == Library::Torch;
            if torch && round >= options.torch_rounds as usize {
                continue;
            }
            (session.env.say)(&format!(
                "round {} of {rounds}: {}, {}, {} rows, {}",
                round + 1,
                case.series.word(),
                case.name(),
                case.rows,
                case.library.word()
            ));
            // DDP's first step is no slower than the others once buckets are made.
            let length = if torch { Length { warmup: 1, steps: length.steps.min(3) } } else { length };
            let taken = session.take(&case, network(case.place), length);
            column.rounds.push(
                taken.with_context(|| format!("can't measure {} ({})", case.name(), case.library.word()))?,
            );
            if !torch && !measured_links.contains(&case.place) {
                measured_links.push(case.place);
                sums.push(links::measure(session, &case, network(case.place))?);
            }
        }
    }
    Ok((columns, links::join(sums)))
}

/// The losses of one rank for every number of rows that was measured.
fn one_rank(session: &Session<'_>, columns: &[Column]) -> Result<Vec<(usize, Vec<f64>)>> {
    let mut known: Vec<(usize, Vec<f64>)> = Vec::new();
    let is_one = |column: &&Column| {
        column.case.library == Library::Muster
            && matches!(column.case.place, Place::Local { ranks: 1 } | Place::Cluster { nodes: 1 })
    };
    for column in columns.iter().filter(is_one) {
        if let Some(taken) = column.rounds.first() {
            known.push((column.case.rows, taken.losses.clone()));
        }
    }
    for column in columns {
        let Case { rows, place, library, .. } = column.case;
        // In a cluster a longer run has another learning rate, so only equal runs can be compared.
        if library != Library::Muster
            || matches!(place, Place::Cluster { .. })
            || known.iter().any(|(r, _)| *r == rows)
        {
            continue;
        }
        (session.env.say)(&format!("losses of one rank with {rows} rows"));
        let case = Case { place: Place::Local { ranks: 1 }, ..column.case };
        let taken = session.take(&case, None, Length { warmup: 1, steps: PARITY_STEPS - 1 })?;
        known.push((rows, taken.losses));
    }
    Ok(known)
}

/// Adds what the plan knows of the work.
fn describe(point: &mut Point, plan: &Plan, options: &Options) {
    point.dims.remove("gradient_bytes");
    // Ranks sum every gradient but the word table's as a whole.
    point.dims.insert("summed_bytes".into(), (plan.gradient_bytes - plan.embedding_bytes).max(0.0));
    point.dims.insert("table_bytes".into(), plan.embedding_bytes);
    point.dims.insert("row_bytes".into(), plan.embedding_row_bytes);
    if let Some(gbit) = options.gbit.filter(|_| point.dimension("nodes") > 1.0) {
        point.dims.insert("gbit".into(), gbit);
    }
    point.dims.insert("plan_threads".into(), plan.threads as f64);
}

/// The bus bandwidth of a full bucket beside each training point of the same place.
fn beside(points: &mut [Point], links: &[Point]) {
    for point in points.iter_mut().filter(|point| point.dimension("ranks") > 1.0 && point.library == "muster")
    {
        let same = |link: &&Point| {
            ["ranks", "nodes", "gbit"].iter().all(|dim| link.dimension(dim) == point.dimension(dim))
                && link.dimension("bytes") == links::BUCKET_BYTES
        };
        match links.iter().find(same).and_then(|link| link.get("busbw")) {
            Some(busbw) => point.metrics.push(busbw.clone()),
            None => {
                drop(point.missing.insert("busbw".into(), "not measured: links of other machines".into()))
            }
        }
    }
}
