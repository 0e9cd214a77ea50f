//! The compute threads and the few ways of splitting work over them.
//!
//! Work is always cut into tasks whose number and size do not depend on the number of threads, so results do not
//! either. A pool has one caller at a time, which computes along: a pool of N threads starts N - 1. The workers spin
//! for some microseconds after a run and then sleep; an idle pool uses no CPU.
//!
//! Deliberately absent: futures, priorities, tasks that wait for tasks, and growing or shrinking.

mod affinity;
mod queue;
mod shared;
mod team;

use std::cell::UnsafeCell;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

pub use affinity::PinRefusal;
pub(crate) use shared::SharedMut;

use self::team::Team;
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
        source: std::io::Error,
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
    workers: Option<Workers>,
    refusals: Vec<PinRefusal>,
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
        Self::start(&vec![None; threads], isa)
    }

    /// Starts one thread for each CPU and binds it there, but for the first, which is whoever calls [`Pool::run`].
    ///
    /// The caller keeps its affinity: threads that it starts later would inherit a single CPU, and it may call other
    /// pools. Once the workers are bound, `cpus[0]` is the CPU that the kernel's balancing leaves to it. A CPU that
    /// the process may not use is no error; [`Pool::refusals`] tells.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn pinned(cpus: &[u32], isa: Isa) -> Result<Self, PoolError> {
        let places: Vec<_> =
            cpus.iter().enumerate().map(|(thread, &cpu)| Some(cpu).filter(|_| thread > 0)).collect();
        Self::start(&places, isa)
    }

    fn start(places: &[Option<u32>], isa: Isa) -> Result<Self, PoolError> {
        let threads = places.len();
        let (workers, refusals) = match threads {
            0 => return Err(PoolError::NoThreads),
            1 => (None, Vec::new()),
            _ => {
                let started = Workers::start(places);
                let (workers, refusals) = started.map_err(|source| PoolError::Start { threads, source })?;
                (Some(workers), refusals)
            }
        };
        Ok(Self { threads, isa, workers, refusals })
    }

    /// The threads that could not be bound to their CPU.
    pub fn refusals(&self) -> &[PinRefusal] {
        &self.refusals
    }

    /// How many threads compute.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The instruction set of the kernels run through this pool.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Calls `f(0) .. f(tasks - 1)`, each once, in any order and on any thread; returns when all are done.
    ///
    /// Inside a task, and while another thread has a run going, it calls them all on the calling thread.
    ///
    /// # Panics
    /// With the first panic of `f`, when no thread is in `f` any more; tasks that had not begun are left out.
    pub fn run(&self, tasks: usize, f: impl Fn(usize) + Sync) {
        match &self.workers {
            Some(workers) if tasks > 1 => workers.team.run(tasks, &f),
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

/// The threads beside the caller; dropping ends them.
struct Workers {
    team: Arc<Team>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts a worker for each place but the first, and waits until each has tried to go there.
    fn start(places: &[Option<u32>]) -> std::io::Result<(Self, Vec<PinRefusal>)> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let team = Arc::new(Team::new(places.len(), cpus));
        let mut workers = Self { team, threads: Vec::with_capacity(places.len()) };
        let (bound, refusals) = mpsc::channel();
        for (me, &place) in places.iter().enumerate().skip(1) {
            let (team, bound) = (Arc::clone(&workers.team), bound.clone());
            let body = move || {
                if let Some((cpu, Err(errno))) = place.map(|cpu| (cpu, affinity::bind_to(cpu))) {
                    // The receiver waits until every sender is gone.
                    let _ = bound.send(PinRefusal { thread: me, cpu, errno });
                }
                drop(bound);
                team.work(me);
            };
            let name = format!("muster-compute-{me}");
            workers.threads.push(std::thread::Builder::new().name(name).spawn(body)?);
        }
        drop(bound);
        Ok((workers, refusals.into_iter().collect()))
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.team.dismiss();
        for thread in self.threads.drain(..) {
            // A worker catches the panics of its tasks, so there is none to pass on.
            let _ = thread.join();
        }
    }
}

/// Elements of one task of an element-wise operation: large enough to pay for the hand-over, small enough to balance.
pub(crate) const BLOCK: usize = 16 * 1024;

/// Rows of one task of a row-wise operation, chosen from the width alone so that the split is the same on any pool.
pub(crate) fn row_block(cols: usize) -> usize {
    (BLOCK / cols.max(1)).clamp(1, 64)
}
