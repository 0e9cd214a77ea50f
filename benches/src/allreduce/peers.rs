//! The same sums by Open MPI and by Gloo, by the programs of `benches/peers`, which are part of this one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::report::Line;
use super::{Case, Options};
use crate::procs::{Procs, tail};

const MPI: &str = include_str!("../../peers/allreduce_mpi.c");
const GLOO: &str = include_str!("../../peers/allreduce_gloo.py");
/// Longer than all sizes of a peer take.
const DEADLINE: Duration = Duration::from_secs(600);

/// A peer that is ready to run.
pub struct Peer {
    /// `openmpi` or `pytorch-gloo`.
    pub library: &'static str,
    /// Which of its ways.
    pub path: &'static str,
    kind: Kind,
}

enum Kind {
    Mpi { program: PathBuf, transport: &'static str, place: &'static str },
    Gloo { python: PathBuf, script: PathBuf },
}

#[derive(Deserialize)]
struct Row {
    bytes: usize,
    min_us: f64,
    median_us: f64,
    p99_us: f64,
    samples_us: Vec<f64>,
}

/// Makes the peers that were asked for in `dir`.
///
/// # Errors
/// A peer that is not installed.
pub fn prepare(options: &Options, dir: &Path) -> Result<Vec<Peer>> {
    let mut peers = Vec::new();
    if options.mpi {
        let source = dir.join("allreduce_mpi.c");
        std::fs::write(&source, MPI).context("can't write the program for Open MPI")?;
        let program = dir.join("allreduce_mpi");
        let output = Command::new("mpicc").args(["-O2", "-o"]).arg(&program).arg(&source).output();
        let output = output.context("--mpi needs mpicc and mpirun (Debian: openmpi-bin libopenmpi-dev)")?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "mpicc can't compile the program for Open MPI: {}", text.trim());
        for (path, transport, place) in [
            ("shm", "vader", "apart"),
            ("shm-in-place", "vader", "in-place"),
            ("tcp-in-place", "tcp", "in-place"),
        ] {
            let kind = Kind::Mpi { program: program.clone(), transport, place };
            peers.push(Peer { library: "openmpi", path, kind });
        }
    }
    if let Some(python) = &options.torch_python {
        let script = dir.join("allreduce_gloo.py");
        std::fs::write(&script, GLOO).context("can't write the program for Gloo")?;
        let kind = Kind::Gloo { python: python.clone(), script };
        peers.push(Peer { library: "pytorch-gloo", path: "tcp-in-place", kind });
    }
    Ok(peers)
}

impl Peer {
    /// Runs all sizes once, as f32.
    ///
    /// # Errors
    /// A peer that fails.
    pub fn run(&self, options: &Options, dir: &Path) -> Result<Vec<Line>> {
        let mut procs = Procs::default();
        let cases = options.sizes.iter().map(Case::to_string).collect::<Vec<_>>();
        match &self.kind {
            Kind::Mpi { program, transport, place } => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                let bind = if options.ranks <= cores { "core" } else { "none" };
                let mut command = Command::new("mpirun");
                command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", bind]);
                command.args([
                    "-np",
                    &options.ranks.to_string(),
                    "--mca",
                    "btl",
                    &format!("self,{transport}"),
                ]);
                command.arg(program).arg(place).args(&cases);
                procs.spawn(dir, "peer0", &mut command, &[])?;
            }
            Kind::Gloo { python, script } => {
                let store = dir.join("store");
                // Of an earlier round.
                let _ = std::fs::remove_file(&store);
                for rank in 0..options.ranks {
                    let mut command = Command::new(python);
                    command.arg(script).args([rank.to_string(), options.ranks.to_string()]).arg(&store);
                    command.arg(cases.join(",")).env("OMP_NUM_THREADS", "1");
                    procs.spawn(dir, &format!("peer{rank}"), &mut command, &[])?;
                }
            }
        }
        let (begun, log) = (Instant::now(), dir.join("peer0.log"));
        while !procs.has_ended("peer0").with_context(|| format!("{} can't be measured", self.library))? {
            ensure!(begun.elapsed() < DEADLINE, "{} took too long:\n{}", self.library, tail(&log));
            std::thread::sleep(Duration::from_millis(20));
        }
        let text = std::fs::read_to_string(&log).context("can't read what the peer wrote")?;
        let rows: Vec<Row> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        ensure!(
            rows.len() == cases.len(),
            "{} measured {} of {} sizes:\n{}",
            self.library,
            rows.len(),
            cases.len(),
            tail(&log)
        );
        let of = |row: Row| Line {
            min_us: row.min_us,
            median_us: row.median_us,
            p99_us: row.p99_us,
            samples_us: row.samples_us,
            ..Line::default()
        };
        ensure!(
            rows.iter().zip(&options.sizes).all(|(row, case)| row.bytes == case.bytes),
            "{} measured other sizes",
            self.library
        );
        Ok(rows.into_iter().map(of).collect())
    }
}
