//! The machine as this process may use it.

use std::path::Path;

use muster_trainer::topology::{HostFacts, volume_room};

/// Mount points of volumes in memory, separated by colons. Kubernetes counts what lies in them as memory of the pod.
const VOLUMES: &str = "MUSTER_MEMORY_VOLUMES";

/// Reads the machine; what volumes in memory can still take is not for training.
pub fn detect() -> HostFacts {
    let volumes = std::env::var(VOLUMES).unwrap_or_default();
    let mut facts = HostFacts::detect();
    for path in volumes.split(':').filter(|path| !path.is_empty()) {
        match volume_room(Path::new(path)) {
            Ok(bytes) => facts.memory.keep(bytes),
            Err(error) => facts.warnings.push(format!("{VOLUMES}: {path}: {error}")),
        }
    }
    facts
}
