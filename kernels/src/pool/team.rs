//! The threads of a pool and how they come together for a run.
//!
//! A run is open to every worker that is awake and obliges none: the caller opens it, works like everybody else,
//! closes it when no task is left, and then waits only for those who have joined. A worker that sleeps through a
//! short run, or that the scheduler has put aside, costs nothing.
//!
//! Two words carry this. `epoch` changes with each run; workers that have nothing to do watch it, first spinning and
//! then asleep in a futex. `state` holds whether the run is open and how many workers are inside; joining and leaving
//! change nothing else, so a watched cache line is not disturbed by them. The job may be read only between joining
//! and leaving, and written only while the run is closed and nobody is inside.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::futex;

use super::queue::{Padded, Queue};

/// Set in `state` while workers may join.
const OPEN: u32 = 1 << 31;
/// Set in `state` while the caller sleeps until the last worker has left.
const WAITING: u32 = 1 << 30;
/// The bits of `state` that count the workers inside.
const INSIDE: u32 = WAITING - 1;

/// How long an idle worker spins for the next run before it sleeps. Operations of a training step follow each other
/// within some microseconds; waking a thread costs about as much as this.
const SPIN: Duration = Duration::from_micros(30);
/// Looks at a word between two looks at the clock.
const LOOKS: usize = 16;

/// A task function without its type and lifetime.
#[derive(Clone, Copy)]
struct Job {
    function: *const (),
    call: unsafe fn(*const (), usize),
}

impl Job {
    const NONE: Self = Self { function: std::ptr::null(), call: |_, _| {} };

    fn new<F: Fn(usize) + Sync>(f: &F) -> Self {
        /// # Safety
        /// `f` points to a live `F`.
        unsafe fn call<F: Fn(usize)>(f: *const (), task: usize) {
            // SAFETY: the caller's promise.
            unsafe { (*f.cast::<F>())(task) }
        }
        Self { function: std::ptr::from_ref(f).cast(), call: call::<F> }
    }
}

/// What the caller and the workers share.
pub(super) struct Team {
    epoch: Padded<AtomicU32>,
    state: Padded<AtomicU32>,
    queue: Queue,
    job: UnsafeCell<Job>,
    /// The first panic of the present run.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Held by the caller of a run.
    busy: AtomicBool,
    stop: AtomicBool,
    /// Workers that sleep or are about to.
    sleepers: AtomicU32,
    spin: Duration,
}

// SAFETY: `job` is the only field that is not Sync. It is written only by the one caller that holds `busy`, while the
// run is closed and nobody is inside, and read only by threads inside; joining and leaving order the two. The function
// it points to is Sync, and outlives the run because the caller returns only when everybody has left.
unsafe impl Sync for Team {}
// SAFETY: as above; the pointer in `job` is never followed outside of a run.
unsafe impl Send for Team {}

impl Team {
    /// A team of `threads`, the caller included, on a machine that can run `cpus` of them at once.
    pub(super) fn new(threads: usize, cpus: usize) -> Self {
        Self {
            epoch: Padded::default(),
            state: Padded::default(),
            queue: Queue::new(threads),
            job: UnsafeCell::new(Job::NONE),
            panic: Mutex::new(None),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            // More threads than CPUs: whoever spins keeps somebody with work from running.
            spin: if threads <= cpus { SPIN } else { Duration::ZERO },
        }
    }

