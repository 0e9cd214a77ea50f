//! Why a rank gave up, in one word that its peers can read.

use super::error::Outside;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The culprit, a local rank, is gone or stands still.
    Lost,
    /// The culprit, a local rank, was told to stop.
    Aborted,
    /// Something that ended the whole generation; the culprit is a rank of the world.
    Outside(Outside),
}

/// A failure and who is to blame for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) why: Why,
    pub(super) culprit: u32,
    /// The operation in which it was noticed.
    pub(super) operation: u64,
}

/// Set in every failure, so that 0 is none.
const THERE: u64 = 1 << 63;
const CODE_SHIFT: u32 = 60;
const CULPRIT_SHIFT: u32 = 44;
const OPERATION: u64 = (1 << CULPRIT_SHIFT) - 1;

impl Failure {
    pub(super) fn encode(self) -> u64 {
        let code = match self.why {
            Why::Lost => 0,
            Why::Aborted => 1,
            Why::Outside(Outside::Lost) => 2,
            Why::Outside(Outside::Aborted) => 3,
            Why::Outside(Outside::Differs) => 4_u64,
        };
        let culprit = u64::from(self.culprit & 0xffff) << CULPRIT_SHIFT;
        THERE | code << CODE_SHIFT | culprit | self.operation & OPERATION
    }

    pub(super) fn decode(word: u64) -> Option<Self> {
        let why = match word >> CODE_SHIFT & 7 {
            0 => Why::Lost,
            1 => Why::Aborted,
            2 => Why::Outside(Outside::Lost),
            3 => Why::Outside(Outside::Aborted),
            _ => Why::Outside(Outside::Differs),
        };
        let culprit = (word >> CULPRIT_SHIFT & 0xffff) as u32;
        (word & THERE != 0).then_some(Self { why, culprit, operation: word & OPERATION })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_survive_their_encoding() {
        let outside = [Outside::Lost, Outside::Aborted, Outside::Differs].map(Why::Outside);
        for why in [Why::Lost, Why::Aborted].into_iter().chain(outside) {
            let failure = Failure { why, culprit: 16_383, operation: OPERATION - 1 };
            assert_eq!(Failure::decode(failure.encode()), Some(failure));
        }
        assert_eq!(Failure::decode(0), None);
    }
}
