//! The TCP driver: sockets, one epoll set and one thread per communicator.
//!
//! The thread sleeps in the kernel whenever nothing happens. A caller that waits for an operation takes its place
//! and drives the sockets itself, so that a small operation costs no thread switch; while it does, the thread is not
//! woken. Whoever holds the lock drives.

mod clock;
mod conn;
mod connect;
mod core;
mod dial;
mod handshake;
mod options;
mod stream;
mod wire;

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};

pub use self::core::TcpOptions;
pub use handshake::{Key, Security};
pub use wire::LinkTls;

use self::clock::Clock;
use self::core::Core;
use crate::engine::{Ended, Engine, Post};
use crate::error::{Error, Result};

/// A bound port, on which the peers of every generation find this process.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Binds an address; port 0 takes a free one.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let socket = |source| Error::Socket {
            attempt: "listen on",
            address: address.to_string(),
            source: Arc::new(source),
        };
        let listener = TcpListener::bind(address).map_err(socket)?;
        listener.set_nonblocking(true).map_err(socket)?;
        Ok(Self(listener))
    }

    /// The address with the port that was taken.
    ///
    /// # Errors
    /// The operating system doesn't know it.
    pub fn address(&self) -> Result<SocketAddr> {
        self.0.local_addr().map_err(|source| Error::Socket {
            attempt: "ask for the address of",
            address: "the listener".to_owned(),
            source: Arc::new(source),
        })
    }
}

/// How an operation ended.
pub(crate) type Outcome = std::result::Result<Ended, Box<(Error, Post)>>;

/// Where the outcome of an operation is put.
#[derive(Default)]
pub(crate) struct Slot {
    state: Mutex<SlotState>,
    ended: Condvar,
}

#[derive(Default)]
struct SlotState {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds these locks leaves its data half changed when it panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    pub fn put(&self, outcome: Outcome) {
        let mut state = lock(&self.state);
        state.outcome = Some(outcome);
        self.ended.notify_all();
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    pub fn take(&self) -> Option<Outcome> {
        lock(&self.state).outcome.take()
    }

    pub fn is_ended(&self) -> bool {
        lock(&self.state).outcome.is_some()
    }

    /// Takes the outcome, or has the waker called when it is there.
    pub fn poll(&self, waker: &Waker) -> Option<Outcome> {
        let mut state = lock(&self.state);
        let outcome = state.outcome.take();
        if outcome.is_none() {
            state.waker = Some(waker.clone());
        }
        outcome
    }

