//! Ending the operations of a rank from another thread.

use std::sync::{Arc, Weak};

use super::lane::Ender;
use crate::comm::Communicator;

/// Ends all operations of a [`super::World`], as [`super::World::abort`] does. It does not keep the world alive.
#[derive(Clone, Default)]
pub struct WorldAbort {
    comm: Weak<Communicator>,
    lane: Option<Ender>,
}

impl std::fmt::Debug for WorldAbort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorldAbort")
            .field("is_gone", &(self.comm.strong_count() == 0))
            .finish_non_exhaustive()
    }
}

impl WorldAbort {
    pub(super) fn new(comm: &Arc<Communicator>, lane: Option<Ender>) -> Self {
        Self { comm: Arc::downgrade(comm), lane }
    }

    /// Ends all operations of the rank with an error, and tells the peers. Needs no peer and does not block; a world
    /// that is gone has none.
    pub fn abort(&self, reason: &str) {
        let Some(comm) = self.comm.upgrade() else { return };
        comm.abort(reason);
        if let Some(lane) = &self.lane {
            lane.end();
        }
    }
}
