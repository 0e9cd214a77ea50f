//! Parts of the arena that have an owner each, and the operations in place on them.
//!
//! An arena is either used through offsets ([`ShmGroup::arena_mut`]) or divided once; what is divided can be lent,
//! sent to other threads, and kept longer than the group.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use super::collect::even;
use super::error::ShmError;
use super::memory::{ARENA_ALIGN, Memory};
use super::{Entry, Key, Kind, Reduce, ShmGroup, check};
use crate::element::DataType;

/// Elements between two places where a slice may begin.
const LINE: usize = ARENA_ALIGN / size_of::<f32>();

/// f32 values in a rank's arena, which nobody else of this process can reach.
///
/// Other ranks read and write them during the operations that borrow the slice exclusively, and at no other time.
#[derive(Debug)]
pub struct ArenaSlice {
    memory: Arc<Memory>,
    /// Bytes from the start of the arena, a multiple of [`ARENA_ALIGN`].
    offset: usize,
    len: usize,
}

impl ArenaSlice {
    /// Two parts; `mid` elements in the first, rounded down to a multiple of 64 bytes.
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        let mid = if mid >= self.len { self.len } else { mid / LINE * LINE };
        let rest = Self {
            memory: Arc::clone(&self.memory),
            offset: self.offset + mid * size_of::<f32>(),
            len: self.len - mid,
        };
        (Self { len: mid, ..self }, rest)
    }

    /// The inverse of [`ArenaSlice::split_at`].
    ///
    /// # Panics
    /// If `next` does not begin where this slice ends: only parts of one slice belong together.
    pub fn join(self, next: Self) -> Self {
        let end = self.offset + self.len * size_of::<f32>();
        assert!(Arc::ptr_eq(&self.memory, &next.memory) && end == next.offset, "parts in their order");
        Self { len: self.len + next.len, ..self }
    }

    fn at(&self) -> *mut f32 {
        self.memory.arena().wrapping_add(self.offset).cast()
    }
}

impl Deref for ArenaSlice {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: `divide` gave these bytes, inside the mapping and aligned, to this slice alone, and the mapping
        // lives as long as it; other ranks write only during operations, which borrow the slice exclusively.
        unsafe { std::slice::from_raw_parts(self.at(), self.len) }
    }
}

impl DerefMut for ArenaSlice {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at(), self.len) }
    }
}

impl AsRef<[f32]> for ArenaSlice {
    fn as_ref(&self) -> &[f32] {
        self
    }
}

impl AsMut<[f32]> for ArenaSlice {
    fn as_mut(&mut self) -> &mut [f32] {
        self
    }
}

/// Bytes of an arena that holds slices of these lengths, if it is not too large for any machine.
pub(crate) fn arena_bytes(lens: &[usize]) -> Option<usize> {
    lens.iter().try_fold(0_usize, |sum, &len| sum.checked_add(slot(len)?))
}

fn slot(len: usize) -> Option<usize> {
    len.checked_mul(size_of::<f32>())?.checked_next_multiple_of(ARENA_ALIGN)
}

impl ShmGroup {
    /// Divides the arena into slices of these lengths, once.
    ///
    /// # Errors
    /// If they don't fit, or the arena is divided already.
    pub fn divide(&mut self, lens: &[usize]) -> Result<Vec<ArenaSlice>, ShmError> {
        self.undivided()?;
        let arena = self.options.arena_bytes;
        if arena_bytes(lens).is_none_or(|bytes| bytes > arena) {
            let problem = format!("{} slices don't fit an arena of {arena} bytes", lens.len());
            return Err(ShmError::Config { name: "lens", problem });
        }
        self.divided = true;
        let memory = &self.peers.members[self.peers.me];
        let mut offset = 0;
        let slice = |&len: &usize| {
            let slice = ArenaSlice { memory: Arc::clone(memory), offset, len };
            offset += slot(len).unwrap_or_default();
            slice
        };
        Ok(lens.iter().map(slice).collect())
    }

    /// An error if the arena belongs to the owners of its slices.
    pub(super) fn undivided(&self) -> Result<(), ShmError> {
        if !self.divided {
            return Ok(());
        }
        let problem = "it is divided into slices, which are the only way to it now".to_owned();
        Err(ShmError::Config { name: "arena", problem })
    }

    /// The elements of a slice that this rank reduces for everybody.
    pub fn shard(&self, slice: &ArenaSlice) -> Range<usize> {
        even::<f32>(slice.len, self.local_ranks(), self.local_rank())
    }

    fn own(&self, slice: &ArenaSlice) -> Result<(), ShmError> {
        if Arc::ptr_eq(&slice.memory, &self.peers.members[self.peers.me]) {
            return Ok(());
        }
        let problem = "it lies in the arena of another group".to_owned();
        Err(ShmError::Config { name: "slice", problem })
    }

    /// Reduces equal slices of all ranks in place; every rank gets the result.
    ///
    /// # Errors
    /// See [`ShmError`]; the slice then holds neither inputs nor results.
    pub fn all_reduce_slice(&mut self, how: Reduce, slice: &mut ArenaSlice) -> Result<(), ShmError> {
        self.own(slice)?;
        self.all_reduce_placed::<f32>(how, slice.offset, slice.offset, slice.len)
    }

    /// Reduces equal slices of all ranks; each rank gets the result of its [`ShmGroup::shard`] in place, and the
    /// other elements are as they were.
    ///
    /// # Errors
    /// See [`ShmError`]; the shard then holds neither inputs nor results.
    pub fn reduce_scatter_slice(&mut self, how: Reduce, slice: &mut ArenaSlice) -> Result<(), ShmError> {
        self.own(slice)?;
        check(how, DataType::F32, slice.len)?;
        let (me, mine) = (self.local_rank(), self.shard(slice));
        let kind = Kind::ShardsReduce as u8;
        let dtype = DataType::F32 as u8;
        let key = Key::new(kind, dtype, how.operation as u8, 0, slice.len as u64);
        let at = slice.offset;
        let entry = Entry { key, shape: 0, weight: how.weight, input: at, output: at, payload: &[] };
        self.operate(|group| {
            group.begin(&entry);
            group.agree(&entry)?;
            let stores = Self::stores(0, true, 0);
            group.reduce_from_arenas::<f32, f32>(how.operation, 0, mine, &[(me, at)], stores)?;
            group.all_done()
        })
    }

    /// Copies every rank's shard of equal slices to everybody.
    ///
    /// # Errors
    /// See [`ShmError`].
    pub fn all_gather_slice(&mut self, slice: &mut ArenaSlice) -> Result<(), ShmError> {
        self.own(slice)?;
        let counts = self.shards(slice.len);
        let mine = self.shard(slice);
        // Where there is nothing, no border needs to be aligned.
        let start = if mine.is_empty() { 0 } else { mine.start };
        let own = slice.offset + start * size_of::<f32>();
        self.gather_placed::<f32>((Kind::ArenaAllGather, 0), own, slice.offset, &counts)
    }
}
