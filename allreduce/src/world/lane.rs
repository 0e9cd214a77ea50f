//! The queue of a rank's operations inside its node, and the thread that runs them.
//!
//! Operations of a node block, so a thread runs them while the caller computes. Whoever has the [`Node`] runs: that is
//! the thread, or a caller with a small operation that finds nothing else to do, which spares it two wake-ups. The
//! order is that of the posts either way.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use muster_proto::Rank;
use muster_proto::limits::MAX_QUEUED_SUMS;

use super::fault::Place;
use super::node::Node;
use crate::comm::record::{Record, Recorder};
use crate::error::{Error, Result};
use crate::shm::AbortHandle;

type Job = Box<dyn FnOnce(&mut Node) + Send>;

struct Queued {
    name: String,
    posted: Instant,
    job: Job,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Queued>,
    /// None while somebody runs an operation.
    node: Option<Box<Node>>,
    /// Name and start of what is run.
    running: Option<(String, Instant)>,
    is_closing: bool,
}

/// What callers and the thread share.
struct Shared {
    me: Rank,
    state: Mutex<State>,
    work: Condvar,
    recorder: Recorder,
    start: Instant,
    /// Operations whose outcome nobody knows yet.
    open: AtomicUsize,
}

/// The operations of one rank inside its node.
pub(super) struct Lane {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    ender: Ender,
}

/// Ends what is under way in a lane and everything later.
#[derive(Clone)]
pub(super) struct Ender {
    /// No join of a group shall go on.
    is_ended: Arc<AtomicBool>,
    group: Arc<Mutex<AbortHandle>>,
}

impl Ender {
    pub fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        lock(&self.group).abort();
    }
}

/// Where the outcome of an operation arrives.
pub(super) type Outcome<R> = Receiver<Result<R>>;

/// Waits for the outcome of an operation of rank `me`.
pub(super) fn wait<R>(outcome: &Outcome<R>, me: Rank) -> Result<R> {
    outcome.recv().unwrap_or(Err(Error::Closed { me }))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Jobs run outside of the lock, and nothing else that holds it panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    pub fn start(node: Node) -> Result<Self> {
        let me = node.me();
        let ender = Ender { is_ended: node.is_ended(), group: Arc::new(Mutex::new(node.abort_handle())) };
        let shared = Arc::new(Shared {
            me,
            state: Mutex::new(State { node: Some(Box::new(node)), ..State::default() }),
            work: Condvar::new(),
            recorder: Recorder::default(),
            start: Instant::now(),
            open: AtomicUsize::new(0),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("muster-sum-{}", me.0))
            .spawn(move || of_thread.run())
            .map_err(|source| Error::Socket {
                attempt: "start a thread for",
                address: "sums inside the node".to_owned(),
                source: Arc::new(source),
            })?;
        Ok(Self { shared, thread: Some(thread), ender })
    }

    /// Queues an operation.
    pub fn post<R: Send + 'static>(
        &self,
        name: &str,
        operation: impl FnOnce(&mut Node) -> Result<R> + Send + 'static,
    ) -> Outcome<R> {
        let (sender, outcome) = sync_channel(1);
        let mut state = lock(&self.shared.state);
        if state.queue.len() >= MAX_QUEUED_SUMS {
            // There is room for one answer, and a caller that is gone needs none.
            let _ = sender.send(Err(Error::Busy { limit: MAX_QUEUED_SUMS }));
            return outcome;
        }
        self.shared.open.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        let job = Box::new(move |node: &mut Node| {
            let result = node.run(operation);
            shared.open.fetch_sub(1, Ordering::Release);
            let _ = sender.send(result);
        });
        state.queue.push_back(Queued { name: name.to_owned(), posted: Instant::now(), job });
        drop(state);
        self.shared.work.notify_one();
        outcome
    }

    /// Runs an operation and waits for it; on the calling thread if nothing else is to be done before.
    pub fn run<R: Send + 'static>(
        &self,
        name: &str,
        operation: impl FnOnce(&mut Node) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let mut state = lock(&self.shared.state);
        let idle = state.queue.is_empty() && !state.is_closing;
        let Some(mut node) = state.node.take_if(|_| idle) else {
            drop(state);
            return wait(&self.post(name, operation), self.shared.me);
        };
        let posted = Instant::now();
        state.running = Some((name.to_owned(), posted));
        drop(state);
        let result = node.run(operation);
        self.shared.give_back(node, name.to_owned(), posted);
        result
    }

    /// The node has another group now.
    pub fn replace_abort_handle(&self, handle: AbortHandle) {
        *lock(&self.ender.group) = handle;
        if self.ender.is_ended.load(Ordering::Acquire) {
            lock(&self.ender.group).abort();
        }
    }

    /// The error of this rank for an error of its communicator.
    pub fn judge(&self, place: Place, error: Error) -> Error {
        place.unless_accused(&lock(&self.ender.group), error)
    }

    /// Something that ends this lane from elsewhere.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Whether operations are queued or under way.
    pub fn is_busy(&self) -> bool {
        self.shared.open.load(Ordering::Acquire) > 0
    }

    /// The last `most` operations that ended, what is under way, and how many wait behind it.
    pub fn flight_record(&self, most: usize) -> Vec<String> {
        let mut lines = self.shared.recorder.last(most);
        let state = lock(&self.shared.state);
        if let Some((name, since)) = &state.running {
            lines.push(format!("in the node: {name:?} since {:?}", since.elapsed()));
        }
        if let Some(next) = state.queue.front() {
            lines.push(format!("{} behind it, {:?} first", state.queue.len(), next.name));
        }
        lines
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        lock(&self.shared.state).is_closing = true;
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            // It ends with the operation under way, which whoever drops this has ended.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            let is_next = !state.queue.is_empty() && state.node.is_some();
            let next = if is_next { state.queue.pop_front().zip(state.node.take()) } else { None };
            if let Some((queued, mut node)) = next {
                state.running = Some((queued.name.clone(), Instant::now()));
                drop(state);
                (queued.job)(&mut node);
                self.give_back(node, queued.name, queued.posted);
                state = lock(&self.state);
            } else if state.is_closing {
                return;
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn give_back(&self, node: Box<Node>, name: String, posted: Instant) {
        let (sequence, bytes, error) = node.last();
        self.recorder.push(Record {
            name,
            sequence,
            posted: posted.saturating_duration_since(self.start),
            ended: self.start.elapsed(),
            bytes,
            error,
        });
        let mut state = lock(&self.state);
        state.node = Some(node);
        state.running = None;
        let more = !state.queue.is_empty() || state.is_closing;
        drop(state);
        if more {
            self.work.notify_one();
        }
    }
}
