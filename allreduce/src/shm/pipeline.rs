//! Large buffers outside of the arenas: piece by piece through slots.
//!
//! In step j each rank copies piece j of every other rank's shard into its slot of contributions, reduces piece
//! j of its own shard from the others' slots and its own buffer, and copies the others' results. The stages of
//! neighbouring steps overlap, so that a rank that is a little ahead need not wait.

use std::ops::Range;

use muster_kernels::reduce::{Number, Reduction, Stores, copy_raw};

use super::error::{ShmError, Stage};
use super::memory::{FLAT_SLOT, INCOMING_SLOT, RESULT_SLOT};
use super::protocol::{Act, SLOTS};
use super::small::with_pointers;
use super::{Entry, Operation, ShmGroup};

/// Bytes of a piece at most, and at least where there is enough to overlap.
const PIECE: Range<usize> = 16 << 10..64 << 10;

/// Outputs of more than this go past the caches, which slots and inputs fill.
const STREAMING: usize = 768 << 10;

/// Pieces of all shards, step by step.
struct Steps<'a> {
    shards: &'a [Range<usize>],
    /// Elements of a piece.
    piece: usize,
    steps: u64,
    /// Number of the first step over the life of the group.
    base: u64,
}

impl<'a> Steps<'a> {
    fn new(shards: &'a [Range<usize>], base: u64, size: usize, slot: usize) -> Self {
        let largest = shards.iter().map(|s| s.len()).max().unwrap_or(0);
        let bytes = (largest * size / SLOTS as usize).clamp(PIECE.start, PIECE.end).min(slot);
        let piece = bytes / 64 * 64 / size;
        Self { shards, piece, steps: largest.div_ceil(piece) as u64, base }
    }

    /// A piece of a rank's shard.
    fn piece(&self, rank: usize, step: u64) -> Range<usize> {
        let shard = &self.shards[rank];
        let start = shard.start.saturating_add(self.piece.saturating_mul(step as usize)).min(shard.end);
        start..(start + self.piece).min(shard.end)
    }
}

impl ShmGroup {
    /// Reduces every shard at its rank and, where `to_all`, gives everybody all results.
    ///
    /// # Safety
    /// `input` holds all shards, and `output` all of them or (unless `to_all`) the own one; nobody else uses
    /// them now, and they are the same or apart.
    pub(super) unsafe fn reduce_through_slots<I: Number, O: Number<Acc = I::Acc>>(
        &mut self,
        how: Operation,
        entry: Entry<'_>,
        (input, output): (*const I, *mut O),
        shards: &[Range<usize>],
        to_all: bool,
    ) -> Result<(), ShmError> {
        let n = self.local_ranks();
        let slot = (INCOMING_SLOT / (n - 1).max(1)).min(RESULT_SLOT);
        let steps = Steps::new(shards, self.chunks, size_of::<I>(), slot);
        // Before everybody has come: the first pieces can be ready by then.
        // SAFETY: the caller's promise.
        unsafe { self.contribute(&steps, 0, input)? };
        self.begin(&entry);
        if let Err(error) = self.agree(&entry) {
            // Those pieces belong to no operation; nobody looks before it has agreed to the next one.
            self.peers.advance(Act::Contribute.word(), steps.base);
            return Err(error);
        }
        self.chunks += steps.steps;
        let bytes = shards.last().map_or(0, |s| s.end) * size_of::<O>();
        let stores = Self::stores(bytes, input.cast::<O>() == output.cast_const(), STREAMING);
        let reduction = self.reduction(how, Stores::Cached);
        for (act, step) in Act::of(steps.steps).skip(1) {
            let chunk = steps.base + step;
            match act {
                // SAFETY: the caller's promise.
                Act::Contribute => unsafe { self.contribute(&steps, step, input)? },
                // SAFETY: the caller's promise.
                Act::Collect if to_all => unsafe { self.collect(&steps, step, output, stores)? },
                Act::Collect => self.peers.advance(Act::Collect.word(), chunk + 1),
                // SAFETY: the caller's promise.
                Act::Reduce => unsafe {
                    self.reduce_piece(&steps, step, &reduction, (input, output), to_all, stores)?
                },
            }
        }
        Ok(())
    }

    /// Reduces a piece of the own shard, also into a slot where everybody wants it.
    ///
    /// # Safety
    /// As for [`ShmGroup::reduce_through_slots`].
    unsafe fn reduce_piece<I: Number, O: Number<Acc = I::Acc>>(
        &self,
        steps: &Steps<'_>,
        step: u64,
        reduction: &Reduction<'_>,
        (input, output): (*const I, *mut O),
        to_all: bool,
        stores: Stores,
    ) -> Result<(), ShmError> {
        let (me, chunk) = (self.local_rank(), steps.base + step);
        let [arrived, free] = Act::Reduce.needs(chunk, SLOTS);
        self.peers.wait_all(arrived.0, arrived.1, Stage::Gather)?;
        let piece = steps.piece(me, step);
        let members = self.peers.members.iter().enumerate();
        let inputs = members.map(|(rank, memory)| {
            if rank == me {
                return input.wrapping_add(piece.start);
            }
            // A rank's slot has no piece of its own shard.
            let index = if me < rank { me } else { me - 1 };
            memory.incoming(chunk).cast::<I>().wrapping_add(index * steps.piece).cast_const()
        });
        let start = if to_all { piece.start } else { piece.start - steps.shards[me].start };
        let output = output.wrapping_add(start);
        if !to_all {
            // SAFETY: the own buffers by the caller's promise; the others' pieces have arrived and stay until
            // this rank says that it has reduced them.
            with_pointers(inputs, |inputs| unsafe { reduction.run_raw(inputs, &[output], piece.len()) });
        } else {
            self.peers.wait_all(free.0, free.1, Stage::Results)?;
            let slot = self.peers.own().result(chunk).cast::<O>();
            // SAFETY: as above, and everybody has copied what was in the slot of results.
            unsafe {
                if stores == Stores::Cached {
                    with_pointers(inputs, |inputs| reduction.run_raw(inputs, &[slot, output], piece.len()));
                } else {
                    with_pointers(inputs, |inputs| reduction.run_raw(inputs, &[slot], piece.len()));
                    copy_raw(slot.cast_const(), output, piece.len(), stores);
                }
            }
        }
        self.peers.advance(Act::Reduce.word(), chunk + 1);
        self.peers.beat()
    }

