//! Time as a communicator counts it: without the time in which its process was stopped.
//!
//! Who was stopped has no right to blame others for being late: after it goes on, what they sent meanwhile (that they
//! gave it up, perhaps) must be read before any deadline passes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time since the start, without stops.
#[derive(Debug)]
pub(super) struct Clock {
    start: Instant,
    skipped_us: AtomicU64,
    /// How late a deadline may be looked at on a busy machine.
    slack: Duration,
}

impl Clock {
    pub fn new(slack: Duration) -> Self {
        Self { start: Instant::now(), skipped_us: AtomicU64::new(0), slack }
    }

    pub fn now(&self) -> Duration {
        let skipped = Duration::from_micros(self.skipped_us.load(Ordering::Acquire));
        self.start.elapsed().saturating_sub(skipped)
    }

    /// The time for whoever drives: it last looked at `last`, and had to look again at `deadline`. Only one thread at
    /// a time may drive.
    pub fn next(&self, last: Duration, deadline: Option<Duration>) -> Duration {
        let now = self.now();
        let stopped = deadline.is_some_and(|due| last <= due && now > due + self.slack);
        if !stopped {
            return now;
        }
        // When it was stopped is unknown; that it was then as late as now costs the others at most one wait.
        let gap = now.saturating_sub(last);
        self.skipped_us.fetch_add(gap.as_micros() as u64, Ordering::AcqRel);
        self.now().max(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_was_slept_through_stops_the_clock() {
        let clock = Clock::new(Duration::from_millis(20));
        let last = clock.now();
        let due = last + Duration::from_millis(5);
        // Being late is what is tried.
        std::thread::sleep(Duration::from_millis(60));
        assert!(clock.now() > due);
        let next = clock.next(last, Some(due));
        assert!(next < due, "the time before the deadline is there again: {next:?}");
        assert!(clock.next(next, Some(due)) < due);
        assert!(clock.next(next, None) >= next);
        // A deadline that had passed already when it was last looked at says nothing.
        let late = clock.now();
        std::thread::sleep(Duration::from_millis(30));
        assert!(clock.next(late, Some(Duration::ZERO)) >= late + Duration::from_millis(30));
    }
}
