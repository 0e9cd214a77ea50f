//! Ending a group from outside of its operations.

use std::sync::Arc;

use super::error::Outside;
use super::failure::Why;
use super::watch::Local;

/// Ends operations of a group from another thread, without waiting for anybody.
#[derive(Debug, Clone)]
pub struct AbortHandle(pub(super) Arc<Local>);

impl AbortHandle {
    /// Fails the present operation and all later ones; the other ranks fail with it when they wait for this
    /// one.
    pub fn abort(&self) {
        self.0.end(Why::Aborted, self.0.me as u32);
    }

    /// A rank of the node that gave up on this rank, which is `rank` of the world.
    pub fn accused_by(&self, rank: u32) -> Option<usize> {
        self.0.accused_by(rank)
    }

    /// As [`AbortHandle::abort`], because of something outside of the group; `rank` of the world is to blame.
    pub fn end(&self, what: Outside, rank: u32) {
        self.0.end(Why::Outside(what), rank);
    }
}
