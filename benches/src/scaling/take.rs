//! One measurement: starts a run in its place, reads its log while it goes on, and ends it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use muster_trainer::topology::HostFacts;
use serde::Deserialize;

use super::case::{Case, Cores, Library, Place};
use super::energy;
use super::network::{Network, inside};
use super::peer;
use super::workload::Workload;
use crate::Env;
use crate::procs::{CpuTimes, Procs, tail};

/// Between two looks at the log.
const LOOK: Duration = Duration::from_millis(50);
/// Until the first step: weights are drawn or loaded, and data is tokenised.
const FIRST_STEP: Duration = Duration::from_secs(600);
/// Until the next one.
const NEXT_STEP: Duration = Duration::from_secs(180);
/// Until a coordinator takes a run.
const SUBMIT: Duration = Duration::from_secs(30);
/// Steps of a run that is ended from outside; so many that it never ends by itself, and the same for all, as the
/// learning rate depends on it.
const ENDLESS: u64 = 100_000;

/// A step as the log has it.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct StepRow {
    /// Its number, from 1.
    pub step: u64,
    /// Mean loss.
    pub loss: Option<f64>,
    /// Rows.
    pub rows: f64,
    /// Tokens.
    pub tokens: f64,
    tokens_per_s: f64,
    /// Waiting for rows.
    #[serde(default)]
    pub data_s: f64,
    /// Forward and backward.
    #[serde(default)]
    pub compute_s: f64,
    #[serde(default)]
    exposed_s: f64,
    /// Waiting for slower ranks.
    #[serde(default)]
    pub wait_s: f64,
}

impl StepRow {
    /// The whole step.
    pub fn step_s(&self) -> f64 {
        if self.tokens_per_s > 0.0 { self.tokens / self.tokens_per_s } else { 0.0 }
    }

    /// Communication that nothing hides.
    pub fn comm_s(&self) -> f64 {
        (self.exposed_s - self.wait_s).max(0.0)
    }

    /// Everything else: norm, vote, AdamW.
    pub fn update_s(&self) -> f64 {
        (self.step_s() - self.data_s - self.compute_s - self.exposed_s).max(0.0)
    }
}

/// What one measurement gave.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// The steps after the warm-up.
    pub steps: Vec<StepRow>,
    /// Losses from the first step on.
    pub losses: Vec<f64>,
    /// Peak memory of the largest rank on this machine.
    pub peak_bytes: Option<u64>,
    /// Energy of a step.
    pub joules: Option<f64>,
    /// CPUs that other programs used meanwhile.
    pub others_cpus: f64,
    /// CPUs that the hypervisor took.
    pub stolen_cpus: f64,
    /// Stops by a quota or by heat.
    pub throttled: u64,
}

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub struct Length {
    /// Steps that are not counted.
    pub warmup: usize,
    /// Steps that are.
    pub steps: usize,
}

/// Everything that stays the same between measurements.
pub struct Session<'a> {
    /// Program, signals and messages.
    pub env: &'a Env<'a>,
    /// Where files go.
    pub dir: &'a Path,
    /// What is trained.
    pub workload: &'a Workload,
    /// `--set` of the user.
    pub overrides: &'a [String],
    /// How cores are dealt.
    pub cores: &'a Cores,
    /// Where the cluster is, if there is one.
    pub coordinator: Option<&'a str>,
    /// An interpreter with PyTorch.
    pub python: Option<&'a Path>,
    /// Whether PyTorch computes in bf16 as this program does.
    pub bf16: bool,
}

