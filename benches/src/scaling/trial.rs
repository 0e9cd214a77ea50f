//! Single trials of a run, and its plan: what tuning needs beside the scaling curves.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use muster_trainer::topology::HostFacts;
use serde::Deserialize;

use super::case::{Case, Cores, Library, Place, Series};
use super::take::{Length, Session};
use super::workload::Workload;
use crate::Env;
use crate::procs::Procs;

/// What `muster plan --json` tells of a run.
#[derive(Debug, Deserialize)]
pub struct Plan {
    /// Storage of weights and activations.
    pub precision: String,
    /// Compute threads.
    pub threads: usize,
    /// Tokens of the largest micro-batch.
    pub micro_batch_tokens: usize,
    /// Floating-point operations of a mean step.
    pub flops: f64,
    /// Tokens of a mean step.
    pub tokens_per_step: f64,
    /// Bytes of all gradients, f32.
    pub gradient_bytes: f64,
    /// Those of word, position and token-type tables.
    pub embedding_bytes: f64,
    /// Those of one row of a table.
    pub embedding_row_bytes: f64,
    decisions: Vec<Decision>,
}

#[derive(Debug, Deserialize)]
struct Decision {
    name: String,
    value: String,
    reason: String,
}

impl Plan {
    /// Whether threads are bound to CPUs.
    pub fn is_pinned(&self) -> bool {
        self.decisions.iter().any(|decision| decision.name == "pinning" && decision.value != "none")
    }

    /// Why a decision is as it is.
    pub fn reason(&self, name: &str) -> String {
        let found = self.decisions.iter().find(|decision| decision.name == name);
        found.map(|decision| decision.reason.clone()).unwrap_or_default()
    }
}

/// Plans a run on these CPUs, or on all; finds mistakes before anything is measured.
///
/// # Errors
/// A run that can't start.
pub fn plan_run(
    env: &Env<'_>,
    dir: &Path,
    workload: &Workload,
    overrides: &[String],
    cpus: &[u32],
) -> Result<Plan> {
    let mut procs = Procs::default();
    let mut command = Command::new(env.program);
    command.args(["--json", "--quiet", "plan"]).arg(&workload.run_file);
    let sets = overrides.iter().map(String::as_str).chain(["train.max_steps=100000"]);
    command.args(sets.flat_map(|set| ["--set", set]));
    procs.spawn(dir, "muster plan", &mut command, cpus)?;
    while !procs.has_ended("muster plan").context("the run can't be planned")? {
        ensure!(!env.stop.load(Ordering::Relaxed), "stopped by a signal");
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = std::fs::read_to_string(dir.join("muster plan.log")).context("can't read the plan")?;
    // Warnings may stand around the document.
    let start = text.find("{\n").unwrap_or(0);
    let mut plans = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Plan>();
    plans.next().context("muster plan printed nothing")?.context("muster plan printed something else")
}

/// A setting to try.
pub struct Trial<'a> {
    /// Where files go.
    pub dir: &'a Path,
    /// What is trained.
    pub workload: &'a Workload,
    /// Settings of the run.
    pub overrides: &'a [String],
    /// This machine.
    pub host: &'a HostFacts,
    /// Ranks, which share all cores.
    pub ranks: usize,
    /// Counted steps.
    pub steps: usize,
}

/// Rows per second of each counted step of a trial.
///
/// # Errors
/// A setting with which the run does not come so far.
pub fn trial(env: &Env<'_>, wanted: &Trial<'_>) -> Result<Vec<f64>> {
    let cores = Cores::deal(wanted.host, wanted.ranks)?;
    let session = Session {
        env,
        dir: wanted.dir,
        workload: wanted.workload,
        overrides: wanted.overrides,
        cores: &cores,
        coordinator: None,
        python: None,
        bf16: false,
    };
    let rows = wanted.workload.global_batch;
    let place = Place::Local { ranks: wanted.ranks };
    let case = Case { series: Series::Strong, library: Library::Muster, place, rows };
    let taken = session.take(&case, None, Length { warmup: 1, steps: wanted.steps })?;
    Ok(taken.steps.iter().map(|step| step.rows / step.step_s().max(1e-9)).collect())
}