    /// Copies the own pieces of everybody else's shards into a slot.
    ///
    /// # Safety
    /// `input` holds all shards.
    unsafe fn contribute<I: Number>(
        &self,
        steps: &Steps<'_>,
        step: u64,
        input: *const I,
    ) -> Result<(), ShmError> {
        let (me, chunk) = (self.local_rank(), steps.base + step);
        let [free, _] = Act::Contribute.needs(chunk, SLOTS);
        self.peers.wait_all(free.0, free.1, Stage::Gather)?;
        let slot = self.peers.own().incoming(chunk).cast::<I>();
        for rank in self.peers.others() {
            let piece = steps.piece(rank, step);
            let index = if rank < me { rank } else { rank - 1 };
            // SAFETY: the caller's promise; n - 1 pieces fit the slot, and everybody has read what was in it.
            unsafe {
                let to = slot.add(index * steps.piece);
                copy_raw(input.add(piece.start), to, piece.len(), Stores::Cached);
            }
        }
        self.peers.advance(Act::Contribute.word(), chunk + 1);
        Ok(())
    }

    /// Copies everybody else's results of a step.
    ///
    /// # Safety
    /// `output` holds all shards.
    unsafe fn collect<O: Number>(
        &self,
        steps: &Steps<'_>,
        step: u64,
        output: *mut O,
        stores: Stores,
    ) -> Result<(), ShmError> {
        let chunk = steps.base + step;
        let [(word, count), _] = Act::Collect.needs(chunk, SLOTS);
        for rank in self.peers.others() {
            let memory = &self.peers.members[rank];
            self.peers.wait(rank, word(memory.progress()), count, Stage::Results)?;
            let piece = steps.piece(rank, step);
            // SAFETY: the caller's promise; the result stays until this rank says that it has copied it.
            unsafe {
                let from = memory.result(chunk).cast::<O>().cast_const();
                copy_raw(from, output.add(piece.start), piece.len(), stores);
            }
        }
        self.peers.advance(Act::Collect.word(), chunk + 1);
        Ok(())
    }

    /// Gives everybody every shard, in one round.
    ///
    /// # Safety
    /// `output` holds all shards, the own one filled, and nobody else uses it now. Each fits a slot.
    pub(super) unsafe fn gather_once<T: Number>(
        &mut self,
        entry: &Entry<'_>,
        shards: &[Range<usize>],
        output: *mut T,
    ) -> Result<(), ShmError> {
        let own = shards[self.local_rank()].clone();
        debug_assert!(own.len() * size_of::<T>() <= FLAT_SLOT);
        let operation = self.peers.operation + 1;
        let slot = self.peers.own().flat(operation).cast::<T>();
        // SAFETY: the caller's promise; the slot is free, see `one_shot`.
        unsafe { copy_raw(output.add(own.start).cast_const(), slot, own.len(), Stores::Cached) };
        self.begin(entry);
        self.agree(entry)?;
        for rank in self.peers.others() {
            let from = self.peers.members[rank].flat(operation).cast::<T>().cast_const();
            // SAFETY: the caller's promise; everybody has filled its slot.
            unsafe { copy_raw(from, output.add(shards[rank].start), shards[rank].len(), Stores::Cached) };
        }
        Ok(())
    }

    /// Gives everybody every shard, piece by piece.
    ///
    /// # Safety
    /// `output` holds all shards, the own one filled, and nobody else uses it now.
    pub(super) unsafe fn gather_through_slots<T: Number>(
        &mut self,
        entry: &Entry<'_>,
        shards: &[Range<usize>],
        output: *mut T,
    ) -> Result<(), ShmError> {
        let me = self.local_rank();
        let steps = Steps::new(shards, self.chunks, size_of::<T>(), RESULT_SLOT);
        self.begin(entry);
        self.agree(entry)?;
        self.chunks += steps.steps;
        for step in 0..steps.steps + 1 {
            if step < steps.steps {
                let chunk = steps.base + step;
                let [_, free] = Act::Reduce.needs(chunk, SLOTS);
                self.peers.wait_all(free.0, free.1, Stage::Results)?;
                let (piece, slot) = (steps.piece(me, step), self.peers.own().result(chunk).cast::<T>());
                // SAFETY: the caller's promise; the slot's last content was copied by everybody.
                unsafe {
                    copy_raw(output.add(piece.start).cast_const(), slot, piece.len(), Stores::Cached);
                }
                self.peers.advance(Act::Contribute.word(), chunk + 1);
                self.peers.advance(Act::Reduce.word(), chunk + 1);
                self.peers.beat()?;
            }
            if let Some(step) = step.checked_sub(1) {
                // SAFETY: the caller's promise.
                unsafe { self.collect(&steps, step, output, Stores::Cached)? };
            }
        }
        Ok(())
    }
}
