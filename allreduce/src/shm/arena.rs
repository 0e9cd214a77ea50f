//! Operations on what lies in the arenas: no copies, two rounds of flags.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bytemuck::Pod;
use muster_kernels::reduce::{Number, Stores, copy_raw};

use super::collect::{even, total};
use super::error::{ShmError, Stage};
use super::memory::ARENA_ALIGN;
use super::small::with_pointers;
use super::{Entry, Key, Kind, Operation, Reduce, ShmGroup, check, check_count};

/// Bytes of a chunk, behind which a rank shows that it works and looks whether it should.
const CHUNK: usize = 256 << 10;
/// Bytes up to which one round of flags and a copy beat two rounds of flags.
const SMALL: usize = 2 << 10;

impl ShmGroup {
    /// Bytes of this rank's arena.
    pub fn arena_bytes(&self) -> usize {
        self.options.arena_bytes
    }

    /// Elements of this rank's arena, from a byte on.
    ///
    /// # Errors
    /// If the range isn't inside the arena, or `offset` is no multiple of [`ARENA_ALIGN`].
    pub fn arena<T: Pod>(&self, offset: usize, count: usize) -> Result<&[T], ShmError> {
        self.undivided()?;
        let at = self.place::<T>(offset, count)?;
        // SAFETY: inside the arena, aligned; others write it only during operations, which borrow the group
        // exclusively.
        Ok(unsafe { std::slice::from_raw_parts(at, count) })
    }

    /// As [`ShmGroup::arena`], to write.
    pub fn arena_mut<T: Pod>(&mut self, offset: usize, count: usize) -> Result<&mut [T], ShmError> {
        self.undivided()?;
        let at = self.place::<T>(offset, count)?;
        // SAFETY: as above, and exclusive.
        Ok(unsafe { std::slice::from_raw_parts_mut(at, count) })
    }

