//! What can go wrong between the ranks of one node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What a rank was waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Every rank to begin the operation.
    Begin,
    /// Contributions of the others.
    Gather,
    /// Results of the others.
    Results,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Begin => "waiting for everybody to begin",
            Self::Gather => "gathering contributions",
            Self::Results => "waiting for results",
        })
    }
}

/// How a loss was noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The process is gone.
    Gone,
    /// The process lives, and nothing in the group has moved for so long.
    Silent(Duration),
    /// Another rank has noticed.
    ReportedBy(usize),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("its process is gone"),
            Self::Silent(time) => write!(f, "no progress for {} ms", time.as_millis()),
            Self::ReportedBy(rank) => write!(f, "reported by local rank {rank}"),
        }
    }
}

/// What ended a generation outside of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// A rank is lost.
    Lost,
    /// A rank was told to stop.
    Aborted,
    /// Ranks posted different operations.
    Differs,
}

/// An error of a shared-memory group. Ranks are local ranks, those of the node.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ShmError {
    /// An option or argument can't work.
    #[error("invalid {name}: {problem}")]
    Config {
        /// Which.
        name: &'static str,
        /// Why.
        problem: String,
    },
    /// The operating system refused something.
    #[error("local rank {me} could not {attempt}")]
    System {
        /// The rank that reports.
        me: usize,
        /// What was attempted, and on what.
        attempt: String,
        /// What the system said.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// There is no memory for the arena.
    #[error("local rank {me} could not reserve {bytes} bytes of shared memory")]
    NoMemory {
        /// The rank that reports.
        me: usize,
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// Not everybody came.
    #[error("local rank {me} has waited {} ms for local rank {missing} to join {group}", .waited.as_millis())]
    Missing {
        /// The rank that reports.
        me: usize,
        /// A rank that has not joined.
        missing: usize,
        /// Run and generation.
        group: String,
        /// For how long.
        waited: Duration,
    },
    /// A process of another user holds the name of a rank.
    #[error("the socket of local rank {peer} belongs to user {uid}")]
    WrongUser {
        /// The rank.
        peer: usize,
        /// The owner.
        uid: u32,
    },
    /// A process of ours that joins with other parameters.
    #[error("local rank {me} can't join with local rank {peer}: {problem}")]
    Handshake {
        /// The rank that reports.
        me: usize,
        /// The peer.
        peer: usize,
        /// What differs.
        problem: String,
    },
    /// The operation isn't defined for these arguments.
    #[error("{what} is not defined for {dtype}")]
    Unsupported {
        /// The operation.
        what: &'static str,
        /// The element type.
        dtype: &'static str,
    },
    /// A buffer has the wrong length.
    #[error("{what} has {got} elements, expected {expected}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Elements it must have.
        expected: usize,
        /// Elements it has.
        got: usize,
    },
    /// Ranks began different operations. Nothing was sent; the group can go on.
    #[error("operation {operation} differs: local rank {me} has {mine}, local rank {peer} has {theirs}")]
    Mismatch {
        /// The rank that reports.
        me: usize,
        /// A rank that differs.
        peer: usize,
        /// Number of the operation.
        operation: u64,
        /// What the one began.
        mine: String,
        /// What the other began.
        theirs: String,
    },
    /// A rank is gone or stands still.
    #[error("local rank {me} lost local rank {peer} in operation {operation}, {stage}: {cause}")]
    PeerLost {
        /// The rank that reports.
        me: usize,
        /// The rank that is lost.
        peer: usize,
        /// Number of the operation.
        operation: u64,
        /// What was going on.
        stage: Stage,
        /// How it was noticed.
        cause: Cause,
    },
    /// The others went on without this rank.
    #[error("local rank {by} gave up on this rank, local rank {me}, in operation {operation}")]
    Evicted {
        /// The rank that reports.
        me: usize,
        /// Who gave up.
        by: usize,
        /// Number of the operation.
        operation: u64,
    },
    /// Something outside of the group ended the generation.
    #[error("local rank {by} ended operation {operation}: {}", outside(*.what, *.rank))]
    Outside {
        /// The rank that reports.
        me: usize,
        /// The local rank that learned of it.
        by: usize,
        /// The rank of the world that is to blame.
        rank: u32,
        /// What happened.
        what: Outside,
        /// Number of the operation.
        operation: u64,
    },
    /// Nobody wants the group any more.
    #[error("local rank {me} was told to stop joining {group}")]
    Cancelled {
        /// The rank that reports.
        me: usize,
        /// Run and generation.
        group: String,
    },
    /// A rank was told to stop.
    #[error("local rank {by} aborted operation {operation}")]
    Aborted {
        /// Which one.
        by: usize,
        /// Number of the operation.
        operation: u64,
    },
}

impl ShmError {
    /// The fix for the user.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoMemory { .. } => {
                "lower the size of the arena, or raise the memory limit of the container".into()
            }
            Self::Missing { missing, .. } => {
                format!(
                    "see the log of local rank {missing}; every rank needs the same run id and generation"
                )
            }
            Self::WrongUser { .. } => "run all ranks of a node as one user".into(),
            Self::Unsupported { .. } => "convert the buffer to f32 first".into(),
            Self::Mismatch { .. } => {
                "every rank must begin the same operations in the same order, with equal options".into()
            }
            Self::PeerLost { cause: Cause::Silent(_), peer, .. } => {
                format!("see what local rank {peer} does, or raise the progress deadline if it is only slow")
            }
            Self::PeerLost { peer, .. } => format!("see the log of local rank {peer}"),
            Self::Evicted { .. } => "join the next generation; results of this one are not to be used".into(),
            _ => return None,
        })
    }

    /// The rank that is to blame, if one is.
    pub fn culprit(&self) -> Option<usize> {
        match self {
            Self::PeerLost { peer, .. } | Self::Mismatch { peer, .. } | Self::WrongUser { peer, .. } => {
                Some(*peer)
            }
            Self::Missing { missing, .. } => Some(*missing),
            Self::Evicted { me, .. } => Some(*me),
            Self::Aborted { by, .. } => Some(*by),
            _ => None,
        }
    }

    /// Whether the group can't be used any more.
    pub(super) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::PeerLost { .. } | Self::Evicted { .. } | Self::Aborted { .. } | Self::Outside { .. }
        )
    }
}

fn outside(what: Outside, rank: u32) -> String {
    match what {
        Outside::Lost => format!("rank {rank} of the world is lost"),
        Outside::Aborted => format!("rank {rank} of the world aborted"),
        Outside::Differs => format!("rank {rank} of the world posted another operation"),
    }
}
