//! What runs need of the cluster: what discovery and the care for pods are told by the owner.

use std::collections::{BTreeMap, BTreeSet};

/// Needs of the runs at a moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Demand {
    /// Whether anybody has looked yet: nothing may be done on the word of a coordinator that has just begun.
    pub is_known: bool,
    /// Nodes that have a run, with its name.
    pub busy: BTreeMap<String, String>,
    /// Nodes that runs in the queue wait for, beyond those that are free.
    pub wanted: u32,
    /// Nodes that are connected.
    pub connected: BTreeSet<String>,
}

impl Demand {
    /// Whether a run waits for nodes.
    pub fn waits(&self) -> bool {
        self.wanted > 0
    }
}
