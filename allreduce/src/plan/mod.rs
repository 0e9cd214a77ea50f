//! Plans: which elements go from which rank to which, and what is computed from them. Pure; no data, no sockets.
//!
//! A plan of one rank is a graph of tasks. Both ends of each transfer derive it from the same numbers, so the n-th
//! message from a to b is the same to both, and a message needs no more address than n. All flow control is in the
//! graph: a message that needs room at its receiver waits for one that proves that there is.
//!
//! Invariants (checked by tests for every algorithm and world size)
//! * Sends of a to b match receives of b from a in count, order, length and kind.
//! * The graph has no cycle, neither within a rank nor across ranks.
//! * A rank holds at most twice [`Tuning::window`] unreduced segments of each peer, in algorithms for large data.
//! * Every element of the output is written exactly once.

mod build;
mod cost;
mod direct;
mod doubling;
mod hierarchy;
mod one_shot;
mod ring;
mod select;
mod shape;
mod spread;
#[cfg(test)]
mod tests;

use muster_proto::Rank;

pub use select::{Choice, select};
pub use shape::{Group, Shards};

use build::Builder;

/// An algorithm of a collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// Everybody sends everything to everybody and reduces alone; with two ranks this is the direct exchange.
    OneShot = 1,
    /// Pairs at distance 1, 2, 4, .. exchange partial sums.
    Doubling,
    /// One owner per shard gets all contributions, reduces them and sends the result to all.
    Direct,
    /// Partial sums go around; the order of summation depends on the shard.
    Ring,
    /// Direct within each node, then among the counterparts of the nodes, then back.
    Hierarchical,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 5] = [Self::OneShot, Self::Doubling, Self::Direct, Self::Ring, Self::Hierarchical];

    /// The name in messages and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneShot => "one-shot",
            Self::Doubling => "doubling",
            Self::Direct => "direct",
            Self::Ring => "ring",
            Self::Hierarchical => "hierarchical",
        }
    }
}

/// Sizes that every rank must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Largest payload of one message, in bytes; a multiple of 64.
    pub segment_bytes: u64,
    /// Messages that one sender may have unreduced at one receiver.
    pub window: u64,
}

impl Default for Tuning {
    /// 256 KiB, four of them.
    fn default() -> Self {
        Self { segment_bytes: 256 << 10, window: 4 }
    }
}

/// What an operation does with its elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Everybody gets the reduction of everybody's `count` elements.
    AllReduce {
        /// Elements of input and output.
        count: u64,
        /// Whether results overwrite inputs.
        in_place: bool,
    },
    /// Each rank gets its shard of the reduction.
    ReduceScatter {
        /// Elements of each rank's shard; the input is as long as all together.
        counts: Vec<u64>,
    },
    /// Everybody gets the inputs of all, in rank order.
    AllGather {
        /// Elements of each rank's input.
        counts: Vec<u64>,
    },
    /// Everybody gets the root's elements.
    Broadcast {
        /// Elements.
        count: u64,
        /// Position of the root in the group.
        root: usize,
    },
    /// The second rank of a group of two gets the first one's elements.
    Transfer {
        /// Elements.
        count: u64,
    },
}

/// Everything that a plan is a function of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spec {
    /// What to do.
    pub kind: Kind,
    /// How.
    pub algorithm: Algorithm,
    /// Who takes part, in canonical order.
    pub group: Group,
    /// My position in the group.
    pub me: usize,
    /// Bytes of an element as it is sent.
    pub element_bytes: u64,
    /// Bytes of a partial sum as it is sent.
    pub partial_bytes: u64,
    /// Segment size and window.
    pub tuning: Tuning,
}

/// Where elements lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// In the input, from this element on.
    Input(u64),
    /// In the output, from this element on.
    Output(u64),
    /// In a temporary buffer of their own.
    Temp(u32),
}

/// What elements stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Repr {
    /// Contributions or results, in the type of the wire.
    Data,
    /// Weighted partial sums, in the accumulator type.
    Partial,
}

/// One message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// Index into [`Plan::peers`].
    pub peer: u32,
    /// Number of the message among those of this direction.
    pub index: u32,
    /// Source or destination.
    pub place: Place,
    pub repr: Repr,
    /// Elements; 0 for a message that only says that something happened.
    pub len: u64,
    /// Ready messages to one peer go in this order.
    pub order: u32,
}

/// One reduction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reduce {
    /// Contributions in canonical order.
    pub parts: Vec<(Place, Repr)>,
    /// How many parts each node has.
    pub nodes: Vec<usize>,
    /// A temp keeps a partial sum; the output gets the final result, divided and rounded.
    pub out: Place,
    pub len: u64,
}

