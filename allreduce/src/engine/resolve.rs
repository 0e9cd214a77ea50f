//! What becomes of the operations under way when members are gone: a pure function of what the survivors hold.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use muster_proto::{Generation, Rank};

use super::op::Op;
use super::{Engine, Scope};
use crate::error::Error;

/// What one survivor holds of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Elements of the whole result; equal at every rank.
    pub count: u64,
    /// Ranges of the result that are final here.
    pub held: Vec<Range<u64>>,
    /// Whether the contribution can be sent again.
    pub is_input_intact: bool,
    /// Whether the caller may have been told that the operation is done.
    pub is_done: bool,
}

/// What one survivor reports of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpReport {
    /// Number of the operation.
    pub sequence: u64,
    /// Its name.
    pub name: String,
    /// What the rank holds.
    pub holding: Holding,
}

/// What one survivor reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The survivor's rank in the frozen generation.
    pub rank: Rank,
    /// The generation that is frozen.
    pub generation: Generation,
    /// Operations since the last commit, in order.
    pub operations: Vec<OpReport>,
}

/// What may be mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Each operation on its own: those that can be completed contain the lost ranks, the others do not.
    PerOperation,
    /// All or nothing: if one operation can't be completed, all are retried.
    Uniform,
}

/// What becomes of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// Every element of the result exists: survivors fetch what they lack, with the bits of the run without failure.
    Complete {
        /// For each range of elements, in order and without gaps, a rank that holds it.
        holders: Vec<(Range<u64>, Rank)>,
    },
    /// The survivors repeat the operation from their inputs.
    Retry,
    /// The step must be computed again.
    Discard,
}

/// Decides for every operation that a survivor knows.
///
/// An operation that a survivor may have seen done is never retried alone: that survivor holds all of it, so it can
/// be completed.
pub fn resolve(reports: &[Report], policy: Policy) -> BTreeMap<u64, Resolution> {
    let mut known: BTreeMap<u64, Vec<(Rank, Option<&Holding>)>> = BTreeMap::new();
    for sequence in reports.iter().flat_map(|r| r.operations.iter().map(|o| o.sequence)) {
        known.entry(sequence).or_insert_with(|| {
            let of =
                |r: &'_ Report| -> Option<usize> { r.operations.iter().position(|o| o.sequence == sequence) };
            reports.iter().map(|r| (r.rank, of(r).map(|i| &r.operations[i].holding))).collect()
        });
    }
    let mut resolved: BTreeMap<u64, Resolution> =
        known.iter().map(|(sequence, holdings)| (*sequence, resolve_one(holdings))).collect();
    let all_complete = resolved.values().all(|r| matches!(r, Resolution::Complete { .. }));
    if policy == Policy::Uniform && !all_complete {
        let intact = known.values().flatten().all(|(_, h)| h.is_none_or(|h| h.is_input_intact));
        let fate = if intact { Resolution::Retry } else { Resolution::Discard };
        resolved.values_mut().for_each(|r| *r = fate.clone());
    }
    resolved
}

fn resolve_one(holdings: &[(Rank, Option<&Holding>)]) -> Resolution {
    let known = || holdings.iter().filter_map(|(rank, h)| Some((*rank, (*h)?)));
    let count = known().map(|(_, h)| h.count).max().unwrap_or(0);
    let mut holders = Vec::new();
    let mut at = 0;
    while at < count {
        // The one that holds most from here on; the lowest rank among equals.
        let best = known()
            .filter_map(|(rank, h)| {
                let whole = 0..count;
                let held = if h.is_done { std::slice::from_ref(&whole) } else { &h.held[..] };
                let end = held.iter().find(|r| r.contains(&at)).map(|r| r.end)?;
                Some((end, std::cmp::Reverse(rank)))
            })
            .max();
        let Some((end, rank)) = best else { break };
        holders.push((at..end, rank.0));
        at = end;
    }
    let done = known().any(|(_, h)| h.is_done);
    if at >= count && (count > 0 || done) {
        return Resolution::Complete { holders };
    }
    // A survivor that hasn't posted the operation has its input still to itself.
    if known().all(|(_, h)| h.is_input_intact) { Resolution::Retry } else { Resolution::Discard }
}

