//! Notices at once that a peer's process is gone: its socket hangs up, or its pidfd becomes readable.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::error::{Outside, ShmError};
use super::failure::{Failure, Why};
use super::memory::Memory;
use super::wait::wake;

/// What the thread, the operations and abort handles of one rank share.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) me: usize,
    /// Everybody's memory, in rank order.
    members: Vec<Arc<Memory>>,
    /// Which peers are gone.
    pub(super) lost: Box<[AtomicBool]>,
    /// Why this rank shall give up; see [`Failure`].
    ended: AtomicU64,
}

impl Local {
    pub(super) fn new(me: usize, members: Vec<Arc<Memory>>) -> Arc<Self> {
        let lost = members.iter().map(|_| AtomicBool::new(false)).collect();
        Arc::new(Self { me, members, lost, ended: AtomicU64::new(0) })
    }

    /// Why this rank shall give up, if it shall.
    pub(super) fn ended(&self) -> Option<Failure> {
        Failure::decode(self.ended.load(Ordering::Acquire))
    }

    /// Who gave up on this rank, which is `rank` of the world.
    pub(super) fn accused_by(&self, rank: u32) -> Option<usize> {
        let accuses = |memory: &Arc<Memory>| {
            let word = memory.progress().failed.load(Ordering::Acquire);
            Failure::decode(word).is_some_and(|f| match f.why {
                Why::Lost => f.culprit as usize == self.me,
                Why::Outside(Outside::Lost) => f.culprit == rank,
                _ => false,
            })
        };
        (0..self.members.len()).filter(|&by| by != self.me).find(|&by| accuses(&self.members[by]))
    }

    /// Makes this rank give up, and tells everybody; the first reason stays.
    pub(super) fn end(&self, why: Why, culprit: u32) {
        let own = &self.members[self.me];
        let begun = own.begun();
        let now = Failure { why, culprit, operation: begun };
        let _ = self.ended.compare_exchange(0, now.encode(), Ordering::SeqCst, Ordering::Relaxed);
        // The operation that was begun may be over, and then it has failed nobody. If it is not it fails now, and
        // says so itself.
        let next = Failure { operation: begun + 1, ..now };
        let failed = &own.progress().failed;
        let _ = failed.compare_exchange(0, next.encode(), Ordering::SeqCst, Ordering::Relaxed);
        self.members.iter().for_each(|memory| ring(memory));
    }
}

/// Makes a rank look around if it sleeps.
pub(super) fn ring(memory: &Memory) {
    let word = &memory.bell().rung;
    word.fetch_add(1, Ordering::SeqCst);
    wake(word);
}

/// A connection to a peer, and its process.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: usize,
    pub(super) socket: OwnedFd,
    pub(super) pid: Option<Pid>,
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(me: usize, local: Arc<Local>, links: Vec<Link>) -> Result<Self, ShmError> {
        let system = |attempt: &str, e: std::io::Error| ShmError::System {
            me,
            attempt: attempt.into(),
            source: Arc::new(e),
        };
        let stop = Arc::new(
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|e| system("make an eventfd", e.into()))?,
        );
        let until = stop.clone();
        let thread = std::thread::Builder::new()
            .name("muster-shm-watch".into())
            .spawn(move || watch(&local, links, &until))
            .map_err(|e| system("start the thread that watches its peers", e))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Fails only if the counter is full, and then it is readable already.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It can't panic, and if it has, it has ended.
            let _ = thread.join();
        }
    }
}

fn watch(local: &Local, links: Vec<Link>, stop: &OwnedFd) {
    // A process may leave its sockets to children; then only its pidfd tells. Ranks that are threads of this
    // process have none, nor do those of another pid namespace.
    let mut watched: Vec<(usize, OwnedFd)> = Vec::new();
    for link in links {
        let foreign = link.pid.filter(|&pid| pid != getpid());
        watched.extend(
            foreign.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).map(|fd| (link.peer, fd)),
        );
        watched.push((link.peer, link.socket));
    }
    while !watched.is_empty() {
        let mut fds: Vec<PollFd<'_>> =
            watched.iter().map(|(_, fd)| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
        fds.push(PollFd::new(stop, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Out of memory: nothing to do but to leave losses to the progress deadline.
            Err(_) => return,
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>();
        if ready.pop() == Some(true) {
            return;
        }
        let mut any = false;
        let mut ready = ready.into_iter();
        watched.retain(|&(peer, _)| {
            // Nobody sends anything after the handshake, so readable means closed.
            let gone = ready.next() == Some(true);
            if gone {
                local.lost[peer].store(true, Ordering::Release);
                any = true;
            }
            !gone
        });
        if any {
            ring(&local.members[local.me]);
        }
    }
}
