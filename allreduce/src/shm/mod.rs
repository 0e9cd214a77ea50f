//! Collective operations among the ranks of one node, through shared memory.
//!
//! Each rank owns a sealed memfd with its flag lines, some slots and an *arena*, which the others map too. What
//! lies in the arenas (gradients, ideally) is reduced where it lies: each rank reads its part of all inputs
//! once and writes the results to everybody. Other buffers go through slots, chunk by chunk; small ones through
//! a single slot, and up to 64 bytes in the flag line itself.
//!
//! Invariants
//! * Sums are evaluated in the canonical order ([`crate::order`]) and rounded once, whatever the path: the bits
//!   are those of every other algorithm but the ring, on every rank.
//! * No rank returns from an operation before every rank has begun it, and all have begun the same one;
//!   otherwise every rank gets [`ShmError::Mismatch`], and nothing has moved.
//! * Inputs are intact until the operation commits, unless the output is the input: an operation in place that
//!   fails may have overwritten a part of it.
//! * An operation ends with the same outcome on every rank that lives: it needs the same posts of a lost rank
//!   everywhere. After a loss the group is unusable; the next generation makes a new one. A rank that was
//!   stopped and goes on may then still write into *outputs* of the old group, and into nothing else.
//! * Waiting costs no CPU beyond some microseconds, and none at all where ranks outnumber cores. An idle group
//!   has one thread, asleep in `poll`.
//!
//! Nothing here knows of other nodes; no `/dev/shm`, no ptrace, no names in the file system.

mod abort;
mod arena;
mod atomics {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
mod collect;
mod connect;
mod error;
mod failure;
mod memory;
mod options;
mod pipeline;
mod protocol;
mod slice;
mod small;
mod start;
#[cfg(test)]
mod tests;
mod wait;
mod watch;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use muster_kernels::isa::Isa;
use muster_kernels::reduce::{Reduction, Stores, Tree};

pub use abort::AbortHandle;
pub use error::{Cause, Outside, ShmError, Stage};
pub use memory::{ARENA_ALIGN, memory_name};
pub use options::{Reduce, ShmOptions};
pub use slice::ArenaSlice;
pub(crate) use slice::arena_bytes;

use crate::element::{DataType, Operation};
use crate::order;
use options::{check, check_count};
use protocol::{INLINE, Key, reached};
use wait::Peers;
use watch::Watch;

/// Ranks of one node at most.
pub const RANKS_MAX: usize = 64;

/// What a rank says of the operation that it begins.
#[derive(Debug, Clone, Copy)]
struct Entry<'a> {
    key: Key,
    shape: u64,
    weight: f32,
    input: usize,
    output: usize,
    payload: &'a [u8],
}

impl Entry<'_> {
    fn new(kind: Kind, dtype: DataType, count: usize) -> Self {
        let key = Key::new(kind as u8, dtype as u8, 0, 0, count as u64);
        Self { key, shape: 0, weight: 1.0, input: 0, output: 0, payload: &[] }
    }
}

/// What operations there are; the number is part of what ranks compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Barrier,
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    ArenaAllReduce,
    ArenaReduceScatter,
    ArenaAllGather,
    ArenaBroadcast,
    ShardsReduce,
}

const KINDS: [&str; 10] = [
    "barrier",
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "broadcast",
    "all-reduce in the arena",
    "reduce-scatter in the arena",
    "all-gather in the arena",
    "broadcast in the arena",
    "reduction of shards in the arena",
];

/// The ranks of one node, joined. See the module for what holds.
///
/// Operations block the calling thread; every rank calls the same ones in the same order.
#[derive(Debug)]
pub struct ShmGroup {
    peers: Peers,
    options: ShmOptions,
    isa: Isa,
    /// Order in which everybody takes part.
    everybody: Tree,
    /// Weights of the present operation, and their order where somebody takes no part.
    weights: Vec<f32>,
    some: Option<Tree>,
    /// Chunks that went through the slots.
    chunks: u64,
    /// What else ranks compare when they begin an operation.
    tag: u64,
    /// The arena belongs to the owners of its slices.
    divided: bool,
    last: Option<Late>,
    /// Small payloads of all ranks.
    payloads: Vec<[u64; INLINE / 8]>,
    last_level_bytes: usize,
    failed: Option<ShmError>,
    _watch: Option<Watch>,
}

/// The rank that began an operation last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Late {
    /// Which one.
    pub local_rank: usize,
    /// How long this rank waited for it.
    pub waited: Duration,
}

impl ShmGroup {
    /// This rank among those of the node.
    pub fn local_rank(&self) -> usize {
        self.peers.me
    }

    /// Ranks of the node.
    pub fn local_ranks(&self) -> usize {
        self.peers.ranks()
    }

    /// Operations begun so far.
    pub fn operations(&self) -> u64 {
        self.peers.operation
    }