    fn wait(&self, until: Option<Instant>) {
        let mut state = lock(&self.state);
        while state.outcome.is_none() {
            let Some(until) = until else {
                state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

type Command = Box<dyn FnOnce(&mut Core) + Send>;

/// What callers and the thread share.
pub(crate) struct Shared {
    core: Mutex<Core>,
    inbox: Mutex<VecDeque<Command>>,
    wake: OwnedFd,
    /// All sockets, and `wake`.
    sockets: OwnedFd,
    /// `wake`, and `sockets` unless callers drive; the thread sleeps on it.
    gate: OwnedFd,
    /// Whether `sockets` are in the gate. Changed by whoever drives.
    is_gate_open: AtomicBool,
    /// When a caller last drove, in microseconds since the start.
    last_drive: AtomicU64,
    /// When the thread will look by itself, in microseconds since the start.
    sleeps_until: AtomicU64,
    clock: Arc<Clock>,
    /// How long to look for events before sleeping.
    spin: Duration,
}

/// While callers drive, the thread looks this often whether they still do.
const LOOK: Duration = Duration::from_millis(1);

const GATE: epoll::EventData = epoll::EventData::new_u64(0);

impl Shared {
    pub fn start(
        engine: Engine,
        listener: Option<Listener>,
        options: TcpOptions,
    ) -> Result<(Arc<Self>, std::thread::JoinHandle<()>)> {
        let failed = |attempt, source: std::io::Error| Error::Socket {
            attempt,
            address: "the driver".to_owned(),
            source: Arc::new(source),
        };
        let create = || -> rustix::io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let sockets = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let gate = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            epoll::add(&sockets, &wake, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            epoll::add(&gate, &sockets, GATE, epoll::EventFlags::IN)?;
            epoll::add(&gate, &wake, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
            Ok((wake, sockets, gate))
        };
        let (wake, sockets, gate) = create().map_err(|e| failed("create an epoll set for", e.into()))?;
        let membership = Arc::clone(engine.membership());
        let local = membership.local(engine.me()).len();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        // Spinning ranks that share a core only keep each other from working.
        let spin = if local <= cpus { options.spin } else { Duration::ZERO };
        let name = format!("muster-comm-{}", engine.me().0);
        let clock = Arc::new(Clock::new(options.timeouts.lease() / 8));
        let core = Core::new(engine, listener.map(|l| l.0), options, (&sockets, Arc::clone(&clock)))
            .map_err(|e| failed("register", e))?;
        let shared = Arc::new(Self {
            core: Mutex::new(core),
            inbox: Mutex::new(VecDeque::new()),
            wake,
            sockets,
            gate,
            is_gate_open: AtomicBool::new(true),
            last_drive: AtomicU64::new(0),
            sleeps_until: AtomicU64::new(u64::MAX),
            clock,
            spin,
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name).spawn(move || of_thread.run());
        Ok((shared, thread.map_err(|e| failed("start a thread for", e))?))
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Has the driver do something, soon.
    pub fn command(&self, command: impl FnOnce(&mut Core) + Send + 'static) {
        let mut inbox = lock(&self.inbox);
        inbox.push_back(Box::new(command));
        if inbox.len() == 1 {
            self.wake();
        }
    }

    /// Has the driver do something and waits for its answer.
    pub fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answers) = std::sync::mpsc::sync_channel(1);
        self.command(move |core| {
            // Nobody listens any more if the asking thread is gone.
            let _ = answer.send(question(core));
        });
        answers.recv().ok()
    }

    fn wake(&self) {
        // A full counter means that it is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Starts an operation. A small one goes out from here if nobody else drives.
    pub fn post(&self, post: Post, slot: Arc<Slot>, is_small: bool) {
        if is_small && let Ok(mut core) = self.core.try_lock() {
            self.take_commands(&mut core);
            core.post(post, slot);
            core.flush();
            let deadline = if core.has_more { Some(Duration::ZERO) } else { core.deadline() };
            drop(core);
            return self.wake_for(deadline);
        }
        self.command(move |core| core.post(post, slot));
    }

    /// Wakes the thread if it sleeps beyond a deadline.
    fn wake_for(&self, deadline: Option<Duration>) {
        let at = deadline.map_or(u64::MAX, |d| d.as_micros() as u64);
        // A millisecond late is fine, and spares most of the wake-ups.
        if at.saturating_add(1000) < self.sleeps_until.load(Ordering::Acquire) {
            self.wake();
        }
    }

    /// Returns when the slot has its outcome, or at `until`; drives the sockets if nobody else does.
    pub fn wait(&self, slot: &Slot, until: Option<Instant>) {
        while !slot.is_ended() && until.is_none_or(|until| Instant::now() < until) {
            let Ok(mut core) = self.core.try_lock() else {
                return slot.wait(until);
            };
            self.set_gate(false);
            self.drive(&mut core, until, || slot.is_ended());
            // The gate stays closed: a caller that waits once will wait again, and what peers send in between
            // would only wake the thread to take its core. The thread looks by itself whether that was wrong.
            let now = self.now();
            self.last_drive.store(now.as_micros() as u64, Ordering::Release);
            let look = now + LOOK;
            let deadline =
                if core.has_more { Duration::ZERO } else { core.deadline().map_or(look, |d| d.min(look)) };
            drop(core);
            self.wake_for(Some(deadline));
        }
    }

    fn set_gate(&self, open: bool) {
        if self.is_gate_open.swap(open, Ordering::AcqRel) != open {
            let flags = if open { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
            // Both are ours and open.
            let _ = epoll::modify(&self.gate, &self.sockets, GATE, flags);
        }
    }

    fn take_commands(&self, core: &mut Core) -> bool {
        let commands = std::mem::take(&mut *lock(&self.inbox));
        let any = !commands.is_empty();
        core.advance();
        for command in commands {
            command(core);
        }
        any
    }

    /// One round; sleeps up to `timeout` if there is nothing to do.
    fn turn(&self, core: &mut Core, timeout: Duration) -> bool {
        let commands = self.take_commands(core);
        let timeout = if commands { Duration::ZERO } else { timeout };
        let events = core.poll(&self.sockets, &self.wake, timeout);
        commands | events
    }

    fn drive(&self, core: &mut Core, until: Option<Instant>, is_over: impl Fn() -> bool) {
        let mut idle_since = None;
        while !is_over() {
            let now = self.now();
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return;
            }
            let spins = idle_since.is_none_or(|since| now - since < self.spin);
            let timeout = if spins {
                Duration::ZERO
            } else {
                let next = core.deadline().map(|d| d.saturating_sub(now));
                next.into_iter().chain(left).min().unwrap_or(Duration::from_secs(3600))
            };
            if self.turn(core, timeout) {
                idle_since = None;
            } else {
                idle_since.get_or_insert_with(|| self.now());
            }
        }
    }

    fn run(&self) {
        loop {
            let mut core = lock(&self.core);
            self.settle(&mut core);
            if core.is_over() {
                return core.shut_down();
            }
            let now = self.now();
            let quiet = now.saturating_sub(Duration::from_micros(self.last_drive.load(Ordering::Acquire)));
            // Operations that nobody waits for are the thread's, and everything when callers are done.
            if core.engine.operations() > 0 || quiet > LOOK / 2 {
                self.set_gate(true);
            }
            let mut deadline = core.deadline();
            if !self.is_gate_open.load(Ordering::Acquire) {
                deadline = Some(deadline.map_or(now + LOOK, |d| d.min(now + LOOK)));
            }
            self.sleeps_until.store(deadline.map_or(u64::MAX, |d| d.as_micros() as u64), Ordering::Release);
            drop(core);
            let timeout = deadline.map(|d| options::timespec(d.saturating_sub(self.now())));
            let mut events = [const { std::mem::MaybeUninit::uninit() }; 2];
            // Whatever it is, the next round finds out.
            let _ = epoll::wait(&self.gate, &mut events[..], timeout.as_ref());
        }
    }

    /// Does everything until nothing has happened for a while.
    fn settle(&self, core: &mut Core) {
        // Callers that drive spin themselves.
        let spin = if self.is_gate_open.load(Ordering::Acquire) { self.spin } else { Duration::ZERO };
        let mut idle_since = None;
        loop {
            if self.turn(core, Duration::ZERO) {
                idle_since = None;
                continue;
            }
            let since = *idle_since.get_or_insert_with(|| self.now());
            if self.now() - since >= spin {
                return;
            }
        }
    }
}
