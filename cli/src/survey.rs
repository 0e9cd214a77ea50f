//! The part of a run that is known before weights are read: model shape, labels, tokens.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use muster_proto::RunSpec;
use muster_trainer::data::BuildProgress;
use muster_trainer::hub::{HubEvent, HubOptions};
use muster_trainer::topology::{HostFacts, cpu_budget};
use muster_trainer::train::{InspectContext, Inspected, inspect};

use crate::args::Global;
use crate::progress::Counter;

/// Reads and checks everything of a run but its weights, showing how far downloads and tokenising are.
///
/// # Errors
/// Whatever is wrong with data, labels, model or tokenizer.
pub fn survey(
    spec: &RunSpec,
    host: &HostFacts,
    stop: &AtomicBool,
    global: &Global,
) -> anyhow::Result<Inspected> {
    let hub = HubOptions::from_env(|name| std::env::var(name).ok())?;
    let counter = Counter::new(global);
    let progress = |set: &'static str, progress: BuildProgress| match progress {
        BuildProgress::Tokenising { rows_done, rows, .. } => {
            counter.show(&format!("tokenising {set} rows"), rows_done, rows);
        }
        BuildProgress::Checking { rows_done } => {
            counter.note(&format!("checking {set} data: {rows_done} rows"))
        }
        BuildProgress::Hashing { bytes_done } => {
            counter.note(&format!("reading {set} data: {bytes_done} bytes"))
        }
    };
    let mut file = (String::new(), 0, 0);
    let mut downloading = |event: HubEvent| match event {
        HubEvent::File { name, bytes } => file = (name, 0, bytes),
        HubEvent::Done => {}
        HubEvent::Bytes(count) => {
            file.1 += count;
            counter.show(&format!("downloading {}", file.0), file.1, file.2);
        }
    };
    let context = InspectContext {
        hub: &hub,
        cache_dir: cache_dir(),
        threads: cpu_budget(host, spec.train.threads).threads,
        stop,
        progress: &progress,
        downloading: &mut downloading,
    };
    let inspected = inspect(spec, context)?;
    counter.clear();
    Ok(inspected)
}

/// `muster/tokens` in the user's cache directory; none if the environment names no home.
fn cache_dir() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")))?;
    Some(base.join("muster").join("tokens"))
}