/// Most ended operations that are remembered for a report; a step has far fewer.
const MAX_REMEMBERED: usize = 1 << 16;

impl Engine {
    /// Ends what is under way, without a word to the peers, and reports what this rank holds of each operation of
    /// the world since the last commit.
    pub fn freeze(&mut self, now: Duration) -> Report {
        self.now = now;
        if self.failed.is_none() {
            let error = Error::Aborted { peer: self.me, reason: "the generation is frozen".to_owned() };
            self.fail_quietly(error);
        }
        let operations = self.ended.iter().cloned().collect();
        Report { rank: self.me, generation: self.generation(), operations }
    }

    /// The caller has made the results of all ended operations part of its state: none will be resolved again.
    pub fn commit(&mut self) {
        self.ended.clear();
    }

    /// Remembers what is held of an operation that ended.
    pub(super) fn remember(&mut self, op: &Op, held: &[Range<u64>], is_done: bool) {
        if op.key.scope != Scope::World {
            return;
        }
        if self.ended.len() >= MAX_REMEMBERED {
            self.ended.pop_front();
        }
        let (count, held) = (op.plan.output_len, held.to_vec());
        let holding = Holding { count, held, is_input_intact: !op.in_place(), is_done };
        self.ended.push_back(OpReport { sequence: op.key.sequence, name: op.name.clone(), holding });
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges that have one")]
mod tests {
    use super::*;

    fn report(rank: u32, holdings: &[(u64, &[Range<u64>], bool, bool)]) -> Report {
        let operations = holdings.iter().map(|(sequence, held, is_input_intact, is_done)| OpReport {
            sequence: *sequence,
            name: String::new(),
            holding: Holding {
                count: 100,
                held: held.to_vec(),
                is_input_intact: *is_input_intact,
                is_done: *is_done,
            },
        });
        Report { rank: Rank(rank), generation: Generation(1), operations: operations.collect() }
    }

    #[test]
    fn an_operation_is_completed_if_survivors_hold_all_of_it() {
        let reports =
            [report(0, &[(4, &[0..60], true, false)]), report(2, &[(4, &[0..20, 50..100], true, false)])];
        let resolved = resolve(&reports, Policy::Uniform);
        let holders = vec![(0..60, Rank(0)), (60..100, Rank(2))];
        assert_eq!(resolved[&4], Resolution::Complete { holders });
    }

    #[test]
    fn what_a_caller_may_have_seen_is_never_retried() {
        let reports = [report(0, &[(4, &[], true, true)]), report(1, &[(4, &[], true, false)])];
        let whole = vec![(0..100, Rank(0))];
        assert_eq!(resolve(&reports, Policy::PerOperation)[&4], Resolution::Complete { holders: whole });
    }

    #[test]
    fn otherwise_inputs_decide() {
        let retry = [report(0, &[(4, &[0..99], true, false)]), report(1, &[])];
        assert_eq!(resolve(&retry, Policy::PerOperation)[&4], Resolution::Retry);
        let discard = [report(0, &[(4, &[0..99], true, false)]), report(1, &[(4, &[], false, false)])];
        assert_eq!(resolve(&discard, Policy::PerOperation)[&4], Resolution::Discard);
    }

    #[test]
    fn the_uniform_policy_mixes_no_contributors() {
        let reports = [report(0, &[(4, &[0..100], true, true), (5, &[], true, false)])];
        let separate = resolve(&reports, Policy::PerOperation);
        assert!(matches!(separate[&4], Resolution::Complete { .. }) && separate[&5] == Resolution::Retry);
        let uniform = resolve(&reports, Policy::Uniform);
        assert!(uniform.values().all(|r| *r == Resolution::Retry));
    }
}
