//! Where this process computes, for as long as it trains.
//!
//! An agent deals CPUs to a rank; a cpuset, a quota or `taskset` may change what is left of them at any time
//! (kubernetes/kubernetes#90303 and #107906: late or wider cpusets). [`Binder::rebound`] says between steps what to do about it.
//! CPUs that were not dealt are used only when none of the dealt ones is left: others may compute there.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_proto::run_spec::Pin;

use super::bind::{place_threads, sorted};
use super::watch::{Allowed, Sights, Watch};
use super::{CpuBudget, HostFacts, Pinning, Place, cpu_budget, cpulist, pinning};

/// What a process was dealt and wishes.
#[derive(Debug, Clone)]
pub struct Dealt {
    /// Its CPUs; empty: all that it may use at the start.
    pub cpus: Vec<u32>,
    /// CPUs for its communication; empty: the same.
    pub spare: Vec<u32>,
    /// Processes that share the quota.
    pub local_ranks: u32,
    /// Compute threads; none: as many as there is room for.
    pub threads: Option<usize>,
    /// Whether they are bound.
    pub pin: Pin,
}

/// Where compute threads belong now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebound {
    /// How many.
    pub threads: usize,
    /// The CPU of each; none if the scheduler places them.
    pub pinned: Option<Vec<u32>>,
    /// What happened, for people.
    pub warning: String,
}

/// What compute threads have.
#[derive(Debug, Clone, PartialEq)]
struct Bound {
    cpus: Vec<u32>,
    quota: Option<f64>,
    threads: usize,
    pinned: Option<Vec<u32>>,
}

/// Watches what this process may use. Ask it from the thread that calls the compute pool.
#[derive(Debug)]
pub struct Binder {
    dealt: Dealt,
    root: PathBuf,
    watch: Watch,
    bound: Mutex<Bound>,
}

impl Binder {
    /// Watches from now on, where threads run as planned. `own_file` is the name of memory files of this process.
    pub fn start(
        facts: &HostFacts,
        (cpus, pins): (&CpuBudget, &Pinning),
        dealt: Dealt,
        own_file: String,
        interval: Duration,
    ) -> Self {
        let root = PathBuf::from("/");
        let nodes = nodes_of(facts);
        let (allowed, quota) = (facts.allowed.clone(), facts.quota.as_ref().map(|quota| quota.cpus));
        // What changes between the reading of the facts and now is news too: cpusets come late.
        let known = Allowed { cpus: allowed.clone(), quota };
        let watch = Watch::start(Sights { root: root.clone(), own_file }, known, nodes, interval);
        let bound = Bound { cpus: allowed, quota, threads: cpus.threads, pinned: pins.cpus.clone() };
        let cores = facts.cores.len() as u32;
        watch.update(|place| describe(place, &bound, cores));
        let cpus = if dealt.cpus.is_empty() { facts.allowed.clone() } else { sorted(&dealt.cpus) };
        Self { dealt: Dealt { cpus, ..dealt }, root, watch, bound: Mutex::new(bound) }
    }

    /// Puts threads of the communication on their CPUs, and all others but compute threads on the rest.
    pub fn place_threads(&self) {
        place_threads(&self.bound().cpus, &self.dealt.spare);
    }

    /// Where compute threads belong now, if that is somewhere else than before. All other threads are there already.
    pub fn rebound(&self) -> Option<Rebound> {
        let allowed = self.watch.news()?;
        let cpus = left_of(&self.dealt.cpus, &allowed.cpus);
        let facts = HostFacts::read(&self.root, Some(&cpus));
        let (new, warning) = bind(&self.dealt, cpus, &allowed, &facts);
        let mut bound = self.bound();
        if *bound == new {
            return None;
        }
        place_threads(&new.cpus, &self.dealt.spare);
        self.watch.moved_to(nodes_of(&facts));
        self.watch.update(|place| {
            describe(place, &new, facts.cores.len() as u32);
            place.rebinds += 1;
        });
        let warning = format!("{}{}", describe_change(&bound, &new), warning.unwrap_or_default());
        *bound = new.clone();
        Some(Rebound { threads: new.threads, pinned: new.pinned, warning })
    }

    /// What this process has and gets, as last seen.
    pub fn place(&self) -> Place {
        self.watch.place()
    }

    /// What this process has and gets now. Cost: walks the page tables.
    pub fn look(&self) -> Place {
        self.watch.look()
    }

