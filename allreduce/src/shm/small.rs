//! Small messages: every rank reduces everything for itself, in one round of flags.

use std::sync::atomic::Ordering;

use muster_kernels::reduce::{Number, Stores, copy_raw};

use super::error::ShmError;
use super::protocol::INLINE;
use super::{Entry, Operation, ShmGroup};

impl ShmGroup {
    /// Reduces at most 64 bytes, which travel in the flag lines.
    ///
    /// # Safety
    /// `input` and `output` hold `count` elements, and nobody else uses them now.
    pub(super) unsafe fn inline<T: Number>(
        &mut self,
        how: Operation,
        entry: Entry<'_>,
        (input, output): (*const T, *mut T),
        count: usize,
    ) -> Result<(), ShmError> {
        let bytes = count * size_of::<T>();
        debug_assert!(bytes <= INLINE);
        let mut own = [0_u64; INLINE / 8];
        // SAFETY: the caller's promise; `own` holds 64 bytes.
        unsafe { std::ptr::copy_nonoverlapping(input.cast(), own.as_mut_ptr().cast::<u8>(), bytes) };
        let entry = Entry { payload: &bytemuck::bytes_of(&own)[..bytes], ..entry };
        self.begin(&entry);
        self.agree(&entry)?;
        let operation = self.peers.operation;
        for peer in self.peers.others() {
            let line = self.peers.members[peer].line(operation);
            for (to, from) in self.payloads[peer].iter_mut().zip(&line.payload).take(bytes.div_ceil(8)) {
                *to = from.load(Ordering::Relaxed);
            }
        }
        self.payloads[self.peers.me] = own;
        let inputs = self.payloads.iter().map(|p| p.as_ptr().cast::<T>());
        let reduction = self.reduction(how, Stores::Cached);
        // SAFETY: payloads are our own copies of at least `bytes`, aligned to 8; the output is the caller's
        // promise.
        unsafe { with_pointers(inputs, |inputs| reduction.run_raw(inputs, &[output], count)) };
        Ok(())
    }

    /// Reduces what fits a slot: elements `from..from + len` of the `count` that everybody contributes.
    ///
    /// # Safety
    /// `input` holds `count` elements, `output` `len`, and nobody else uses them now.
    pub(super) unsafe fn one_shot<I: Number, O: Number<Acc = I::Acc>>(
        &mut self,
        how: Operation,
        entry: Entry<'_>,
        (input, output): (*const I, *mut O),
        count: usize,
        (from, len): (usize, usize),
    ) -> Result<(), ShmError> {
        let operation = self.peers.operation + 1;
        let slot = self.peers.own().flat(operation).cast::<I>();
        // SAFETY: the caller's promise; the slot was last read in the fourth operation before this one, which
        // everybody has finished.
        unsafe { copy_raw(input, slot, count, Stores::Cached) };
        self.begin(&entry);
        self.agree(&entry)?;
        let me = self.peers.me;
        let members = self.peers.members.iter().enumerate();
        // SAFETY: `from` lies in all of them.
        let inputs = members.map(|(rank, memory)| unsafe {
            if rank == me {
                input.add(from)
            } else {
                memory.flat(operation).cast::<I>().cast_const().add(from)
            }
        });
        let reduction = self.reduction(how, Stores::Cached);
        // SAFETY: everybody has filled its slot and writes it again four operations later.
        unsafe { with_pointers(inputs, |inputs| reduction.run_raw(inputs, &[output], len)) };
        Ok(())
    }
}

/// Calls `f` with pointers, on the stack where they are few.
pub(super) fn with_pointers<P: Copy, R>(pointers: impl Iterator<Item = P>, f: impl FnOnce(&[P]) -> R) -> R {
    let mut pointers = pointers.peekable();
    let Some(&first) = pointers.peek() else { return f(&[]) };
    let mut few = [first; 8];
    let mut count = 0;
    while let Some(p) = pointers.next() {
        few[count] = p;
        count += 1;
        if count == few.len() && pointers.peek().is_some() {
            return f(&few.into_iter().chain(pointers).collect::<Vec<_>>());
        }
    }
    f(&few[..count])
}