    fn place<T>(&self, offset: usize, count: usize) -> Result<*mut T, ShmError> {
        let (arena, config) = (self.options.arena_bytes, |name, problem| ShmError::Config { name, problem });
        if !offset.is_multiple_of(ARENA_ALIGN) {
            return Err(config("offset", format!("{offset} is no multiple of {ARENA_ALIGN}")));
        }
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > arena) {
            let problem = format!("{count} elements at byte {offset} don't fit an arena of {arena} bytes");
            return Err(config("range", problem));
        }
        // SAFETY: inside the arena.
        Ok(unsafe { self.peers.own().arena().add(offset).cast() })
    }

    /// Checks an input and an output of one operation.
    fn places<T>(&self, input: (usize, usize), output: (usize, usize)) -> Result<(), ShmError> {
        self.place::<T>(input.0, input.1)?;
        self.place::<T>(output.0, output.1)?;
        let bytes = |(at, count): (usize, usize)| at..at + count * size_of::<T>();
        let (i, o) = (bytes(input), bytes(output));
        if i.start < o.end && o.start < i.end && i.start != o.start {
            let problem = format!("{o:?} overlaps the input {i:?} without being it");
            return Err(ShmError::Config { name: "output", problem });
        }
        Ok(())
    }

    /// Reduces `count` elements of all arenas into all arenas. `input` and `output` are offsets in bytes, of
    /// this rank; equal ones reduce in place.
    ///
    /// # Errors
    /// See [`ShmError`]. Unless in place, the input is intact whatever happens.
    pub fn all_reduce_arena<T: Number>(
        &mut self,
        how: Reduce,
        input: usize,
        output: usize,
        count: usize,
    ) -> Result<(), ShmError> {
        self.undivided()?;
        self.all_reduce_placed::<T>(how, input, output, count)
    }

    /// As [`ShmGroup::all_reduce_arena`], for whoever owns these places.
    pub(super) fn all_reduce_placed<T: Number>(
        &mut self,
        how: Reduce,
        input: usize,
        output: usize,
        count: usize,
    ) -> Result<(), ShmError> {
        check(how, T::TYPE, count)?;
        self.places::<T>((input, count), (output, count))?;
        let key = Key::new(Kind::ArenaAllReduce as u8, T::TYPE as u8, how.operation as u8, 0, count as u64);
        let entry = Entry { key, shape: 0, weight: how.weight, input, output, payload: &[] };
        let bytes = count * size_of::<T>();
        if bytes <= self.options.one_shot_bytes.min(SMALL) {
            let own = self.peers.own().arena();
            // SAFETY: `places` has checked both; they are equal or apart.
            return self.operate(|group| unsafe {
                let both = (own.add(input).cast::<T>().cast_const(), own.add(output).cast::<T>());
                group.small(how.operation, entry, both, count)
            });
        }
        self.operate(|group| {
            group.begin(&entry);
            group.agree(&entry)?;
            let outputs = group.offsets(|line| &line.output);
            let mine = even::<T>(count, group.local_ranks(), group.local_rank());
            let stores = Self::stores(bytes, input == output, group.last_level_bytes / 2);
            group.reduce_from_arenas::<T, T>(how.operation, 0, mine, &outputs, stores)?;
            group.all_done()
        })
    }

    /// Reduces this rank's shard of all arenas into its own arena: `counts[r]` elements for rank r, in rank
    /// order.
    ///
    /// The output holds `counts[local_rank]` elements, of another type with the same accumulator if the caller
    /// wants partial sums.
    ///
    /// # Errors
    /// As for [`ShmGroup::all_reduce_arena`].
    pub fn reduce_scatter_arena<I: Number, O: Number<Acc = I::Acc>>(
        &mut self,
        how: Reduce,
        input: usize,
        output: usize,
        counts: &[usize],
    ) -> Result<(), ShmError> {
        self.undivided()?;
        let (count, shape) = total(counts, self.local_ranks())?;
        check(how, I::TYPE, count)?;
        let me = self.local_rank();
        self.place::<I>(input, count)?;
        self.place::<O>(output, counts[me])?;
        let (i, o) = (input..input + count * size_of::<I>(), output..output + counts[me] * size_of::<O>());
        if i.start < o.end && o.start < i.end {
            return Err(ShmError::Config {
                name: "output",
                problem: format!("{o:?} overlaps the input {i:?}"),
            });
        }
        let kind = Kind::ArenaReduceScatter as u8;
        let key = Key::new(kind, I::TYPE as u8, how.operation as u8, O::TYPE as u8, count as u64);
        let entry = Entry { key, shape, weight: how.weight, input, output, payload: &[] };
        self.operate(|group| {
            group.begin(&entry);
            group.agree(&entry)?;
            let start = counts[..me].iter().sum::<usize>();
            let own = [(me, output)];
            let bytes = counts[me] * size_of::<O>();
            let stores = Self::stores(bytes, false, group.last_level_bytes / 2);
            group.reduce_from_arenas::<I, O>(
                how.operation,
                start,
                start..start + counts[me],
                &own,
                stores,
            )?;
            group.all_done()
        })
    }

    /// Copies every rank's shard into all arenas: `counts[r]` elements from rank r, in rank order.
    ///
    /// `input` is where this rank's shard lies, which may be its place in the output.
    ///
    /// # Errors
    /// As for [`ShmGroup::all_reduce_arena`].
    pub fn all_gather_arena<T: Number>(
        &mut self,
        input: usize,
        output: usize,
        counts: &[usize],
    ) -> Result<(), ShmError> {
        self.undivided()?;
        self.gather_placed::<T>((Kind::ArenaAllGather, 0), input, output, counts)
    }

    /// Copies `count` elements of the arena of rank `root` into the same place of all others.
    ///
    /// # Errors
    /// As for [`ShmGroup::all_reduce_arena`].
    pub fn broadcast_arena<T: Number>(
        &mut self,
        root: usize,
        at: usize,
        count: usize,
    ) -> Result<(), ShmError> {
        let counts = self.only(root, count)?;
        self.undivided()?;
        self.gather_placed::<T>((Kind::ArenaBroadcast, root), at, at, &counts)
    }

    /// As [`ShmGroup::all_gather_arena`], for whoever owns these places.
    pub(super) fn gather_placed<T: Number>(
        &mut self,
        (kind, root): (Kind, usize),
        input: usize,
        output: usize,
        counts: &[usize],
    ) -> Result<(), ShmError> {
        let (count, shape) = total(counts, self.local_ranks())?;
        check_count(count)?;
        let me = self.local_rank();
        let from = self.place::<T>(input, counts[me])?.cast_const();
        self.place::<T>(output, count)?;
        let start = counts[..me].iter().sum::<usize>();
        let (size, own) = (size_of::<T>(), output + start * size_of::<T>());
        let (i, o) = (input..input + counts[me] * size, output..output + count * size);
        if i.start < o.end && o.start < i.end && input != own {
            let problem = format!("{i:?} overlaps the output {o:?} and is not its place there");
            return Err(ShmError::Config { name: "input", problem });
        }
        let key = Key::new(kind as u8, T::TYPE as u8, 0, root as u8, count as u64);
        let entry = Entry { key, shape, weight: 1.0, input, output, payload: &[] };
        self.operate(|group| {
            group.begin(&entry);
            group.agree(&entry)?;
            let outputs = group.offsets(|line| &line.output);
            let chunk = CHUNK / size;
            let stores = Self::stores(count * size, false, group.last_level_bytes / 2);
            for at in (0..counts[me]).step_by(chunk) {
                let len = chunk.min(counts[me] - at);
                for &(rank, offset) in &outputs {
                    let to = group.at::<T>(rank, offset, start + at);
                    if (rank, input) != (me, own) {
                        // SAFETY: inside both arenas; everybody waits, so only this rank writes its shard, and
                        // it is apart from every other.
                        unsafe { copy_raw(from.add(at), to, len, stores) };
                    }
                }
                group.peers.beat()?;
            }
            group.all_done()
        })
    }

    /// Where everybody's arena has the input or output, by rank.
    fn offsets(
        &self,
        word: fn(&super::protocol::OpLine) -> &std::sync::atomic::AtomicU64,
    ) -> Vec<(usize, usize)> {
        let operation = self.peers.operation;
        let offset =
            |memory: &super::memory::Memory| word(memory.line(operation)).load(Ordering::Relaxed) as usize;
        self.peers.members.iter().map(|memory| offset(memory)).enumerate().collect()
    }

    /// An element in somebody's arena.
    fn at<T>(&self, rank: usize, offset: usize, element: usize) -> *mut T {
        self.peers.members[rank].arena().wrapping_add(offset).cast::<T>().wrapping_add(element)
    }

    /// Reduces a range of all inputs into the given outputs, where it begins at element `range.start - base`.
    pub(super) fn reduce_from_arenas<I: Number, O: Number<Acc = I::Acc>>(
        &self,
        how: Operation,
        base: usize,
        range: Range<usize>,
        outputs: &[(usize, usize)],
        stores: Stores,
    ) -> Result<(), ShmError> {
        let inputs = self.offsets(|line| &line.input);
        let reduction = self.reduction(how, stores);
        let chunk = CHUNK / size_of::<I>();
        for at in range.clone().step_by(chunk) {
            let len = chunk.min(range.end - at);
            let ins = inputs.iter().map(|&(rank, offset)| self.at::<I>(rank, offset, at).cast_const());
            let outs = outputs.iter().map(|&(rank, offset)| self.at::<O>(rank, offset, at - base));
            with_pointers(ins, |ins| {
                // SAFETY: ranks have checked their own ranges, and all have begun the same operation. Of every
                // input and output only this rank touches this range until everybody is done.
                with_pointers(outs, |outs| unsafe { reduction.run_raw(ins, outs, len) });
            });
            self.peers.beat()?;
        }
        Ok(())
    }

    /// Ends an operation in the arena: nobody reads or writes the arena of another any more.
    pub(super) fn all_done(&self) -> Result<(), ShmError> {
        let operation = self.peers.operation;
        self.peers.advance(|p| &p.done, operation);
        self.peers.wait_all(|p| &p.done, operation, Stage::Results)
    }
}
