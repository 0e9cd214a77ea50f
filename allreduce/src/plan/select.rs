//! Chooses the algorithm and the sizes of an operation, and says why.

use std::fmt::Write as _;

use super::cost::Job;
use super::{Algorithm, Group, Kind, Tuning};
use crate::membership::CostModel;

/// Smallest and largest segment, in bytes. A segment should stay in the second-level cache until it is reduced.
const SEGMENT_BYTES: [f64; 2] = [65_536.0, 262_144.0];
/// Reduction time per byte of a segment in cache, in nanoseconds.
const REDUCE_NS: f64 = 0.1;
/// Broadcasts up to this size go down a tree.
const TREE_BYTES: u64 = 64 << 10;

/// What was chosen for an operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Segment size and window.
    pub tuning: Tuning,
    /// The reason in words.
    pub why: String,
}

/// Chooses for an operation of a group; a pure function of its arguments, so every rank chooses the same.
///
/// `element_bytes` and `partial_bytes` are sizes on the wire.
pub fn select(
    kind: &Kind,
    group: &Group,
    element_bytes: u64,
    partial_bytes: u64,
    costs: &CostModel,
) -> Choice {
    let n = group.len() as u64;
    let widen = |count: u64| count.saturating_mul(element_bytes);
    let link = if group.nodes().len() > 1 { &costs.between_nodes } else { &costs.within_node };
    let (total, share) = match kind {
        Kind::AllReduce { count, .. } => {
            (widen(*count), if n == 2 { widen(*count) } else { widen(*count) / n.max(1) })
        }
        Kind::ReduceScatter { counts } | Kind::AllGather { counts } => {
            let total = counts.iter().fold(0_u64, |sum, &c| sum.saturating_add(c));
            (widen(total), widen(total) / n.max(1))
        }
        Kind::Broadcast { count, .. } | Kind::Transfer { count } => (widen(*count), widen(*count)),
    };
    let tuning =
        Tuning { segment_bytes: segment_bytes(share, link.overhead_us, link.beta_ns), ..Tuning::default() };
    let (algorithm, why) = match kind {
        _ if n == 1 => (Algorithm::OneShot, "one rank has nobody to talk to".to_owned()),
        Kind::AllReduce { count, .. } => {
            let job = Job {
                group,
                costs,
                bytes: total as f64,
                partial_bytes: count.saturating_mul(partial_bytes) as f64,
                segment_bytes: tuning.segment_bytes as f64,
            };
            cheapest(&job)
        }
        Kind::ReduceScatter { .. } | Kind::AllGather { .. } if group.len() > costs.fan_in_max => {
            (Algorithm::Ring, format!("{n} ranks are more than may send to one at once"))
        }
        Kind::ReduceScatter { .. } | Kind::AllGather { .. } => {
            (Algorithm::Direct, format!("{n} ranks may send to each other directly"))
        }
        Kind::Broadcast { .. } if n > 2 && total > TREE_BYTES && group.len() <= costs.fan_in_max => {
            (Algorithm::Direct, format!("{total} bytes are worth a scatter and a gather"))
        }
        Kind::Broadcast { .. } => (Algorithm::Doubling, format!("a tree has few steps for {total} bytes")),
        Kind::Transfer { .. } => (Algorithm::OneShot, "a transfer has one way".to_owned()),
    };
    Choice { algorithm, tuning, why }
}

/// The segment at which the time to fill the pipeline equals the cost of cutting: sqrt(S o / (beta + gamma)).
fn segment_bytes(share: u64, overhead_us: f64, beta_ns: f64) -> u64 {
    let best = (share as f64 * overhead_us * 1e3 / (beta_ns + REDUCE_NS)).sqrt();
    let [least, most] = SEGMENT_BYTES;
    let bytes = if share <= 262_144 { least } else { best.clamp(least, most) };
    (bytes as u64) / 4096 * 4096
}

fn cheapest(job: &Job<'_>) -> (Algorithm, String) {
    let mut best: Option<(Algorithm, f64)> = None;
    let mut why = format!("{} ranks, {} bytes:", job.group.len(), job.bytes);
    for algorithm in Algorithm::ALL {
        let name = algorithm.name();
        // Writing to a string can't fail.
        let _ = match job.all_reduce(algorithm) {
            Ok(us) => {
                if best.is_none_or(|(_, least)| us < least) {
                    best = Some((algorithm, us));
                }
                write!(why, " {name} {us:.0} us,")
            }
            Err(reason) => write!(why, " {name} out ({reason}),"),
        };
    }
    why.pop();
    // Doubling or the ring is always possible.
    let algorithm = best.map_or(Algorithm::Ring, |(algorithm, _)| algorithm);
    (algorithm, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(count: u64, nodes: &[usize]) -> Choice {
        let kind = Kind::AllReduce { count, in_place: false };
        select(&kind, &Group::world(nodes), 4, 4, &CostModel::default())
    }

    #[test]
    fn size_and_world_decide() {
        assert_eq!(choose(1 << 26, &[2]).algorithm, Algorithm::OneShot);
        assert_eq!(choose(16, &[4]).algorithm, Algorithm::OneShot);
        assert_eq!(choose(1 << 24, &[4]).algorithm, Algorithm::Direct);
        assert_eq!(choose(16, &[1; 64]).algorithm, Algorithm::Doubling);
        assert_eq!(choose(1 << 26, &[1; 64]).algorithm, Algorithm::Ring);
        assert_eq!(choose(1 << 24, &[4, 4, 4]).algorithm, Algorithm::Hierarchical);
        assert_ne!(choose(1 << 24, &[4, 4, 3]).algorithm, Algorithm::Hierarchical);
    }

    #[test]
    fn the_reason_names_every_algorithm() {
        let why = choose(1 << 24, &[4]).why;
        for algorithm in Algorithm::ALL {
            assert!(why.contains(algorithm.name()), "{why}");
        }
        assert!(why.contains("hierarchical out (there is one level only)"), "{why}");
    }

    #[test]
    fn segments_grow_with_the_share_and_stay_in_cache() {
        assert_eq!(choose(1 << 10, &[2]).tuning.segment_bytes, 65_536);
        assert_eq!(choose(1 << 26, &[2]).tuning.segment_bytes, 262_144);
    }
}
