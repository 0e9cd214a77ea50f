//! Where the agent's own threads run while ranks compute, and what the node lets its ranks use.

use std::path::Path;

use crate::topology::{Allowed, HostFacts, bind_other_threads};

/// Keeps this process out of the way of its ranks.
#[derive(Debug)]
pub(super) struct Aside {
    /// What this process might use when the machine was read last.
    allowed: Allowed,
    /// Whether threads of this process are bound to the core that ranks leave.
    is_aside: bool,
}

impl Aside {
    pub fn new() -> Self {
        Self { allowed: Allowed::read(Path::new("/")), is_aside: false }
    }

    /// Reads the machine again, if what this process may use has changed: cpusets change under containers that wait.
    pub fn news(&mut self) -> Option<HostFacts> {
        let allowed = Allowed::read(Path::new("/"));
        if allowed == self.allowed {
            return None;
        }
        tracing::warn!("the CPUs of this node have changed: now {} CPUs", allowed.cpus.len());
        self.allowed = allowed;
        Some(HostFacts::detect())
    }

    /// Keeps to the core that ranks leave to communication and control, if they leave one.
    pub fn keep_to(&mut self, spare: &[u32]) {
        if !spare.is_empty() || self.is_aside {
            bind_other_threads(if spare.is_empty() { &self.allowed.cpus } else { spare });
            self.is_aside = !spare.is_empty();
        }
    }

    /// The CPUs on which a rank begins that was dealt these: without any it gets all, not those that this process keeps to.
    pub fn birthplace<'a>(&'a self, dealt: &'a [u32]) -> &'a [u32] {
        if dealt.is_empty() && self.is_aside { &self.allowed.cpus } else { dealt }
    }
}
