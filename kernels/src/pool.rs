//! The compute threads and the few ways of splitting work over them.
//!
//! Work is always cut into tasks whose number and size do not depend on the number of threads. The pool does not pin
//! its threads.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;

use rayon::prelude::*;

use crate::isa::{self, Isa};

/// A pool that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Zero threads were asked for.
    #[error("a compute pool needs at least one thread, got 0")]
    NoThreads,
    /// The operating system refused the threads.
    #[error("could not start {threads} compute threads")]
    Start {
        /// How many were asked for.
        threads: usize,
        /// Why.
        #[source]
        source: rayon::ThreadPoolBuildError,
    },
}

impl PoolError {
    /// The fix for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoThreads => Some("set train.threads to 1 or more, or leave it out".into()),
            Self::Start { .. } => {
                Some("lower train.threads, or raise the limit on processes (ulimit -u)".into())
            }
        }
    }
}

/// A fixed set of compute threads and the instruction set their kernels use.
pub struct Pool {
    threads: usize,
    isa: Isa,
    /// None with one thread: everything then runs inline.
    workers: Option<rayon::ThreadPool>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads).field("isa", &self.isa).finish()
    }
}

impl Pool {
    /// Starts `threads` threads that use the instruction set of [`isa::selected`].
    ///
    /// # Errors
    /// Zero threads, or the operating system refuses.
    pub fn new(threads: usize) -> Result<Self, PoolError> {
        Self::with_isa(threads, isa::selected())
    }

    /// Starts threads whose kernels use at most `isa`; for tests and comparisons.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Self, PoolError> {
        let workers = match threads {
            0 => return Err(PoolError::NoThreads),
            1 => None,
            _ => Some(
                rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .thread_name(|i| format!("muster-compute-{i}"))
                    .build()
                    .map_err(|source| PoolError::Start { threads, source })?,
            ),
        };
        Ok(Self { threads, isa, workers })
    }

    /// How many threads compute.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The instruction set of the kernels run through this pool.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs `f` on a thread of the pool, so that operations inside it need no hand-over from an outside thread.
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.workers {
            Some(w) => w.install(f),
            None => f(),
        }
    }

    /// Calls `f(0) .. f(tasks - 1)`, each once, in any order and on any thread; returns when all are done.
    pub fn run(&self, tasks: usize, f: impl Fn(usize) + Sync) {
        match &self.workers {
            Some(w) if tasks > 1 => w.install(|| (0..tasks).into_par_iter().with_max_len(1).for_each(&f)),
            _ => (0..tasks).for_each(f),
        }
    }

    /// Hands each part to one call of `f`; the safe way to let tasks write to disjoint pieces of slices.
    pub fn each<P: Send>(&self, parts: impl Iterator<Item = P>, f: impl Fn(P) + Sync) {
        if self.workers.is_none() {
            return parts.for_each(f);
        }
        struct Slot<P>(UnsafeCell<Option<P>>);
        // SAFETY: a slot is only touched by the one task that has its index, and P may move between threads.
        unsafe impl<P: Send> Sync for Slot<P> {}
        let slots: Vec<Slot<P>> = parts.map(|p| Slot(UnsafeCell::new(Some(p)))).collect();
        self.run(slots.len(), |i| {
            let slot: &Slot<P> = &slots[i];
            // SAFETY: `run` calls each index exactly once, so no other reference to this slot's content exists.
            if let Some(part) = unsafe { (*slot.0.get()).take() } {
                f(part);
            }
        });
    }
}

/// A mutable slice from which tasks take disjoint ranges that no `chunks_mut` describes (column blocks of a matrix).
pub(crate) struct SharedMut<'a, T> {
    ptr: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` cut into pieces that may go to other threads, hence T: Send; the pieces' disjointness
// is promised by the caller of `range`.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { ptr: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// Takes a range as a mutable slice; out of bounds panics.
    ///
    /// # Safety
    /// While the returned slice lives, no other slice taken from `self` may overlap it.
    #[allow(clippy::mut_from_ref, reason = "the point of the type; see Safety")]
    #[inline(always)]
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "range {range:?} outside of {}", self.len);
        // SAFETY: inside the slice by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.end - range.start) }
    }
}

/// Elements of one task of an element-wise operation: large enough to pay for the hand-over, small enough to balance.
pub(crate) const BLOCK: usize = 16 * 1024;

/// Rows of one task of a row-wise operation, chosen from the width alone so that the split is the same on any pool.
pub(crate) fn row_block(cols: usize) -> usize {
    (BLOCK / cols.max(1)).clamp(1, 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in 1..=3 {
            let pool = Pool::new(threads).expect("threads start");
            for tasks in [0, 1, 2, 7, 1000] {
                let seen: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, |i| {
                    seen[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn parts_are_handed_out_once_and_dropped_once() {
        let pool = Pool::new(2).expect("threads start");
        let mut data = vec![0_u32; 1003];
        pool.each(data.chunks_mut(10).enumerate(), |(i, part)| {
            part.iter_mut().for_each(|x| *x += i as u32 + 1)
        });
        assert!(data.iter().enumerate().all(|(i, &x)| x == (i / 10) as u32 + 1));
    }

    #[test]
    fn zero_threads_is_an_error_with_a_hint() {
        let e = Pool::new(0).expect_err("no threads");
        assert!(e.hint().is_some_and(|h| h.contains("threads")));
    }
}