    /// Calls `f(0) .. f(tasks - 1)` on the calling thread and the workers; a panic of `f` reaches the caller.
    pub(super) fn run<F: Fn(usize) + Sync>(&self, tasks: usize, f: &F) {
        // Acquire, with the release below: what an earlier caller did to the job and the queue is over.
        if self.busy.swap(true, Ordering::Acquire) {
            // Called from inside a task, or from a second thread: the workers are taken.
            return (0..tasks).for_each(f);
        }
        self.queue.deal(tasks);
        // SAFETY: `busy` makes this thread the only caller, and the run before was left by everybody.
        unsafe { *self.job.get() = Job::new(f) };
        self.open(tasks);
        self.serve(0);
        self.close();
        let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.busy.store(false, Ordering::Release);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Publishes job and queue, and wakes sleepers if there is work for them.
    fn open(&self, tasks: usize) {
        self.state.0.store(OPEN, Ordering::Release);
        // Sequentially consistent, as is the count of sleepers: either this thread sees a sleeper, or the sleeper's
        // futex call sees the new epoch and returns at once.
        self.epoch.0.fetch_add(1, Ordering::SeqCst);
        let asleep = self.sleepers.load(Ordering::SeqCst);
        if asleep > 0 {
            let useful = u32::try_from(tasks - 1).unwrap_or(u32::MAX);
            wake(&self.epoch.0, asleep.min(useful));
        }
    }

    /// Lets nobody join any more and waits until everybody has left.
    fn close(&self) {
        let state = &self.state.0;
        // Acquire, here and below: what the workers wrote in their tasks is visible to the caller.
        if state.fetch_and(!OPEN, Ordering::Acquire) & INSIDE == 0 {
            return;
        }
        if spin(self.spin, || state.load(Ordering::Acquire) & INSIDE == 0) {
            return;
        }
        while state.fetch_or(WAITING, Ordering::Acquire) & INSIDE != 0 {
            let now = state.load(Ordering::Acquire);
            if now & INSIDE != 0 {
                sleep(state, now);
            }
        }
        state.store(0, Ordering::Relaxed);
    }

    /// Works on the present run until no task is left. For the caller, and for workers that have joined.
    fn serve(&self, me: usize) {
        // SAFETY: this thread is the caller or inside, so nobody writes the job.
        let job = unsafe { *self.job.get() };
        let done = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the caller of `run` returns only after this thread has left; until then its function lives.
            self.queue.drain(me, |task| unsafe { (job.call)(job.function, task) });
        }));
        if let Err(payload) = done {
            self.queue.clear();
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }

    /// The life of worker `me`.
    pub(super) fn work(&self, me: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_epoch(seen);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if self.join() {
                self.serve(me);
                self.leave();
            }
        }
    }

    /// Waits for an epoch other than `seen`.
    fn next_epoch(&self, seen: u32) -> u32 {
        let epoch = &self.epoch.0;
        spin(self.spin, || epoch.load(Ordering::Acquire) != seen);
        loop {
            let now = epoch.load(Ordering::Acquire);
            if now != seen {
                return now;
            }
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            sleep(epoch, seen);
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Goes inside, unless the run is over already.
    fn join(&self) -> bool {
        let add = |state: u32| (state & OPEN != 0).then_some(state + 1);
        // Acquire: the job and the queue are those of the run that is open now.
        self.state.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, add).is_ok()
    }

    fn leave(&self) {
        let before = self.state.0.fetch_sub(1, Ordering::Release);
        if before & INSIDE == 1 && before & WAITING != 0 {
            wake(&self.state.0, 1);
        }
    }

    /// Ends the workers; they return from [`Team::work`] soon.
    pub(super) fn dismiss(&self) {
        self.stop.store(true, Ordering::Release);
        self.epoch.0.fetch_add(1, Ordering::SeqCst);
        wake(&self.epoch.0, u32::MAX >> 1);
    }
}

/// Spins until `ready` or for the given time; tells whether it became ready. Zero looks once.
fn spin(time: Duration, ready: impl Fn() -> bool) -> bool {
    if time.is_zero() {
        return ready();
    }
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > time {
            return ready();
        }
        // A system call of some 0.3 us if nobody else wants this CPU; otherwise the one waited for may be just that.
        std::thread::yield_now();
    }
}

/// Sleeps while the word is `value`; may return early.
fn sleep(word: &AtomicU32, value: u32) {
    // Every error (the word has changed, a signal came) means: look again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
}

fn wake(word: &AtomicU32, threads: u32) {
    // Waking can't fail: the word is valid memory of this process.
    let _ = futex::wake(word, futex::Flags::PRIVATE, threads);
}
