//! What ranks are told when their agent has to end and no coordinator is there to arrange it.
//!
//! Ranks that train stop together at a step boundary, wherever they are, and one of them saves. Of ranks that wait, those
//! of one run must not save over each other: the one that is furthest does.

use std::collections::BTreeMap;

use muster_proto::v1::{RankEvent, Stop, rank_event};

/// What is known of a rank.
pub(super) struct Known<'a> {
    pub member: &'a str,
    pub run: &'a str,
    /// The last that it said of its state.
    pub last: Option<&'a RankEvent>,
}

/// What each rank is told; those that end already are told nothing.
pub(super) fn farewell(ranks: &[Known<'_>], reason: &str) -> Vec<(String, Stop)> {
    use rank_event::Event;
    let mut stops = Vec::new();
    // The furthest of those that wait, by run.
    let mut furthest: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    for rank in ranks {
        let step = match rank.last.and_then(|last| last.event.as_ref()) {
            Some(Event::Ready(ready)) => ready.step,
            Some(Event::Paused(paused)) => Some(paused.step),
            Some(Event::Broken(broken)) => broken.step,
            _ => None,
        };
        // Step 0 is the model as it was read.
        if let Some(step) = step.filter(|step| *step > 0) {
            let best = furthest.entry(rank.run).or_insert((step, rank.member));
            if step > best.0 {
                *best = (step, rank.member);
            }
        }
    }
    // Who waits has nothing to save while others of its run train on.
    let trains = |run: &str| {
        let mut same = ranks.iter().filter(|rank| rank.run == run);
        same.any(|rank| matches!(event(rank), Some(Event::Running(_))))
    };
    for rank in ranks {
        let save = match event(rank) {
            Some(Event::Running(_)) => true,
            Some(Event::Finished(_) | Event::Stopped(_) | Event::Failed(_)) => continue,
            _ => {
                !trains(rank.run) && furthest.get(rank.run).is_some_and(|(_, member)| *member == rank.member)
            }
        };
        stops.push((rank.member.to_owned(), Stop { save, reason: reason.into() }));
    }
    stops
}

fn event<'a>(rank: &'a Known<'_>) -> Option<&'a rank_event::Event> {
    rank.last?.event.as_ref()
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{Broken, Ready, Running, Stopped};

    use super::*;

    fn told(ranks: &[(&str, &str, Option<rank_event::Event>)]) -> Vec<(String, bool)> {
        let events: Vec<_> = ranks
            .iter()
            .map(|(_, _, event)| event.clone().map(|event| RankEvent { event: Some(event) }))
            .collect();
        let known: Vec<_> = ranks
            .iter()
            .zip(&events)
            .map(|((member, run, _), last)| Known { member, run, last: last.as_ref() })
            .collect();
        farewell(&known, "the node ends").into_iter().map(|(member, stop)| (member, stop.save)).collect()
    }

    #[test]
    fn ranks_that_train_all_stop_and_of_those_that_wait_one_saves() {
        use rank_event::Event;
        let running = || Some(Event::Running(Running { generation: 3, ..Running::default() }));
        let broken = |step| Some(Event::Broken(Broken { step: Some(step), ..Broken::default() }));
        let both = [("a", true), ("b", true)].map(|(m, s)| (m.to_owned(), s));
        assert_eq!(told(&[("a", "r", running()), ("b", "r", running())]), both);
        let ranks = [
            ("a", "r", broken(7)),
            ("b", "r", broken(8)),
            ("c", "r", Some(Event::Ready(Ready::default()))),
            ("d", "s", broken(2)),
            ("e", "s", Some(Event::Stopped(Stopped::default()))),
            ("f", "s", None),
        ];
        let wanted = [("a", false), ("b", true), ("c", false), ("d", true), ("f", false)];
        assert_eq!(told(&ranks), wanted.map(|(m, s)| (m.to_owned(), s)));
    }
}
