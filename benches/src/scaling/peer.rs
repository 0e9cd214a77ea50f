//! PyTorch DistributedDataParallel over Gloo on the same cores and links, by the script of `benches/peers`, which is
//! part of this program.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::case::{Case, Place};
use super::network::{Network, inside};
use super::take::{Length, Session};
use crate::procs::Procs;

const SCRIPT: &str = include_str!("../../peers/ddp_torch.py");
const RECIPE: &str = include_str!("../../peers/recipe.py");
/// Where the first rank listens inside its namespace.
const PORT: u16 = 29_511;

/// Starts the ranks; returns the log of the first.
///
/// # Errors
/// No made workload, or an interpreter that can't be started.
pub fn start(
    session: &Session<'_>,
    procs: &mut Procs,
    case: &Case,
    network: Option<&Network>,
    length: Length,
) -> Result<PathBuf> {
    let python = session.python.context("the peer needs --torch-python")?;
    let made = session.workload.made.as_ref();
    let made = made
        .context("the peer knows the rows only of the made workload: leave RUN.toml or --torch-python out")?;
    let out = session.dir.join("out");
    let write = |name: &str, text: &str| -> Result<PathBuf> {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))?;
        Ok(path)
    };
    let script = write("ddp_torch.py", SCRIPT)?;
    write("recipe.py", RECIPE)?;
    let steps = made.steps(case.rows, length.warmup + length.steps);
    let steps = write("steps.json", &serde_json::to_string(&steps)?)?;
    let log = out.join("torch.jsonl");
    let ranks = case.place.ranks();
    let port = free_port().unwrap_or(PORT);
    for rank in 0..ranks {
        let (mut command, master, interface, cpus) = match (case.place, network) {
            (Place::Emulated(_), Some(network)) => {
                let master = format!("{}:{PORT}", network.address(0));
                (inside(&network.node(rank), python), master, "eth0", session.cores.of_node(rank))
            }
            (Place::Local { .. }, _) => {
                (Command::new(python), format!("127.0.0.1:{port}"), "lo", session.cores.of_node(rank))
            }
            _ => bail!("PyTorch is measured on this machine only"),
        };
        let threads = session.cores.threads.to_string();
        command
            .arg(&script)
            .arg("--config")
            .arg(&made.config)
            .arg("--steps")
            .arg(&steps)
            .arg("--log")
            .arg(&log);
        command.args(["--ranks", &ranks.to_string(), "--rank", &rank.to_string(), "--master", &master]);
        command.args(["--interface", interface, "--threads", &threads, "--stay"]);
        command.args(session.bf16.then_some("--bf16"));
        command.env("OMP_NUM_THREADS", &threads).env("PYTHONDONTWRITEBYTECODE", "1");
        procs.spawn(session.dir, &format!("torch{rank}"), &mut command, &cpus)?;
    }
    Ok(log)
}

/// A port of loopback that was free a moment ago.
fn free_port() -> Option<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).ok()?;
    Some(listener.local_addr().ok()?.port())
}