    /// A handle that ends operations.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(self.peers.local.clone())
    }

    /// Ranks whose processes are gone, known without beginning an operation.
    pub fn lost(&self) -> impl Iterator<Item = usize> {
        let lost = &self.peers.local.lost;
        (0..lost.len()).filter(|&rank| lost[rank].load(Ordering::Acquire))
    }

    /// Sets a number, a digest of the operation's name for example, in which the next operations must agree too.
    pub fn set_tag(&mut self, tag: u64) {
        self.tag = tag;
    }

    /// The rank that began the last operation last, if this rank had to wait for one.
    pub fn last(&self) -> Option<Late> {
        self.last
    }

    /// Shows the others that this rank lives although it begins no operation, and finds out whether they do.
    ///
    /// # Errors
    /// [`ShmError::PeerLost`] and its like: what the next operation would find.
    pub fn pulse(&mut self) -> Result<(), ShmError> {
        self.operate(|group| group.peers.look())
    }

    /// Runs an operation and makes its failure that of the group.
    fn operate<R>(&mut self, run: impl FnOnce(&mut Self) -> Result<R, ShmError>) -> Result<R, ShmError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.peers.beat().and_then(|()| run(self)).inspect_err(|error| {
            if error.is_final() {
                self.peers.tell(error);
                self.failed = Some(error.clone());
            }
        })
    }

    /// Tells everybody that this rank begins its next operation.
    fn begin(&mut self, entry: &Entry<'_>) {
        self.peers.operation += 1;
        let operation = self.peers.operation;
        let line = self.peers.own().line(operation);
        let relaxed = Ordering::Relaxed;
        line.key.store(entry.key.0, relaxed);
        line.weight.store(u64::from(entry.weight.to_bits()), relaxed);
        line.shape.store(entry.shape ^ self.tag, relaxed);
        line.input.store(entry.input as u64, relaxed);
        line.output.store(entry.output as u64, relaxed);
        for (word, bytes) in line.payload.iter().zip(entry.payload.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(whole), relaxed);
        }
        self.peers.post(&line.seq, operation);
    }

    /// Waits until everybody has begun, and compares what they have begun. Leaves the weights.
    fn agree(&mut self, entry: &Entry<'_>) -> Result<(), ShmError> {
        let peers = &self.peers;
        let operation = peers.operation;
        let mut alike = entry.weight == 1.0;
        let mut other = None;
        let (mut begun, mut last) = (None, None);
        for peer in peers.others() {
            let line = peers.members[peer].line(operation);
            if !reached(&line.seq, operation) {
                begun.get_or_insert_with(Instant::now);
                last = Some(peer);
                peers.wait(peer, &line.seq, operation, Stage::Begin)?;
            }
            let relaxed = Ordering::Relaxed;
            let (key, shape) = (line.key.load(relaxed), line.shape.load(relaxed));
            if key != entry.key.0 || shape != entry.shape ^ self.tag {
                other = other.or(Some((peer, Key(key))));
            }
            let weight = f32::from_bits(line.weight.load(relaxed) as u32);
            alike &= weight == 1.0;
            self.weights[peer] = weight;
        }
        self.weights[peers.me] = entry.weight;
        self.last = last.zip(begun).map(|(local_rank, at)| Late { local_rank, waited: at.elapsed() });
        if let Some((peer, key)) = other {
            return Err(self.mismatch(peer, entry.key, key));
        }
        self.some = None;
        if !alike {
            let weights = &self.weights;
            self.some = Some(Tree::new(&[weights.len()], |rank| weights[rank] != 0.0));
        }
        Ok(())
    }

    fn mismatch(&self, peer: usize, mine: Key, theirs: Key) -> ShmError {
        let text = |key: Key| {
            let (kind, dtype, how, root, count) = key.parts();
            let kind = KINDS.get(usize::from(kind)).unwrap_or(&"an unknown operation");
            let dtype = DataType::ALL.get(usize::from(dtype)).map_or("?", |t| t.name());
            let how = Operation::ALL.get(usize::from(how)).map_or("?", |o| o.name());
            format!("{kind}({how}) of {count} {dtype} from {root}")
        };
        let (mut mine, mut theirs) = (text(mine), text(theirs));
        if mine == theirs {
            mine.push_str(" with a name or counts of its own");
            theirs.push_str(" with others");
        }
        ShmError::Mismatch { me: self.peers.me, peer, operation: self.peers.operation, mine, theirs }
    }

    /// The arithmetic of the operation that has been agreed upon.
    fn reduction(&self, how: Operation, stores: Stores) -> Reduction<'_> {
        let n = self.weights.len();
        let divisor = (how == Operation::Mean).then(|| match self.some {
            None => n as f32,
            Some(_) => order::total_weight(&[n], &self.weights),
        });
        Reduction {
            isa: self.isa,
            op: how.reduction(),
            tree: self.some.as_ref().unwrap_or(&self.everybody),
            weights: &self.weights,
            divisor: divisor.filter(|&d| d != 0.0),
            stores,
        }
    }

    /// Stores for outputs of so many bytes, of which more than `most` go past the caches.
    fn stores(bytes: usize, in_place: bool, most: usize) -> Stores {
        // What is overwritten in place is in the caches already.
        if !in_place && bytes > most { Stores::Streaming } else { Stores::Cached }
    }
}
