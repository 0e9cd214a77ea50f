//! Waiting for a peer: a short spin where there are cores to spare, then sleep, and an error if there is no
//! hope.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use super::error::{Cause, ShmError, Stage};
use super::failure::{Failure, Why};
use super::memory::Memory;
use super::protocol::{Word, post, reached};
use super::watch::{Local, ring};

/// How long to spin: waking a sleeper takes about as long.
const SPIN: Duration = Duration::from_micros(30);
/// Looks without a pause, which takes as long as a message between two cores.
const EAGER: usize = 200;
/// Looks between two looks at the clock.
const LOOKS: usize = 32;

/// This rank among its peers.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) me: usize,
    /// Everybody's memory, in rank order.
    pub(super) members: Vec<Arc<Memory>>,
    pub(super) local: Arc<Local>,
    /// Whether ranks have a core each.
    pub(super) spins: bool,
    pub(super) deadline: Duration,
    /// The operation under way, or the last one.
    pub(super) operation: u64,
}

impl Peers {
    pub(super) fn ranks(&self) -> usize {
        self.members.len()
    }

    pub(super) fn own(&self) -> &Memory {
        &self.members[self.me]
    }

    /// All others, beginning with the next.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, n) = (self.me, self.ranks());
        (1..n).map(move |d| (me + d) % n)
    }

    /// Publishes a value of one of the own words.
    pub(super) fn post(&self, word: &AtomicU64, value: u64) {
        post(word, value);
        for peer in self.others() {
            let bell = self.members[peer].bell();
            if bell.ring(self.me) {
                wake(&bell.rung);
            }
        }
    }

    /// Publishes a value of a word of the own progress.
    pub(super) fn advance(&self, word: Word, value: u64) {
        self.post(word(self.own().progress()), value);
    }

    /// Waits until a word of everybody else's progress has come so far.
    pub(super) fn wait_all(&self, word: Word, value: u64, stage: Stage) -> Result<(), ShmError> {
        for peer in self.others() {
            self.wait(peer, word(self.members[peer].progress()), value, stage)?;
        }
        Ok(())
    }

    /// Waits until a word of a peer has come so far.
    #[inline]
    pub(super) fn wait(
        &self,
        peer: usize,
        word: &AtomicU64,
        value: u64,
        stage: Stage,
    ) -> Result<(), ShmError> {
        if reached(word, value) || self.spin(word, value) {
            return Ok(());
        }
        self.sleep(peer, word, value, stage)
    }

    fn spin(&self, word: &AtomicU64, value: u64) -> bool {
        if !self.spins {
            return false;
        }
        if (0..EAGER).any(|_| reached(word, value)) {
            return true;
        }
        let start = Instant::now();
        while start.elapsed() < SPIN {
            for _ in 0..LOOKS {
                if reached(word, value) {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        false
    }

    #[cold]
    fn sleep(&self, peer: usize, word: &AtomicU64, value: u64, stage: Stage) -> Result<(), ShmError> {
        let bell = self.own().bell();
        let (mut waited, mut seen) = (Duration::ZERO, self.activity());
        let result = loop {
            let ticket = bell.announce(peer);
            if reached(word, value) {
                break Ok(());
            }
            if let Some(error) = self.trouble(peer, stage, self.operation) {
                // What was posted before the trouble counts.
                break if reached(word, value) { Ok(()) } else { Err(error) };
            }
            let left = self.deadline.saturating_sub(waited);
            if left.is_zero() {
                break Err(self.blame(peer, waited, stage));
            }
            let (before, nap) = (Instant::now(), left.min(self.deadline / 4));
            sleep_at(&bell.rung, ticket, nap);
            // Not more than the nap: who was stopped meanwhile has no right to blame others.
            waited += before.elapsed().min(nap);
            let now = self.activity();
            if now != seen {
                (waited, seen) = (Duration::ZERO, now);
            }
        };
        bell.retire();
        result
    }

    /// Changes when anybody else moves.
    fn activity(&self) -> u64 {
        self.others().map(|peer| self.pace(peer).iter().sum::<u64>()).fold(0, u64::wrapping_add)
    }

    /// How far a peer is: its operation, then what it has done in there.
    fn pace(&self, peer: usize) -> [u64; 3] {
        let memory = &self.members[peer];
        let begun = memory.line(self.operation).seq.load(Ordering::Relaxed);
        let p = memory.progress();
        let finished = [&p.arrived, &p.reduced, &p.consumed, &p.done].map(|w| w.load(Ordering::Relaxed));
        [begun, finished.iter().sum(), p.beats.load(Ordering::Relaxed)]
    }

    /// Why the peer won't come. Who failed in an operation after `last` may still end this one.
    fn trouble(&self, peer: usize, stage: Stage, last: u64) -> Option<ShmError> {
        if let Some(failure) = self.local.ended() {
            return Some(self.error_of(self.me, failure, stage));
        }
        if let Some(failure) = self.failure_of(peer, last) {
            return Some(self.error_of(peer, failure, stage));
        }
        // Others that have given up matter only if they gave up on the one that this rank waits for: who waits
        // for somebody else may still end the operation.
        let on_peer = |f: Failure| f.why == Why::Lost && f.culprit as usize == peer;
        if let Some(by) = self.others().find(|&rank| self.failure_of(rank, last).is_some_and(on_peer)) {
            return Some(self.lost(peer, stage, Cause::ReportedBy(by)));
        }
        let gone = self.local.lost[peer].load(Ordering::Acquire);
        gone.then(|| self.lost(peer, stage, Cause::Gone))
    }

    /// Why a peer gave up, if that was not after operation `last`.
    fn failure_of(&self, peer: usize, last: u64) -> Option<Failure> {
        let word = self.members[peer].progress().failed.load(Ordering::Acquire);
        Failure::decode(word).filter(|f| f.operation <= last)
    }

    /// The error of this rank that follows from the failure of another, or of its own from elsewhere.
    fn error_of(&self, by: usize, failure: Failure, stage: Stage) -> ShmError {
        let (me, operation, culprit) = (self.me, self.operation, failure.culprit as usize);
        match failure.why {
            Why::Aborted => ShmError::Aborted { by: culprit, operation },
            Why::Outside(what) => ShmError::Outside { me, by, rank: failure.culprit, what, operation },
            Why::Lost if culprit == me => ShmError::Evicted { me, by, operation },
            Why::Lost => self.lost(culprit, stage, Cause::ReportedBy(by)),
        }
    }

    /// Shows that this rank works, outside of an operation that others wait for, and finds out whether everybody
    /// else does: the next operation needs them all.
    pub(super) fn look(&self) -> Result<(), ShmError> {
        self.beat()?;
        match self.others().find_map(|peer| self.trouble(peer, Stage::Begin, u64::MAX)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn lost(&self, peer: usize, stage: Stage, cause: Cause) -> ShmError {
        ShmError::PeerLost { me: self.me, peer, operation: self.operation, stage, cause }
    }

    /// Names the one that is furthest behind: others may be waiting for it themselves.
    fn blame(&self, waiting_for: usize, waited: Duration, stage: Stage) -> ShmError {
        // The one waited for comes first, so that it is named among equals.
        let all = std::iter::once(waiting_for).chain(self.others());
        let peer = all.min_by_key(|&peer| self.pace(peer)[..2].to_vec()).unwrap_or(waiting_for);
        self.lost(peer, stage, Cause::Silent(waited))
    }

    /// Tells everybody that this rank has given up.
    pub(super) fn tell(&self, error: &ShmError) {
        let local = error.culprit().unwrap_or(self.me) as u32;
        let (why, culprit) = match error {
            ShmError::Aborted { .. } => (Why::Aborted, local),
            ShmError::Outside { rank, what, .. } => (Why::Outside(*what), *rank),
            _ => (Why::Lost, local),
        };
        let failure = Failure { why, culprit, operation: self.operation };
        post(&self.own().progress().failed, failure.encode());
        self.others().for_each(|peer| ring(&self.members[peer]));
    }

    /// Shows that this rank works, and finds out whether it should.
    pub(super) fn beat(&self) -> Result<(), ShmError> {
        let beats = &self.own().progress().beats;
        beats.store(beats.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        match self.local.ended() {
            Some(failure) => Err(self.error_of(self.me, failure, Stage::Begin)),
            None => Ok(()),
        }
    }
}

/// Sleeps while the word is `value`, at most so long; may return early.
fn sleep_at(word: &AtomicU32, value: u32, at_most: Duration) {
    let timeout = Timespec::try_from(at_most).ok();
    // Every error (the word has changed, a signal came, time is over) means: look again.
    let _ = futex::wait(word, futex::Flags::empty(), value, timeout.as_ref());
}

/// Wakes whoever sleeps at a word, in any process.
pub(super) fn wake(word: &AtomicU32) {
    // Waking can't fail: the word is valid memory.
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}