/// A node of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Task {
    Send(Transfer),
    Recv(Transfer),
    Reduce(Reduce),
    /// Copies my own shard from the input to the output.
    Copy {
        from: u64,
        to: u64,
        len: u64,
    },
}

/// Index into [`Plan::tasks`].
pub(crate) type TaskId = u32;

/// A peer and the messages from and to it, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerPlan {
    pub rank: Rank,
    pub sends: Vec<TaskId>,
    pub recvs: Vec<TaskId>,
}

/// The part of one rank in one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub(crate) tasks: Vec<Task>,
    /// How many tasks each one waits for.
    pub(crate) waits: Vec<u32>,
    /// Which tasks wait for each one.
    pub(crate) next: Lists,
    /// How many tasks each temp must outlive.
    pub(crate) temp_users: Vec<u32>,
    /// Which temps each task has used when it is done.
    pub(crate) releases: Lists,
    pub(crate) peers: Vec<PeerPlan>,
    /// Elements of the input and the output.
    pub(crate) input_len: u64,
    pub(crate) output_len: u64,
}

/// Lists of numbers, one after the other in one allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lists {
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    /// Sorts pairs (list, item) into `count` lists; the order within a list is kept.
    fn new(count: usize, pairs: &[(u32, u32)]) -> Self {
        let mut starts = vec![0_u32; count + 1];
        for &(list, _) in pairs {
            starts[list as usize + 1] += 1;
        }
        for i in 0..count {
            starts[i + 1] += starts[i];
        }
        let mut fill = starts.clone();
        let mut items = vec![0; pairs.len()];
        for &(list, item) in pairs {
            items[fill[list as usize] as usize] = item;
            fill[list as usize] += 1;
        }
        Self { starts, items }
    }

    pub(crate) fn of(&self, list: u32) -> &[u32] {
        &self.items[self.starts[list as usize] as usize..self.starts[list as usize + 1] as usize]
    }
}

impl Plan {
    /// Works out a rank's part.
    ///
    /// The caller checks the numbers: counts as many as ranks, root and `me` inside the group, a hierarchical
    /// group with equal nodes.
    pub fn new(spec: &Spec) -> Self {
        let mut b = Builder::new(spec);
        match (&spec.kind, spec.algorithm) {
            (_, _) if spec.group.len() == 1 => b.alone(&spec.kind),
            (Kind::AllReduce { count, in_place }, Algorithm::OneShot) => {
                one_shot::all_reduce(&mut b, *count, *in_place)
            }
            (Kind::AllReduce { count, .. }, Algorithm::Doubling) => doubling::all_reduce(&mut b, *count),
            (Kind::AllReduce { count, .. }, Algorithm::Direct) => direct::all_reduce(&mut b, *count),
            (Kind::AllReduce { count, .. }, Algorithm::Ring) => ring::all_reduce(&mut b, *count),
            (Kind::AllReduce { count, .. }, Algorithm::Hierarchical) => hierarchy::all_reduce(&mut b, *count),
            (Kind::ReduceScatter { counts }, Algorithm::Ring) => ring::reduce_scatter(&mut b, counts),
            (Kind::ReduceScatter { counts }, _) => direct::reduce_scatter(&mut b, counts),
            (Kind::AllGather { counts }, Algorithm::Ring) => ring::all_gather(&mut b, counts),
            (Kind::AllGather { counts }, _) => direct::all_gather(&mut b, counts),
            (Kind::Broadcast { count, root }, Algorithm::Direct) => spread::scattered(&mut b, *count, *root),
            (Kind::Broadcast { count, root }, _) => spread::tree(&mut b, *count, *root),
            (Kind::Transfer { count }, _) => spread::transfer(&mut b, *count),
        }
        b.finish()
    }

    /// The ranks that this rank exchanges messages with.
    pub fn peers(&self) -> impl Iterator<Item = Rank> + '_ {
        self.peers.iter().map(|p| p.rank)
    }

    /// Elements that this rank sends to each peer, with how many messages.
    pub fn sent(&self) -> impl Iterator<Item = (Rank, u64, usize)> + '_ {
        self.peers.iter().map(|p| {
            let elements = p.sends.iter().map(|&t| match &self.tasks[t as usize] {
                Task::Send(transfer) => transfer.len,
                _ => 0,
            });
            (p.rank, elements.sum(), p.sends.len())
        })
    }
}
