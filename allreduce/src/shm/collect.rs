//! Operations on any buffers: which path each takes.

use std::ops::Range;

use muster_kernels::reduce::Number;

use super::error::ShmError;
use super::memory::FLAT_SLOT;
use super::protocol::INLINE;
use super::{ARENA_ALIGN, Entry, Key, Kind, Operation, Reduce, ShmGroup, check, check_count};

impl ShmGroup {
    /// Waits until every rank has called it.
    ///
    /// # Errors
    /// [`ShmError::PeerLost`] and its like.
    pub fn barrier(&mut self) -> Result<(), ShmError> {
        let entry = Entry::new(Kind::Barrier, crate::DataType::I64, 0);
        self.operate(|group| {
            group.begin(&entry);
            group.agree(&entry)
        })
    }

    /// Reduces equal buffers of all ranks; every rank gets the result.
    ///
    /// # Errors
    /// See [`ShmError`]. The input is intact whatever happens.
    pub fn all_reduce<T: Number>(
        &mut self,
        how: Reduce,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), ShmError> {
        same_length("the output", input.len(), output.len())?;
        // SAFETY: two slices of this length, one of them exclusive, so they are apart.
        unsafe { self.all_reduce_raw(how, (input.as_ptr(), output.as_mut_ptr()), input.len()) }
    }

    /// As [`ShmGroup::all_reduce`], in place. Above [`super::ShmOptions::one_shot_bytes`] an operation that
    /// fails may have overwritten a part of the buffer.
    ///
    /// # Errors
    /// See [`ShmError`].
    pub fn all_reduce_in_place<T: Number>(&mut self, how: Reduce, buffer: &mut [T]) -> Result<(), ShmError> {
        let at = buffer.as_mut_ptr();
        // SAFETY: one exclusive slice as input and output.
        unsafe { self.all_reduce_raw(how, (at.cast_const(), at), buffer.len()) }
    }

    /// # Safety
    /// Both hold `count` elements that nobody else uses; they are the same or apart.
    unsafe fn all_reduce_raw<T: Number>(
        &mut self,
        how: Reduce,
        both: (*const T, *mut T),
        count: usize,
    ) -> Result<(), ShmError> {
        check(how, T::TYPE, count)?;
        if count * size_of::<T>() <= self.options.one_shot_bytes {
            let key = Key::new(Kind::AllReduce as u8, T::TYPE as u8, how.operation as u8, 0, count as u64);
            let entry = Entry { weight: how.weight, key, ..Entry::new(Kind::AllReduce, T::TYPE, count) };
            // SAFETY: the caller's promise.
            return self.operate(|group| unsafe { group.small(how.operation, entry, both, count) });
        }
        let n = self.local_ranks();
        let shards: Vec<_> = (0..n).map(|rank| even::<T>(count, n, rank)).collect();
        let key = Key::new(Kind::AllReduce as u8, T::TYPE as u8, how.operation as u8, 0, count as u64);
        let entry = Entry { weight: how.weight, key, ..Entry::new(Kind::AllReduce, T::TYPE, count) };
        // SAFETY: the caller's promise.
        self.operate(|group| unsafe { group.reduce_through_slots(how.operation, entry, both, &shards, true) })
    }

    /// A message of at most [`super::ShmOptions::one_shot_bytes`].
    ///
    /// # Safety
    /// As for [`ShmGroup::all_reduce_raw`].
    pub(super) unsafe fn small<T: Number>(
        &mut self,
        how: Operation,
        entry: Entry<'_>,
        both: (*const T, *mut T),
        count: usize,
    ) -> Result<(), ShmError> {
        // SAFETY: the caller's promise.
        unsafe {
            if count * size_of::<T>() <= INLINE {
                self.inline(how, entry, both, count)
            } else {
                self.one_shot(how, entry, both, count, (0, count))
            }
        }
    }

    /// Reduces equal buffers of all ranks; rank r gets `counts[r]` elements of the result, in rank order.
    ///
    /// The output is of another type with the same accumulator where the caller wants partial sums.
    ///
    /// # Errors
    /// See [`ShmError`]. The input is intact whatever happens.
    pub fn reduce_scatter<I: Number, O: Number<Acc = I::Acc>>(
        &mut self,
        how: Reduce,
        input: &[I],
        counts: &[usize],
        output: &mut [O],
    ) -> Result<(), ShmError> {
        let (count, shape) = total(counts, self.local_ranks())?;
        let me = self.local_rank();
        same_length("the input", count, input.len())?;
        same_length("the output", counts[me], output.len())?;
        check(how, I::TYPE, count)?;
        let kind = Kind::ReduceScatter;
        let key = Key::new(kind as u8, I::TYPE as u8, how.operation as u8, O::TYPE as u8, count as u64);
        let entry = Entry { weight: how.weight, key, shape, ..Entry::new(kind, I::TYPE, count) };
        let both = (input.as_ptr(), output.as_mut_ptr());
        let shards = ranges(counts);
        if count * size_of::<I>() <= self.options.one_shot_bytes {
            let mine = (shards[me].start, counts[me]);
            // SAFETY: two slices of these lengths, apart.
            return self.operate(|group| unsafe { group.one_shot(how.operation, entry, both, count, mine) });
        }
        // SAFETY: as above.
        self.operate(|group| unsafe {
            group.reduce_through_slots(how.operation, entry, both, &shards, false)
        })
    }

