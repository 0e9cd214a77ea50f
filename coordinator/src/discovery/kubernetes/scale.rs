//! How many pods a StatefulSet should have for the queue: a pure function of the demand.
//!
//! Growing is at once, shrinking only after a while without need. A StatefulSet always drops its highest ordinals, so one
//! that is busy keeps all that are below it.

use std::time::Duration;

use crate::discovery::Demand;
use crate::discovery::pod::ordinal;

/// A StatefulSet that may be scaled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    /// Its name.
    pub statefulset: String,
    /// Fewest pods.
    pub min: u32,
    /// Most pods.
    pub max: u32,
    /// How long pods must be without need before they are dropped.
    pub idle: Duration,
}

/// Pods that the demand needs, between the bounds.
pub fn needed(demand: &Demand, scale: &Scale) -> u32 {
    let busy = u32::try_from(demand.busy.len()).unwrap_or(u32::MAX);
    let highest = demand.busy.keys().filter_map(|name| ordinal(name)).max();
    let kept = highest.map_or(0, |highest| highest.saturating_add(1));
    busy.saturating_add(demand.wanted).max(kept).clamp(scale.min, scale.max.max(scale.min))
}

/// The number of pods that is wanted now, if it is another one. `idle` is how long fewer were needed.
pub fn decide(demand: &Demand, scale: &Scale, present: u32, idle: Duration) -> Option<u32> {
    let needed = needed(demand, scale);
    (needed > present || needed < present && idle >= scale.idle).then_some(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(busy: &[&str], wanted: u32) -> Demand {
        let busy = busy.iter().map(|name| ((*name).to_owned(), "run".to_owned())).collect();
        Demand { busy, wanted, ..Demand::default() }
    }

    #[test]
    fn pods_come_for_the_queue_and_go_after_a_while_but_never_below_one_that_is_busy() {
        let scale = Scale { statefulset: "t".into(), min: 1, max: 4, idle: Duration::from_secs(300) };
        let (now, later) = (Duration::ZERO, Duration::from_secs(300));
        assert_eq!(decide(&demand(&["t-0"], 2), &scale, 1, now), Some(3));
        assert_eq!(decide(&demand(&["t-0"], 9), &scale, 1, now), Some(4), "the bound");
        assert_eq!(decide(&demand(&[], 0), &scale, 4, now), None, "not at once");
        assert_eq!(decide(&demand(&[], 0), &scale, 4, later), Some(1));
        assert_eq!(decide(&demand(&["t-2"], 0), &scale, 4, later), Some(3), "t-2 is busy");
        assert_eq!(decide(&demand(&["t-0"], 0), &scale, 1, later), None);
    }
}
