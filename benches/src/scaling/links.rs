//! What the links of a place can do: sums of three sizes among as many ranks, without any training. Latency and bandwidth
//! of the cost model come from them.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::case::{Case, Place};
use super::network::{Network, inside};
use super::take::Session;
use crate::procs::{Procs, tail};
use crate::schema::{BenchFile, Point};

/// Sizes with their samples and batches: latency, a small and a full bucket of gradients.
const SIZES: &str = "1024:40:1,1048576:12:1,26214400:4:1";
/// The size whose bus bandwidth stands beside a training point.
pub const BUCKET_BYTES: f64 = 26_214_400.0;
/// Longer than any link needs.
const DEADLINE: Duration = Duration::from_secs(180);
const PORT: u16 = 7_072;

/// Measures the links of a place; nothing where a rank is alone or on another machine.
///
/// # Errors
/// Ranks that don't come together.
pub fn measure(session: &Session<'_>, case: &Case, network: Option<&Network>) -> Result<Vec<Point>> {
    let ranks = case.place.ranks();
    let mut procs = Procs::default();
    let sums = |command: &mut Command| {
        command.args(["--json", "bench", "allreduce", "--sizes", SIZES]);
    };
    let first = match (case.place, network) {
        (Place::Local { ranks }, _) if ranks > 1 => {
            let mut command = Command::new(session.env.program);
            sums(&mut command);
            command.args(["--paths", "world", "--fresh", "--ranks", &ranks.to_string()]);
            procs.spawn(session.dir, "links0", &mut command, &session.cores.first(ranks))?;
            "links0"
        }
        (Place::Emulated(_), Some(network)) => {
            let addresses: Vec<String> =
                (0..ranks).map(|rank| format!("{}:{PORT}", network.address(rank))).collect();
            for rank in 0..ranks {
                let mut command = inside(&network.node(rank), session.env.program);
                sums(&mut command);
                command.args(["--addresses", &addresses.join(","), "--rank", &rank.to_string()]);
                procs.spawn(
                    session.dir,
                    &format!("links{rank}"),
                    &mut command,
                    &session.cores.of_node(rank),
                )?;
            }
            "links0"
        }
        _ => return Ok(Vec::new()),
    };
    let begun = Instant::now();
    let log = session.dir.join(format!("{first}.log"));
    while !procs.has_ended(first).with_context(|| format!("can't measure the links of {}", case.place))? {
        ensure!(begun.elapsed() < DEADLINE, "the links of {} took too long:\n{}", case.place, tail(&log));
        ensure!(!session.env.stop.load(std::sync::atomic::Ordering::Relaxed), "stopped by a signal");
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = std::fs::read_to_string(&log).with_context(|| format!("can't read {}", log.display()))?;
    // Log lines may stand before the document.
    let start = text.find('{').unwrap_or(0);
    let file = BenchFile::parse(&text[start..]).with_context(|| format!("the links of {}", case.place))?;
    Ok(file.points.into_iter().map(|point| placed(point, case, session)).collect())
}

fn placed(mut point: Point, case: &Case, session: &Session<'_>) -> Point {
    point.series = "sum".into();
    point.name = format!("{} bytes, {}", point.dimension("bytes"), case.place);
    point = point.dim("nodes", case.place.nodes() as f64).dim("crowd", session.cores.crowd(case.place));
    if let Place::Emulated(emulation) = case.place {
        point = point.dim("gbit", emulation.gbit).dim("delay_us", emulation.delay_us);
    }
    point
}

/// Joins the rounds of equal points.
pub fn join(rounds: Vec<Vec<Point>>) -> Vec<Point> {
    let mut all: Vec<Point> = Vec::new();
    for point in rounds.into_iter().flatten() {
        let same = |other: &&mut Point| other.name == point.name && other.dims == point.dims;
        let Some(known) = all.iter_mut().find(same) else {
            all.push(point);
            continue;
        };
        for metric in point.metrics {
            if let Some(into) = known.metrics.iter_mut().find(|known| known.name == metric.name) {
                into.samples.extend(metric.samples);
                into.estimate = crate::stats::estimate(&into.samples);
            }
        }
    }
    all
}
