//! The words through which ranks tell each other how far they are.
//!
//! Each rank has lines of its own in its own memory, and is the only one that writes them, but for the bell.
//! Words only grow, so that nothing is ever reset and no barrier is needed behind an operation:
//!
//! * An operation begins with an [`OpLine`] per rank. Everybody waits for everybody's line, so no rank is more
//!   than one operation ahead of another. [`SLOTS`] lines and slots take turns.
//! * Chunks that go through slots are counted over the life of the group. Chunk s lies in slot `s % SLOTS`,
//!   which is written only when whatever lay in it before has been read (`Progress`).
//!
//! Whoever waits too long announces whom it waits for and sleeps at its bell; whoever posts rings the bells of
//! those that wait for it.

// The model (`tests/shm_model.rs`) compiles this file with atomics of its own.
use super::atomics::{AtomicU32, AtomicU64, Ordering, fence};

/// Lines and slots that take turns.
pub(super) const SLOTS: u64 = 4;
/// Bytes that a line carries.
pub(super) const INLINE: usize = 64;

/// What an operation is, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(pub(super) u64);

/// Elements that a key can count.
pub(super) const COUNT_MAX: u64 = (1 << 44) - 1;

impl Key {
    pub(super) fn new(kind: u8, dtype: u8, how: u8, root: u8, count: u64) -> Self {
        let (kind, dtype, how) = (u64::from(kind & 15), u64::from(dtype & 15), u64::from(how & 15));
        Self(kind << 60 | dtype << 56 | how << 52 | u64::from(root) << 44 | count & COUNT_MAX)
    }

    /// Kind, element type, way of combining, root, count.
    pub(super) fn parts(self) -> (u8, u8, u8, u8, u64) {
        let k = self.0;
        ((k >> 60) as u8, (k >> 56 & 15) as u8, (k >> 52 & 15) as u8, (k >> 44) as u8, k & COUNT_MAX)
    }
}

/// A rank's entry into an operation. The first 64 bytes hold all that a small operation needs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct OpLine {
    /// Number of the operation, from 1; written last.
    pub(super) seq: AtomicU64,
    pub(super) key: AtomicU64,
    /// Bits of the rank's weight.
    pub(super) weight: AtomicU64,
    pub(super) payload: [AtomicU64; INLINE / 8],
    /// Digest of counts that differ among ranks.
    pub(super) shape: AtomicU64,
    /// Offsets in the arena.
    pub(super) input: AtomicU64,
    pub(super) output: AtomicU64,
}

/// How far a rank is, as counts of things it has finished.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Progress {
    /// Chunks whose contributions lie in its slots.
    pub(super) arrived: AtomicU64,
    /// Chunks that it has reduced: it reads the others' contributions to them no more, and its result is there.
    pub(super) reduced: AtomicU64,
    /// Chunks whose results it has copied.
    pub(super) consumed: AtomicU64,
    /// The last operation in the arena that it has finished.
    pub(super) done: AtomicU64,
    /// Moves now and then within an operation.
    pub(super) beats: AtomicU64,
    /// Why it gave up, if it did.
    pub(super) failed: AtomicU64,
}

/// One of the words of a rank.
pub(super) type Word = fn(&Progress) -> &AtomicU64;

/// Where a rank sleeps.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Bell {
    /// Changes whenever somebody rings; the futex word.
    pub(super) rung: AtomicU32,
    /// Whom the rank waits for, plus one.
    awaited: AtomicU32,
}

impl Bell {
    /// Says that the owner is about to sleep until `peer` posts. It has to look for the post once more, and may
    /// then sleep while the bell's word is what this returns.
    pub(super) fn announce(&self, peer: usize) -> u32 {
        let ticket = self.rung.load(Ordering::Acquire);
        self.awaited.store(peer as u32 + 1, Ordering::Relaxed);
        // With the fence in `post`: either the owner sees the post, or the poster sees the announcement.
        fence(Ordering::SeqCst);
        ticket
    }

    /// Says that the owner is awake.
    pub(super) fn retire(&self) {
        self.awaited.store(0, Ordering::Relaxed);
    }

    /// Rings if the owner waits for `poster`; whoever gets true must wake it.
    pub(super) fn ring(&self, poster: usize) -> bool {
        let asleep = self.awaited.load(Ordering::Relaxed) == poster as u32 + 1;
        if asleep {
            self.rung.fetch_add(1, Ordering::Release);
        }
        asleep
    }
}

/// Publishes everything written before, as `value` of a word. The bells have to be rung afterwards.
pub(super) fn post(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// Whether a word has come so far; what its owner wrote before is visible then.
pub(super) fn reached(word: &AtomicU64, value: u64) -> bool {
    word.load(Ordering::Acquire) >= value
}

/// A part of a step of the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Copies contributions to the others' shards into a slot.
    Contribute,
    /// Reduces the own shard, and puts the result into another slot.
    Reduce,
    /// Copies the others' results.
    Collect,
}

impl Act {
    /// The acts of an operation of so many steps, in order: neighbouring steps overlap, so that a rank that is
    /// a little ahead need not wait. The first one may go before everybody has begun.
    pub(super) fn of(steps: u64) -> impl Iterator<Item = (Self, u64)> {
        (0..steps + 2).flat_map(move |i| {
            let acts = [
                (Self::Contribute, Some(i)),
                (Self::Reduce, i.checked_sub(1)),
                (Self::Collect, i.checked_sub(2)),
            ];
            acts.into_iter().filter_map(move |(act, step)| Some((act, step.filter(|&s| s < steps)?)))
        })
    }

    /// What everybody else must have reached before the act on a chunk, with so many slots: pairs of word and
    /// count.
    pub(super) fn needs(self, chunk: u64, slots: u64) -> [(Word, u64); 2] {
        // The slot is free when everybody is done with the chunk that lay in it before.
        let before = (chunk + 1).saturating_sub(slots);
        match self {
            Self::Contribute => [(|p| &p.reduced, before), (|p| &p.reduced, 0)],
            Self::Reduce => [(|p| &p.arrived, chunk + 1), (|p| &p.consumed, before)],
            Self::Collect => [(|p| &p.reduced, chunk + 1), (|p| &p.reduced, 0)],
        }
    }

    /// The word that says that the act is done, as the count up to and including the chunk.
    pub(super) fn word(self) -> Word {
        match self {
            Self::Contribute => |p| &p.arrived,
            Self::Reduce => |p| &p.reduced,
            Self::Collect => |p| &p.consumed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_hold_what_they_were_made_of() {
        let key = Key::new(3, 5, 2, 200, COUNT_MAX);
        assert_eq!(key.parts(), (3, 5, 2, 200, COUNT_MAX));
        assert_eq!(size_of::<OpLine>(), 128);
        assert_eq!(
            std::mem::offset_of!(OpLine, payload),
            24,
            "small payloads share a cache line with the number"
        );
        assert_eq!((size_of::<Progress>(), size_of::<Bell>()), (128, 128));
    }
}
