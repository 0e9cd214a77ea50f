//! Runs and nodes in words and as JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_proto::v1::{self, FailureKind, NodeState, RunState};
use serde::Serialize;

use crate::exit::Exit;

/// A run for programs.
#[derive(Debug, Serialize)]
pub struct RunJson {
    pub id: String,
    pub name: String,
    pub state: String,
    pub reason: String,
    pub priority: i32,
    pub submitter: String,
    pub generation: u64,
    pub step: Option<u64>,
    pub total_steps: Option<u64>,
    pub loss: Option<f64>,
    pub submitted_ms: u64,
    pub started_ms: u64,
    pub ended_ms: u64,
    pub recoveries: u32,
    pub last_recovery_ms: u64,
    pub failure: Option<String>,
    pub waits_for: Vec<String>,
    pub tenant: Option<String>,
    pub sweep: Option<String>,
    pub overrides: Vec<String>,
    pub results: Option<serde_json::Value>,
    pub ranks: Vec<RankJson>,
}

/// A rank for programs.
#[derive(Debug, Serialize)]
pub struct RankJson {
    pub rank: u32,
    pub member: String,
    pub node: String,
    pub state: String,
    pub step: Option<u64>,
    pub step_ms: Option<f64>,
    pub compute_ms: Option<f64>,
    pub exposed_ms: Option<f64>,
    pub data_ms: Option<f64>,
    pub cores: Option<u32>,
    pub numa_local: Option<f64>,
    pub throttled: Option<f64>,
}

/// The last word of an enum's name in the protocol, in small letters.
fn word(name: &str, prefix: &str) -> String {
    name.trim_start_matches(prefix).to_lowercase()
}

/// The state of a run in one word.
pub fn state(run: &v1::Run) -> String {
    word(run.state().as_str_name(), "RUN_STATE_")
}

/// The state of a node in one word.
pub fn node_state(node: &v1::Node) -> String {
    word(NodeState::try_from(node.state).unwrap_or_default().as_str_name(), "NODE_STATE_")
}

/// Whether a run is over.
pub fn is_over(run: &v1::Run) -> bool {
    matches!(run.state(), RunState::Succeeded | RunState::Failed | RunState::Cancelled)
}

/// How a command ends that stands for the run.
pub fn exit(run: &v1::Run) -> Exit {
    match (run.state(), run.failure()) {
        (RunState::Succeeded, _) => Exit::Success,
        (RunState::Cancelled, _) => Exit::Interrupted,
        (_, FailureKind::Input) => Exit::Data,
        (_, FailureKind::Diverged) => Exit::Diverged,
        (_, FailureKind::Resources) => Exit::Resources,
        _ => Exit::Failure,
    }
}

/// "step 7 of 90"; empty before the first step.
pub fn progress(run: &v1::Run) -> String {
    match &run.progress {
        Some(progress) => format!("step {} of {}", progress.step, progress.total_steps),
        None => String::new(),
    }
}

/// How long ago a moment was.
pub fn ago(ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = now.saturating_sub(Duration::from_millis(ms)).as_secs();
    match seconds {
        _ if ms == 0 => String::new(),
        0..120 => format!("{seconds} s ago"),
        120..7_200 => format!("{} min ago", seconds / 60),
        7_200..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// A run for programs.
pub fn run_json(run: &v1::Run) -> RunJson {
    let progress = run.progress.as_ref();
    let failed = run.failure() != FailureKind::Unspecified;
    RunJson {
        id: run.id.clone(),
        name: run.name.clone(),
        state: state(run),
        reason: run.reason.clone(),
        priority: run.priority,
        submitter: run.submitter.clone(),
        generation: run.generation,
        step: progress.map(|progress| progress.step),
        total_steps: progress.map(|progress| progress.total_steps),
        loss: progress.map(|progress| progress.loss).filter(|loss| loss.is_finite()),
        submitted_ms: run.submitted_ms,
        started_ms: run.started_ms,
        ended_ms: run.ended_ms,
        recoveries: run.recoveries,
        last_recovery_ms: run.last_recovery_ms,
        failure: failed.then(|| word(run.failure().as_str_name(), "FAILURE_KIND_")),
        waits_for: run.waits_for.clone(),
        tenant: Some(run.tenant.clone()).filter(|tenant| !tenant.is_empty()),
        sweep: Some(run.sweep.clone()).filter(|sweep| !sweep.is_empty()),
        overrides: run.overrides.clone(),
        results: serde_json::from_str(&run.results).ok(),
        ranks: run.ranks.iter().map(rank_json).collect(),
    }
}

fn rank_json(rank: &v1::RunRank) -> RankJson {
    let ms = |pick: fn(&v1::Progress) -> u64| rank.progress.as_ref().map(|p| pick(p) as f64 / 1_000.0);
    RankJson {
        rank: rank.rank,
        member: rank.member_id.clone(),
        node: rank.node.clone(),
        state: rank.state.clone(),
        step: rank.progress.as_ref().map(|progress| progress.step),
        step_ms: ms(|p| p.step_us),
        compute_ms: ms(|p| p.compute_us),
        exposed_ms: ms(|p| p.exposed_us),
        data_ms: ms(|p| p.data_us),
        cores: rank.progress.and_then(|progress| Some(progress.place?.cores)),
        numa_local: rank.progress.as_ref().and_then(numa_local),
        throttled: rank.progress.as_ref().and_then(throttled),
    }
}

/// Share of a rank's own memory on the NUMA nodes of its CPUs.
pub fn numa_local(progress: &v1::Progress) -> Option<f64> {
    let place = progress.place.filter(|place| place.memory_bytes > 0)?;
    Some(place.local_bytes as f64 / place.memory_bytes as f64)
}

/// Share of the periods in which a CPU quota stopped a rank's group.
pub fn throttled(progress: &v1::Progress) -> Option<f64> {
    let place = progress.place.filter(|place| place.periods > 0)?;
    Some(place.throttled_periods as f64 / place.periods as f64)
}