impl Session<'_> {
    /// Measures once.
    ///
    /// # Errors
    /// A run that ends early, stands still, or is stopped by a signal.
    pub fn take(&self, case: &Case, network: Option<&Network>, length: Length) -> Result<Taken> {
        let out = self.dir.join("out");
        // What is there is of an earlier measurement.
        let _ = fs::remove_dir_all(&out);
        fs::create_dir_all(&out).with_context(|| format!("can't make {}", out.display()))?;
        let mut procs = Procs::default();
        let log = match case.library {
            Library::Muster => self.start(&mut procs, case, network, length)?,
            Library::Torch => peer::start(self, &mut procs, case, network, length)?,
        };
        let taken = self.follow(&mut procs, &log, length, matches!(case.place, Place::Cluster { .. }));
        procs.kill();
        let _ = fs::remove_dir_all(&out);
        taken
    }

    /// Starts a run of this program; returns its log.
    fn start(
        &self,
        procs: &mut Procs,
        case: &Case,
        network: Option<&Network>,
        length: Length,
    ) -> Result<PathBuf> {
        let out = self.dir.join("out");
        match (case.place, network) {
            (Place::Local { ranks }, _) => {
                let mut command = Command::new(self.env.program);
                command.arg("train").arg(&self.workload.run_file).args(["--ranks", &ranks.to_string()]);
                command.args(self.settings(case, &out, ENDLESS));
                procs.spawn(self.dir, "muster train", &mut command, &self.cores.first(ranks))?;
            }
            (Place::Emulated(emulation), Some(network)) => {
                let address = format!("{}:7070", network.hub_address());
                let mut command = inside(&network.hub(), self.env.program);
                command.args(["coordinator", "--listen", &address, "--state"]).arg(out.join("state"));
                procs.spawn(self.dir, "coordinator", &mut command, &[])?;
                self.wait_for(procs, "coordinator", "listens on")?;
                for node in 0..emulation.nodes {
                    let listen = format!("{}:7071", network.address(node));
                    let name = format!("node{node}");
                    let mut command = inside(&network.node(node), self.env.program);
                    command.args([
                        "trainer",
                        "--listen",
                        &listen,
                        "--coordinator",
                        &address,
                        "--name",
                        &name,
                    ]);
                    procs.spawn(self.dir, &name, &mut command, &self.cores.of_node(node))?;
                }
                let mut command = inside(&network.hub(), self.env.program);
                command.arg("submit").arg(&self.workload.run_file).args(["--coordinator", &address]);
                command.args(self.settings(case, &out, ENDLESS));
                command.args([
                    "--set",
                    &format!("ranks.nodes={}", emulation.nodes),
                    "--set",
                    "ranks.per_node=1",
                ]);
                self.submit(procs, &mut command)?;
            }
            (Place::Emulated(_), None) => bail!("an emulated place has a network"),
            (Place::Cluster { nodes }, _) => {
                let address = self.coordinator.context("a cluster has a coordinator")?;
                let mut command = Command::new(self.env.program);
                command.arg("submit").arg(&self.workload.run_file).args(["--wait", "--coordinator", address]);
                command.args(self.settings(case, &out, (length.warmup + length.steps) as u64));
                command.args(["--set", &format!("ranks.nodes={nodes}")]);
                procs.spawn(self.dir, "muster submit", &mut command, &[])?;
            }
        }
        Ok(out.join("metrics.jsonl"))
    }

    fn settings(&self, case: &Case, out: &Path, steps: u64) -> Vec<String> {
        let own = [
            format!("output_dir={}", out.display()),
            format!("train.max_steps={steps}"),
            format!("train.global_batch={}", case.rows),
            "train.log_every_steps=1".into(),
        ];
        self.overrides.iter().cloned().chain(own).flat_map(|setting| ["--set".into(), setting]).collect()
    }

    /// Waits until a process has written these words: agents that announce themselves too early wait long to try again.
    fn wait_for(&self, procs: &mut Procs, name: &str, words: &str) -> Result<()> {
        let (begun, log) = (Instant::now(), self.dir.join(format!("{name}.log")));
        while !fs::read_to_string(&log).unwrap_or_default().contains(words) {
            procs.check()?;
            self.check_stop()?;
            ensure!(
                begun.elapsed() < SUBMIT,
                "{name} is not ready after {} s:\n{}",
                SUBMIT.as_secs(),
                tail(&log)
            );
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Gives a run to a coordinator that has just been started.
    fn submit(&self, procs: &mut Procs, command: &mut Command) -> Result<()> {
        let begun = Instant::now();
        loop {
            let output = command.output().context("can't start muster submit")?;
            if output.status.success() {
                return Ok(());
            }
            procs.check()?;
            self.check_stop()?;
            let text = String::from_utf8_lossy(&output.stderr);
            // Anything but a coordinator that does not listen yet stays wrong.
            let may_pass = text.contains("can't reach the coordinator") && begun.elapsed() < SUBMIT;
            ensure!(may_pass, "the coordinator did not take the run: {}", text.trim());
            std::thread::sleep(LOOK);
        }
    }

    fn check_stop(&self) -> Result<()> {
        ensure!(!self.env.stop.load(Ordering::Relaxed), "stopped by a signal");
        Ok(())
    }

    /// Reads the log until it has enough steps.
    fn follow(&self, procs: &mut Procs, log: &Path, length: Length, ends_itself: bool) -> Result<Taken> {
        let all = length.warmup + length.steps;
        let (mut known, mut last_step) = (0, Instant::now());
        let mut window: Option<Window> = None;
        loop {
            self.check_stop()?;
            let rows = read_log(log)?;
            procs.sample();
            // Counters that begin again are followed.
            let _ = energy::joules();
            if rows.len() > known {
                (known, last_step) = (rows.len(), Instant::now());
            }
            if window.is_none() && known >= length.warmup.min(all - 1) {
                window = Some(Window::open(procs, known));
            }
            let over = if ends_itself { procs.has_ended("muster submit")? } else { known >= all };
            if over {
                ensure!(
                    known >= all,
                    "the run ended after {known} of {all} steps:\n{}",
                    tail(&self.dir.join("muster submit.log"))
                );
                let window = window.unwrap_or_else(|| Window::open(procs, known));
                return Ok(window.close(procs, rows, length, ends_itself));
            }
            if !ends_itself {
                procs.check()?;
            }
            let patience = if known == 0 { FIRST_STEP } else { NEXT_STEP };
            if last_step.elapsed() > patience {
                let logs = ["muster train.log", "node0.log", "coordinator.log", "torch0.log"]
                    .map(|name| tail(&self.dir.join(name)));
                bail!("no step within {} s after step {known}:\n{}", patience.as_secs(), logs.join("\n"));
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The machine at the end of the warm-up.
struct Window {
    begun: Instant,
    first: usize,
    machine: CpuTimes,
    own_s: f64,
    joules: Option<f64>,
    stops: u64,
}

impl Window {
    fn open(procs: &Procs, first: usize) -> Self {
        let (machine, own_s) = (CpuTimes::now(), procs.cpu_s());
        Self { begun: Instant::now(), first, machine, own_s, joules: energy::joules(), stops: stops() }
    }

    fn close(self, procs: &Procs, rows: Vec<StepRow>, length: Length, elsewhere: bool) -> Taken {
        let seconds = self.begun.elapsed().as_secs_f64().max(1e-3);
        let machine = CpuTimes::now();
        let busy = machine.busy - self.machine.busy;
        let steps = rows.len().saturating_sub(self.first).max(1) as f64;
        let joules = self.joules.zip(energy::joules()).map(|(from, to)| (to - from) / steps);
        Taken {
            losses: rows.iter().filter_map(|row| row.loss).collect(),
            steps: rows.into_iter().skip(length.warmup).take(length.steps).collect(),
            peak_bytes: Some(procs.peak_bytes()).filter(|&bytes| bytes > 0 && !elsewhere),
            joules: joules.filter(|_| !elsewhere),
            others_cpus: if elsewhere {
                0.0
            } else {
                ((busy - (procs.cpu_s() - self.own_s)) / seconds).max(0.0)
            },
            stolen_cpus: if elsewhere { 0.0 } else { (machine.stolen - self.machine.stolen) / seconds },
            throttled: if elsewhere { 0 } else { stops().saturating_sub(self.stops) },
        }
    }
}

/// How often a quota or the temperature has stopped the CPUs so far.
fn stops() -> u64 {
    let quota = HostFacts::detect().throttling.map_or(0, |throttling| throttling.throttled);
    let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let heat = cpus.filter_map(|cpu| {
        let file = cpu.path().join("thermal_throttle/core_throttle_count");
        fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
    });
    quota + heat.sum::<u64>()
}

/// The steps of a log; a line that is being written is left for the next look.
fn read_log(path: &Path) -> Result<Vec<StepRow>> {
    #[derive(Deserialize)]
    struct Head {
        kind: String,
    }
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("can't read {}", path.display())),
    };
    let mut rows = Vec::new();
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let bad = || format!("{}: a line of the log is not understood: {line}", path.display());
        let head: Head = serde_json::from_str(line).with_context(bad)?;
        if head.kind == "train" {
            rows.push(serde_json::from_str(line).with_context(bad)?);
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_while_it_is_written_and_parts_add_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("metrics.jsonl");
        assert!(read_log(&path).expect("not there yet").is_empty());
        let line = r#"{"kind":"train","step":1,"loss":0.5,"rows":32,"tokens":500,"tokens_per_s":250.0,"data_s":0.1,"compute_s":1.0,"exposed_s":0.6,"wait_s":0.2}"#;
        fs::write(&path, format!("{line}\n{{\"kind\":\"eval\",\"step\":1}}\n{{\"kind\":\"tra"))
            .expect("written");
        let rows = read_log(&path).expect("readable");
        assert_eq!(rows.len(), 1);
        let row = rows[0];
        assert!((row.step_s() - 2.0).abs() < 1e-12 && (row.comm_s() - 0.4).abs() < 1e-12);
        assert!((row.update_s() - 0.3).abs() < 1e-12, "{}", row.update_s());
    }
}
