//! What can go wrong, with who, where, in which phase, and what to do about it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_proto::Rank;

use crate::membership::MembershipError;

/// Shorthand of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Where in its life a connection or an operation was when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Opening the connection.
    Connect,
    /// Proving the keys.
    Handshake,
    /// Connected, nothing under way.
    Idle,
    /// Moving data of an operation.
    Transfer,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connecting",
            Self::Handshake => "the handshake",
            Self::Idle => "waiting for the next operation",
            Self::Transfer => "a transfer",
        })
    }
}

/// A peer that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The rank that is gone.
    pub peer: Rank,
    /// Its address, if a connection knew one.
    pub address: Option<SocketAddr>,
    /// What was going on.
    pub phase: Phase,
    /// Time since its last byte.
    pub silent: Option<Duration>,
    /// What the operating system or the rank that noticed said.
    pub cause: String,
}

/// An error of a collective operation or of the connections under it.
///
/// Cheap to clone: one failure ends every operation under way, and each gets it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The members can't form a generation.
    #[error("invalid membership")]
    Membership(#[from] MembershipError),
    /// An option has a value that can't work.
    #[error("invalid option {name}: {problem}")]
    Config {
        /// The option.
        name: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The operation isn't defined for these arguments.
    #[error("{what} is not defined for {dtype}: {why}")]
    Unsupported {
        /// The operation.
        what: &'static str,
        /// The element type.
        dtype: &'static str,
        /// Why.
        why: &'static str,
    },
    /// A buffer has the wrong length.
    #[error("{what} has {got} elements, expected {expected}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Elements it must have.
        expected: u64,
        /// Elements it has.
        got: u64,
    },
    /// A rank that isn't in the membership.
    #[error("{rank} is not in this generation of {world_size} ranks")]
    NoSuchRank {
        /// The rank.
        rank: Rank,
        /// Number of ranks.
        world_size: usize,
    },
    /// Too many operations are under way.
    #[error("{limit} operations are already under way")]
    Busy {
        /// How many may be.
        limit: usize,
    },
    /// A peer is gone.
    #[error("{me} lost {loss}")]
    PeerLost {
        /// The rank that reports.
        me: Rank,
        /// Who is gone, and how that was noticed.
        loss: Loss,
    },
    /// A peer is connected but sends nothing that it owes.
    #[error(
        "{me} has waited {waited:?} for {peer} ({}) in operation {operation} ({name}), {}",
        Address(.address), Silence(.silent)
    )]
    Stalled {
        /// The rank that reports.
        me: Rank,
        /// The rank that it waits for.
        peer: Rank,
        /// Address of that rank.
        address: Option<SocketAddr>,
        /// Number of the operation.
        operation: u64,
        /// Name of the operation.
        name: String,
        /// Time without progress.
        waited: Duration,
        /// Time since its last byte.
        silent: Option<Duration>,
    },
    /// Two ranks posted different operations under one number.
    #[error("operation {operation} differs: {me} has {mine}, {peer} has {theirs}")]
    Mismatch {
        /// One of the two ranks.
        me: Rank,
        /// The other.
        peer: Rank,
        /// Number of the operation.
        operation: u64,
        /// What the one posted.
        mine: String,
        /// What the other posted.
        theirs: String,
    },
    /// Another rank gave up and said why.
    #[error("{peer} aborted: {reason}")]
    Aborted {
        /// The rank that aborted.
        peer: Rank,
        /// Its reason.
        reason: String,
    },
    /// A peer broke the protocol.
    #[error("{me} got nonsense from {peer} ({}): {problem}", Address(.address))]
    Protocol {
        /// The rank that reports.
        me: Rank,
        /// The peer.
        peer: Rank,
        /// Its address.
        address: Option<SocketAddr>,
        /// What it sent.
        problem: String,
    },
    /// Ranks ended a step with different bits.
    #[error("{rank} has other bits than the majority in bucket {bucket} of step {step}")]
    Divergence {
        /// The rank that differs.
        rank: Rank,
        /// The first bucket in which it does.
        bucket: usize,
        /// The step.
        step: u64,
    },
    /// A socket could not be made or used.
    #[error("could not {attempt} {address}")]
    Socket {
        /// What was attempted.
        attempt: &'static str,
        /// On what.
        address: String,
        /// What the operating system said.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The communicator was shut down.
    #[error("the communicator of {me} is closed")]
    Closed {
        /// Whose.
        me: Rank,
    },
}

impl Error {
    /// The fix for the user.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Membership(error) => return error.hint(),
            Self::Unsupported { .. } => "convert the buffer to f32 first".into(),
            Self::PeerLost { loss, .. } => format!(
                "see the log of {}; inputs are intact unless the operation was in place, so survivors can go on in a new generation",
                loss.peer
            ),
            Self::Stalled { peer, .. } => {
                format!("see what {peer} does, or raise the operation budget if it is only slow")
            }
            Self::Mismatch { .. } => {
                "every rank must post the same operations in the same order, with equal options".into()
            }
            Self::Protocol { .. } => "check that every rank runs the same version of Muster".into(),
            Self::Divergence { .. } => {
                "restore the last checkpoint; check that rank's memory and binary".into()
            }
            Self::Busy { .. } => "wait for some handles before posting more".into(),
            _ => return None,
        })
    }

    /// The rank that is to blame, if one is.
    pub fn culprit(&self) -> Option<Rank> {
        match self {
            Self::PeerLost { loss, .. } => Some(loss.peer),
            Self::Stalled { peer, .. } | Self::Protocol { peer, .. } | Self::Aborted { peer, .. } => {
                Some(*peer)
            }
            Self::Divergence { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, silent) = (Address(&self.address), Silence(&self.silent));
        write!(f, "{} ({address}) during {}, {silent}: {}", self.peer, self.phase, self.cause)
    }
}

struct Address<'a>(&'a Option<SocketAddr>);

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(f),
            None => f.write_str("no address yet"),
        }
    }
}

struct Silence<'a>(&'a Option<Duration>);

impl fmt::Display for Silence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(age) => write!(f, "last byte {} ms ago", age.as_millis()),
            None => f.write_str("never heard of"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_names_rank_address_phase_and_silence() {
        let loss = Loss {
            peer: Rank(3),
            address: Some(([10, 0, 0, 3], 700).into()),
            phase: Phase::Transfer,
            silent: Some(Duration::from_millis(12)),
            cause: "connection reset".into(),
        };
        let error = Error::PeerLost { me: Rank(0), loss };
        assert_eq!(
            error.to_string(),
            "rank 0 lost rank 3 (10.0.0.3:700) during a transfer, last byte 12 ms ago: connection reset"
        );
        assert_eq!(error.culprit(), Some(Rank(3)));
        assert!(error.hint().unwrap().contains("rank 3"));
    }
}
