//! One error type for what goes wrong inside a node and between nodes.

use muster_proto::Rank;

use crate::error::{Error, Loss, Phase};
use crate::membership::Membership;
use crate::shm::{AbortHandle, Outside, ShmError};

/// Whose errors are translated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub me: Rank,
    /// The first rank of the node.
    pub first: u32,
}

impl Place {
    pub fn new(membership: &Membership, me: Rank) -> Self {
        Self { me, first: membership.local(me).start }
    }

    /// The rank of the world that a local rank is.
    fn global(&self, local: usize) -> Rank {
        Rank(self.first + local as u32)
    }

    fn lost(&self, peer: Rank, phase: Phase, cause: String) -> Error {
        let loss = Loss { peer, address: None, phase, silent: None, cause };
        Error::PeerLost { me: self.me, loss }
    }

    /// The error of the world that an error of the node is.
    pub fn error(&self, error: ShmError) -> Error {
        match error {
            ShmError::PeerLost { peer, stage, ref cause, .. } => {
                let cause = format!("{stage}, {cause}");
                self.lost(self.global(peer), Phase::Transfer, cause)
            }
            ShmError::Evicted { by, .. } => {
                let cause = format!("{} gave up on this rank", self.global(by));
                self.lost(self.me, Phase::Transfer, cause)
            }
            ShmError::Missing { missing, ref group, waited, .. } => {
                let cause = format!("it has not joined {group} within {} ms", waited.as_millis());
                self.lost(self.global(missing), Phase::Connect, cause)
            }
            ShmError::Aborted { by, .. } => {
                let peer = self.global(by);
                Error::Aborted { peer, reason: format!("its reason is in the log of {peer}") }
            }
            ShmError::Outside { by, rank, what, operation, .. } => {
                self.outside(self.global(by), Rank(rank), what, operation)
            }
            ShmError::Mismatch { peer, operation, mine, theirs, .. } => {
                Error::Mismatch { me: self.me, peer: self.global(peer), operation, mine, theirs }
            }
            ShmError::Handshake { peer, problem, .. } => {
                Error::Protocol { me: self.me, peer: self.global(peer), address: None, problem }
            }
            ShmError::WrongUser { peer, uid } => {
                let problem = format!("its socket belongs to user {uid}");
                Error::Protocol { me: self.me, peer: self.global(peer), address: None, problem }
            }
            ShmError::Cancelled { group, .. } => {
                Error::Aborted { peer: self.me, reason: format!("it was told to stop joining {group}") }
            }
            ShmError::System { attempt, source, .. } => {
                Error::Socket { attempt: "share memory on this node:", address: attempt, source }
            }
            ShmError::NoMemory { bytes, source, .. } => {
                let address = format!("{bytes} bytes for the buffers of {}", self.me);
                Error::Socket { attempt: "reserve", address, source }
            }
            ShmError::Config { name, problem } => Error::Config { name, problem },
            ShmError::Unsupported { what, dtype } => {
                Error::Unsupported { what, dtype, why: "it would have to be rounded" }
            }
            ShmError::Length { what, expected, got } => {
                Error::Length { what, expected: expected as u64, got: got as u64 }
            }
        }
    }

    /// The error of a rank that others gave up, instead of what it thinks of them: it may have been stopped, and they
    /// are gone.
    pub fn unless_accused(&self, handle: &AbortHandle, error: Error) -> Error {
        match handle.accused_by(self.me.0) {
            Some(by) => self.error(ShmError::Evicted { me: 0, by, operation: 0 }),
            None => error,
        }
    }

    /// What a local rank has told of the other nodes.
    fn outside(&self, by: Rank, culprit: Rank, what: Outside, operation: u64) -> Error {
        match what {
            Outside::Lost => self.lost(culprit, Phase::Transfer, format!("reported by {by}")),
            Outside::Aborted => {
                Error::Aborted { peer: culprit, reason: format!("its reason is in the log of {by}") }
            }
            Outside::Differs => Error::Mismatch {
                me: self.me,
                peer: culprit,
                operation,
                mine: "one".to_owned(),
                theirs: format!("another (details are in the log of {by})"),
            },
        }
    }
}

/// Ends the operations of the node because of a failure between nodes.
pub(super) fn end(handle: &AbortHandle, me: Rank, error: &Error) {
    let what = match error {
        Error::Mismatch { .. } => Outside::Differs,
        Error::PeerLost { .. } | Error::Stalled { .. } | Error::Protocol { .. } => Outside::Lost,
        _ => Outside::Aborted,
    };
    let culprit = match error {
        Error::Mismatch { me: other, peer, .. } if *peer == me => *other,
        Error::Mismatch { peer, .. } => *peer,
        error => error.culprit().unwrap_or(me),
    };
    handle.end(what, culprit.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Cause, Stage};

    /// Ranks of an error are those of the world, whatever the node counts.
    #[test]
    fn errors_name_ranks_of_the_world() {
        let place = Place { me: Rank(5), first: 4 };
        let (me, operation) = (1, 7);
        let lost = ShmError::PeerLost { me, peer: 2, operation, stage: Stage::Begin, cause: Cause::Gone };
        let evicted = ShmError::Evicted { me, by: 0, operation };
        let outside = |what| ShmError::Outside { me, by: 0, rank: 9, what, operation };
        let missing =
            ShmError::Missing { me, missing: 3, group: "g".into(), waited: std::time::Duration::ZERO };
        let culprits: Vec<_> = [
            lost,
            evicted,
            outside(Outside::Lost),
            outside(Outside::Aborted),
            missing,
            ShmError::Aborted { by: 0, operation },
        ]
        .into_iter()
        .map(|e| place.error(e).culprit().unwrap().0)
        .collect();
        assert_eq!(culprits, [6, 5, 9, 9, 7, 4]);
        let differs = place.error(outside(Outside::Differs));
        assert!(matches!(differs, Error::Mismatch { peer: Rank(9), .. }), "{differs}");
    }
}
