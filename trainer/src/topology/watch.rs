//! Looks, from a thread of its own, at what the process may use and at what it gets.
//!
//! Looking reads some small files; counting pages walks the page tables, so that happens more rarely. Nothing here
//! changes anything: whoever computes asks between steps whether there is news.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{OwnMemory, Place, Throttling, facts, limits, own_memory};

/// Looks per count of pages.
const LOOKS_PER_COUNT: u32 = 6;

/// What the system lets this process use at the moment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Allowed {
    /// affinity ∩ cpuset, ascending.
    pub cpus: Vec<u32>,
    /// CPUs' worth of time that all processes of the group have together.
    pub quota: Option<f64>,
}

impl Allowed {
    /// Reads the trees below `root`; the affinity is that of this process's first thread.
    pub fn read(root: &Path) -> Self {
        Self::read_with(root, facts::affinity().as_deref())
    }

    pub(super) fn read_with(root: &Path, affinity: Option<&[u32]>) -> Self {
        let cpus = facts::allowed(root, affinity, &mut Vec::new());
        Self { cpus, quota: limits::quota(root).map(|quota| quota.cpus) }
    }
}

/// What is looked at.
#[derive(Debug, Clone)]
pub(super) struct Sights {
    /// Directory of `proc` and `sys`.
    pub root: PathBuf,
    /// Name of the memory file of this process.
    pub own_file: String,
}

#[derive(Debug)]
struct State {
    allowed: Allowed,
    place: Place,
    /// The NUMA nodes of this process's CPUs.
    nodes: Vec<u32>,
}

#[derive(Debug)]
struct Shared {
    sights: Sights,
    throttled_before: Throttling,
    has_news: AtomicBool,
    state: Mutex<State>,
}

/// The thread that looks; dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Shared>,
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Watch {
    /// Looks every `interval` for changes since `allowed`. Without a thread, if the system refuses one, there are none.
    pub fn start(sights: Sights, allowed: Allowed, nodes: Vec<u32>, interval: Duration) -> Self {
        let state = State { allowed, place: Place::default(), nodes };
        let shared = Arc::new(Shared {
            throttled_before: limits::throttling(&sights.root).unwrap_or_default(),
            sights,
            has_news: AtomicBool::new(false),
            state: Mutex::new(state),
        });
        let (stop, stopped) = channel();
        let of_thread = Arc::clone(&shared);
        let body = move || {
            let mut looks = 0;
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                of_thread.look();
                if looks % LOOKS_PER_COUNT == 0 {
                    of_thread.count_pages();
                }
                looks += 1;
            }
        };
        let thread = std::thread::Builder::new().name("muster-place".into()).spawn(body);
        let thread = thread.inspect_err(|error| tracing::warn!("changes of CPUs go unnoticed: {error}"));
        Self { shared, thread: thread.ok().map(|thread| (stop, thread)) }
    }

    /// What may be used now, if that has changed since the last call.
    pub fn news(&self) -> Option<Allowed> {
        // Looked at between any two steps: only a change costs more than a load.
        if !self.shared.has_news.load(Ordering::Acquire) {
            return None;
        }
        self.shared.has_news.store(false, Ordering::Relaxed);
        Some(self.shared.state().allowed.clone())
    }

    /// The last that was seen.
    pub fn place(&self) -> Place {
        self.shared.state().place
    }

    /// Looks at everything now.
    pub fn look(&self) -> Place {
        self.shared.look();
        self.shared.count_pages();
        self.place()
    }

    /// Changes what only the owner knows.
    pub fn update(&self, change: impl FnOnce(&mut Place)) {
        change(&mut self.shared.state().place);
    }

    /// The process has CPUs of these NUMA nodes from now on.
    pub fn moved_to(&self, nodes: Vec<u32>) {
        self.shared.state().nodes = nodes;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nobody panics while holding it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) {
        let root = &self.sights.root;
        let allowed = Allowed::read(root);
        let throttling = limits::throttling(root).unwrap_or(self.throttled_before);
        let mut state = self.state();
        state.place.set_throttling(throttling.since(self.throttled_before));
        if state.allowed != allowed {
            state.allowed = allowed;
            self.has_news.store(true, Ordering::Release);
        }
    }

    fn count_pages(&self) {
        let nodes = self.state().nodes.clone();
        // Absent in kernels without NUMA support.
        let text = fs::read_to_string(self.sights.root.join("proc/self/numa_maps"));
        let memory = text
            .map_or_else(|_| OwnMemory::default(), |text| own_memory(&text, &self.sights.own_file, &nodes));
        self.state().place.set_memory(memory);
    }
}
