//! What the cluster says about the pod behind an address.

/// A pod that is listed as an agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListedPod {
    /// Host name, `trainer-3`.
    pub name: String,
    /// Its identity: a pod that is made again has the same name and another one. Empty if nobody says.
    pub uid: String,
    /// Machine that it runs on.
    pub machine: String,
    /// Zone of that machine.
    pub zone: String,
    /// Whether its readiness probe passes.
    pub ready: bool,
    /// Whether it is being deleted.
    pub terminating: bool,
}

impl ListedPod {
    /// Its number in the StatefulSet.
    pub fn ordinal(&self) -> Option<u32> {
        ordinal(&self.name)
    }
}

/// The number at the end of a pod's name.
pub fn ordinal(name: &str) -> Option<u32> {
    name.rsplit_once('-')?.1.parse().ok()
}
