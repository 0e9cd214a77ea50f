//! What a rank has of the machine, as numbers for reports.

use serde::{Deserialize, Serialize};

use super::{OwnMemory, Throttling};

/// Where a process runs and what it gets of it. Counters are those since it was first asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Place {
    /// Physical cores that it may use.
    pub cores: u32,
    /// Compute threads on them.
    pub threads: u32,
    /// Whether each compute thread has a CPU of its own.
    pub is_pinned: bool,
    /// Own memory that was found, in bytes.
    pub memory_bytes: u64,
    /// Part of it on the NUMA nodes of its CPUs.
    pub local_bytes: u64,
    /// Periods in which its group ran under a CPU quota.
    pub periods: u64,
    /// Periods in which the quota stopped the group.
    pub throttled_periods: u64,
    /// Time for which it was stopped, in microseconds, summed over threads.
    pub throttled_us: u64,
    /// Times that it was bound anew because what it may use changed.
    pub rebinds: u32,
}

/// Words of a place on the wire.
const WORDS: usize = 9;

impl Place {
    /// How many words [`Place::words`] has.
    pub const WORDS: usize = WORDS;

    /// Share of the own memory on the own NUMA nodes; none if memory was not looked at.
    pub fn local_share(&self) -> Option<f64> {
        OwnMemory { bytes: self.memory_bytes, local_bytes: self.local_bytes }.local_share()
    }

    /// Share of the periods in which the quota stopped the group; none without a quota.
    pub fn throttled_share(&self) -> Option<f64> {
        (self.periods > 0).then(|| self.throttled_periods as f64 / self.periods as f64)
    }

    /// As numbers, for other ranks.
    pub fn words(&self) -> [i64; WORDS] {
        [
            i64::from(self.cores),
            i64::from(self.threads),
            i64::from(self.is_pinned),
            self.memory_bytes as i64,
            self.local_bytes as i64,
            self.periods as i64,
            self.throttled_periods as i64,
            self.throttled_us as i64,
            i64::from(self.rebinds),
        ]
    }

    /// From the numbers of another rank; missing ones are 0.
    pub fn from_words(words: &[i64]) -> Self {
        let word = |i: usize| words.get(i).copied().unwrap_or(0);
        Self {
            cores: word(0) as u32,
            threads: word(1) as u32,
            is_pinned: word(2) != 0,
            memory_bytes: word(3) as u64,
            local_bytes: word(4) as u64,
            periods: word(5) as u64,
            throttled_periods: word(6) as u64,
            throttled_us: word(7) as u64,
            rebinds: word(8) as u32,
        }
    }

    pub(super) fn set_throttling(&mut self, throttling: Throttling) {
        self.periods = throttling.periods;
        self.throttled_periods = throttling.throttled;
        self.throttled_us = throttling.throttled_us;
    }

    pub(super) fn set_memory(&mut self, memory: OwnMemory) {
        self.memory_bytes = memory.bytes;
        self.local_bytes = memory.local_bytes;
    }
}

impl From<Place> for muster_proto::v1::Place {
    fn from(place: Place) -> Self {
        Self {
            cores: place.cores,
            threads: place.threads,
            is_pinned: place.is_pinned,
            memory_bytes: place.memory_bytes,
            local_bytes: place.local_bytes,
            periods: place.periods,
            throttled_periods: place.throttled_periods,
            throttled_us: place.throttled_us,
            rebinds: place.rebinds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_the_wire_and_has_shares_only_of_what_is_known() {
        let place = Place {
            cores: 27,
            threads: 26,
            is_pinned: true,
            memory_bytes: 1 << 40,
            local_bytes: 3 << 38,
            periods: 10,
            throttled_periods: 1,
            throttled_us: u64::MAX,
            rebinds: 2,
        };
        assert_eq!(Place::from_words(&place.words()), place);
        assert_eq!(place.words().len(), Place::WORDS);
        assert_eq!((place.local_share(), place.throttled_share()), (Some(0.75), Some(0.1)));
        assert_eq!((Place::default().local_share(), Place::default().throttled_share()), (None, None));
    }
}
