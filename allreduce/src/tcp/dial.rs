//! When to dial a peer, and where.

use std::time::Duration;

/// First and longest pause between attempts.
const PAUSE: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(200)];

/// The attempts to reach one peer.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Dialler {
    /// Streams that are wanted; 0 for a peer that nobody needs, or that dials itself.
    pub streams: usize,
    /// Connections that are being opened.
    pub opening: usize,
    /// Not before this time.
    pub not_before: Duration,
    failures: u32,
}

impl Dialler {
    /// How many connections to open now.
    pub fn due(&self, open: usize, now: Duration) -> usize {
        if now < self.not_before { 0 } else { self.streams.saturating_sub(open + self.opening) }
    }

    /// When to look again, if streams are missing.
    pub fn next(&self, open: usize) -> Option<Duration> {
        (self.streams > open + self.opening).then_some(self.not_before)
    }

    /// Which of a peer's addresses to try.
    pub fn address(&self, addresses: usize) -> usize {
        self.failures as usize % addresses.max(1)
    }

    /// An attempt failed. `jitter` is any number; it keeps ranks from dialling in step.
    pub fn failed(&mut self, now: Duration, jitter: u32) {
        self.failures = self.failures.saturating_add(1);
        let pause = (PAUSE[0] * 2_u32.pow(self.failures.min(8))).min(PAUSE[1]);
        self.not_before = now + pause / 2 + pause * (jitter % 64) / 128;
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.not_before = Duration::ZERO;
    }

    /// Whether every address was tried since the last success.
    pub fn tried(&self, addresses: usize) -> bool {
        self.failures as usize >= addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_addresses_take_turns() {
        let mut d = Dialler { streams: 2, ..Dialler::default() };
        assert_eq!((d.due(0, Duration::ZERO), d.due(1, Duration::ZERO), d.due(2, Duration::ZERO)), (2, 1, 0));
        let mut at = Duration::ZERO;
        for i in 0..20 {
            assert_eq!(d.address(3), i % 3);
            d.failed(at, 7);
            assert!(d.not_before > at && d.not_before <= at + PAUSE[1]);
            assert_eq!(d.due(0, at), 0);
            at = d.not_before;
        }
        assert!(d.tried(3) && d.next(0) == Some(at));
        d.succeeded();
        assert!(!d.tried(1) && d.next(2).is_none());
    }
}