    fn bound(&self) -> MutexGuard<'_, Bound> {
        // Nobody panics while holding it.
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The dealt CPUs that may still be used; all that may be used if none of them is left.
fn left_of(dealt: &[u32], allowed: &[u32]) -> Vec<u32> {
    let left = cpulist::intersect(dealt, allowed);
    if left.is_empty() { allowed.to_vec() } else { left }
}

/// The number of threads and their CPUs among those that are left, by the rules of the start.
fn bind(dealt: &Dealt, cpus: Vec<u32>, allowed: &Allowed, facts: &HostFacts) -> (Bound, Option<String>) {
    let mut facts = facts.clone();
    if let Some(quota) = &mut facts.quota {
        quota.cpus /= f64::from(dealt.local_ranks.max(1));
    }
    let budget = cpu_budget(&facts, dealt.threads);
    let pins = pinning(&budget, dealt.pin);
    let bound = Bound { cpus, quota: allowed.quota, threads: budget.threads, pinned: pins.cpus };
    let warnings = [budget.warning, pins.warning].into_iter().flatten();
    let text = warnings.map(|warning| format!("; {warning}")).collect::<String>();
    (bound, Some(text).filter(|text| !text.is_empty()))
}

fn describe(place: &mut Place, bound: &Bound, cores: u32) {
    place.cores = cores;
    place.threads = bound.threads as u32;
    place.is_pinned = bound.pinned.is_some();
}

fn describe_change(old: &Bound, new: &Bound) -> String {
    let quota =
        |quota: Option<f64>| quota.map_or("no quota".into(), |cpus| format!("a quota of {cpus} CPUs"));
    let mut text = String::from("this process was bound anew: ");
    if old.cpus != new.cpus {
        let (old, new) = (cpulist::format(&old.cpus), cpulist::format(&new.cpus));
        text.push_str(&format!("it may use CPUs {new} instead of {old}, "));
    }
    if old.quota != new.quota {
        text.push_str(&format!("it has {} instead of {}, ", quota(new.quota), quota(old.quota)));
    }
    text.push_str(&format!("and computes with {} threads (before: {})", new.threads, old.threads));
    text
}

fn nodes_of(facts: &HostFacts) -> Vec<u32> {
    facts.nodes.iter().map(|node| node.node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Core, Quota};

    fn facts(cpus: &[u32], quota: Option<f64>) -> HostFacts {
        let mut facts = HostFacts::read(std::path::Path::new("/nowhere"), Some(cpus));
        facts.cores = cpus.iter().map(|&cpu| Core { package: 0, cpus: vec![cpu] }).collect();
        facts.quota = quota.map(|cpus| Quota { cpus, place: "cpu.max".into() });
        facts
    }

    fn dealt(cpus: &[u32], threads: Option<usize>) -> Dealt {
        Dealt { cpus: cpus.into(), spare: Vec::new(), local_ranks: 2, threads, pin: Pin::Auto }
    }

    fn bound(dealt: &Dealt, allowed: &[u32], quota: Option<f64>) -> (Bound, Option<String>) {
        let cpus = left_of(&dealt.cpus, allowed);
        let facts = facts(&cpus, quota);
        bind(dealt, cpus, &Allowed { cpus: allowed.into(), quota }, &facts)
    }

    #[test]
    fn dealt_cpus_come_first_and_foreign_ones_only_when_none_is_left() {
        assert_eq!(left_of(&[4, 5, 6, 7], &[0, 1, 5, 6]), [5, 6]);
        assert_eq!(left_of(&[4, 5], &[0, 1]), [0, 1]);
        assert_eq!(left_of(&[4, 5], &[0, 1, 2, 3, 4, 5]), [4, 5], "a wider cpuset belongs to other ranks");
    }

    #[test]
    fn threads_follow_the_cpus_that_are_left_and_say_so() {
        let (before, _) = bound(&dealt(&[4, 5, 6, 7], None), &[4, 5, 6, 7], None);
        assert_eq!((before.threads, before.pinned.clone()), (4, Some(vec![4, 5, 6, 7])));
        let (after, warning) = bound(&dealt(&[4, 5, 6, 7], None), &[0, 6, 7], None);
        assert_eq!((after.threads, after.pinned.clone(), warning), (2, Some(vec![6, 7]), None));
        assert_eq!(
            describe_change(&before, &after),
            "this process was bound anew: it may use CPUs 6-7 instead of 4-7, and computes with 2 threads (before: 4)"
        );
    }

    #[test]
    fn a_lower_quota_is_shared_by_the_ranks_and_leaves_threads_to_the_scheduler() {
        let (before, _) = bound(&dealt(&[4, 5, 6, 7], None), &[4, 5, 6, 7], Some(8.0));
        assert_eq!((before.threads, before.pinned.is_some()), (4, true));
        let (after, _) = bound(&dealt(&[4, 5, 6, 7], None), &[4, 5, 6, 7], Some(5.0));
        assert_eq!((after.threads, after.pinned.clone()), (2, None));
        let text = describe_change(&before, &after);
        assert!(text.contains("a quota of 5 CPUs instead of a quota of 8 CPUs"), "{text}");
    }

    #[test]
    fn a_number_of_threads_that_was_asked_for_stays_and_crowds() {
        let (after, warning) = bound(&dealt(&[4, 5], Some(2)), &[5], None);
        assert_eq!((after.threads, after.pinned), (2, None));
        assert!(warning.unwrap().contains("2 threads share 1 allowed CPUs"));
    }
}