    /// Collects a shard of every rank, `counts[r]` elements from rank r, in rank order.
    ///
    /// # Errors
    /// See [`ShmError`].
    pub fn all_gather<T: Number>(
        &mut self,
        shard: &[T],
        counts: &[usize],
        output: &mut [T],
    ) -> Result<(), ShmError> {
        let (count, shape) = total(counts, self.local_ranks())?;
        let me = self.local_rank();
        same_length("the shard", counts[me], shard.len())?;
        same_length("the output", count, output.len())?;
        let shards = ranges(counts);
        output[shards[me].clone()].copy_from_slice(shard);
        let entry = Entry { shape, ..Entry::new(Kind::AllGather, T::TYPE, count) };
        self.gather(entry, &shards, output)
    }

    /// Copies the buffer of rank `root` to all others.
    ///
    /// # Errors
    /// See [`ShmError`].
    pub fn broadcast<T: Number>(&mut self, root: usize, buffer: &mut [T]) -> Result<(), ShmError> {
        let counts = self.only(root, buffer.len())?;
        let key = Key::new(Kind::Broadcast as u8, T::TYPE as u8, 0, root as u8, buffer.len() as u64);
        let entry = Entry { key, ..Entry::new(Kind::Broadcast, T::TYPE, 0) };
        self.gather(entry, &ranges(&counts), buffer)
    }

    /// How many of `count` f32 elements each rank reduces in [`ShmGroup::reduce_scatter_slice`], in rank order.
    pub fn shards(&self, count: usize) -> Vec<usize> {
        let n = self.local_ranks();
        (0..n).map(|rank| even::<f32>(count, n, rank).len()).collect()
    }

    fn gather<T: Number>(
        &mut self,
        entry: Entry<'_>,
        shards: &[Range<usize>],
        output: &mut [T],
    ) -> Result<(), ShmError> {
        check_count(output.len())?;
        let largest = shards.iter().map(|s| s.len()).max().unwrap_or(0);
        let at = output.as_mut_ptr();
        if largest * size_of::<T>() <= FLAT_SLOT {
            // SAFETY: an exclusive slice that the shards divide.
            return self.operate(|group| unsafe { group.gather_once(&entry, shards, at) });
        }
        // SAFETY: as above.
        self.operate(|group| unsafe { group.gather_through_slots(&entry, shards, at) })
    }

    /// Counts where only the root has something.
    pub(super) fn only(&self, root: usize, count: usize) -> Result<Vec<usize>, ShmError> {
        let n = self.local_ranks();
        if root >= n {
            return Err(ShmError::Config { name: "root", problem: format!("{root} is not below {n}") });
        }
        Ok((0..n).map(|rank| if rank == root { count } else { 0 }).collect())
    }
}

fn same_length(what: &'static str, expected: usize, got: usize) -> Result<(), ShmError> {
    if expected == got { Ok(()) } else { Err(ShmError::Length { what, expected, got }) }
}

/// The sum of counts, one per rank, and their digest.
pub(super) fn total(counts: &[usize], ranks: usize) -> Result<(usize, u64), ShmError> {
    same_length("counts", ranks, counts.len())?;
    let sum = counts.iter().try_fold(0_usize, |sum, &count| sum.checked_add(count));
    let bytes: Vec<u8> = counts.iter().flat_map(|&count| (count as u64).to_le_bytes()).collect();
    let count = sum.filter(|sum| sum.checked_mul(16).is_some());
    let count = count.ok_or(ShmError::Config { name: "counts", problem: "their sum is too large".into() })?;
    Ok((count, xxhash_rust::xxh3::xxh3_64(&bytes)))
}

/// The part of rank `rank`, cut at cache lines so that no two ranks write one.
pub(super) fn even<T>(count: usize, ranks: usize, rank: usize) -> Range<usize> {
    let line = ARENA_ALIGN / size_of::<T>();
    let lines = count.div_ceil(line);
    let cut = |rank: usize| (lines / ranks * rank + (lines % ranks).min(rank)) * line;
    cut(rank).min(count)..cut(rank + 1).min(count)
}

fn ranges(counts: &[usize]) -> Vec<Range<usize>> {
    let mut start = 0;
    let next = |&count: &usize| {
        let range = start..start + count;
        start = range.end;
        range
    };
    counts.iter().map(next).collect()
}
