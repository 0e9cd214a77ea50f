//! Has a process that trains watch what it may use of its machine.

use std::time::Duration;

use anyhow::Context;
use muster_allreduce::shm::memory_name;
use muster_proto::RunSpec;
use muster_proto::limits::PLACE_INTERVAL;
use muster_proto::v1::Start;
use muster_trainer::plan::DerivedPlan;
use muster_trainer::topology::{Binder, Dealt, HostFacts};

/// Seconds between two looks; for tests and for systems where reading is slow.
const INTERVAL: &str = "MUSTER_PLACE_INTERVAL_S";

/// Watches from now on. `start` says what a rank was dealt; without it the process has all that it may use.
///
/// # Errors
/// An interval in the environment that is no time.
pub fn binder(
    spec: &RunSpec,
    host: &HostFacts,
    plan: &DerivedPlan,
    start: Option<&Start>,
) -> anyhow::Result<Binder> {
    let dealt = Dealt {
        cpus: start.map(|start| start.cpus.clone()).unwrap_or_default(),
        spare: start.map(|start| start.spare_cpus.clone()).unwrap_or_default(),
        local_ranks: start.map_or(1, |start| start.local_ranks),
        threads: spec.train.threads,
        pin: spec.train.pin,
    };
    Ok(Binder::start(host, (&plan.cpus, &plan.pinning), dealt, memory_name(), interval()?))
}

fn interval() -> anyhow::Result<Duration> {
    let Some(text) = std::env::var_os(INTERVAL).filter(|text| !text.is_empty()) else {
        return Ok(PLACE_INTERVAL);
    };
    let seconds = text.to_str().and_then(|text| text.parse::<f64>().ok());
    let interval = seconds.filter(|&s| s > 0.0).and_then(|s| Duration::try_from_secs_f64(s).ok());
    interval.with_context(|| format!("{INTERVAL} must be a number of seconds above 0, not {text:?}"))
}
