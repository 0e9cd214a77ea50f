//! What discovery and the cluster say about agents, beside what sessions say.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::limits::MAX_NODES;
use muster_proto::v1::{self, NodeReport, NodeState};

use super::Owner;
use crate::discovery::{Found, ListedPod};
use crate::gang::{Event, Moment};

/// Agents that are listed, and why some are not there.
#[derive(Debug, Default)]
pub(super) struct Listings {
    by_source: BTreeMap<usize, Found>,
    /// Since when a pod is ready, or not, by its address.
    since: BTreeMap<String, (ListedPod, Moment)>,
    explained: BTreeMap<String, String>,
}

/// An agent that should be there and is not connected.
#[derive(Debug)]
struct Absent {
    name: String,
    address: String,
    pod: Option<ListedPod>,
    /// What is wrong, in words that follow the name.
    why: String,
}

impl Listings {
    fn take(&mut self, source: usize, found: Found, now: Moment) {
        self.by_source.insert(source, found);
        let mut since = BTreeMap::new();
        for (address, pod) in self.by_source.values().flatten() {
            let Some(pod) = pod else { continue };
            let same = |known: &ListedPod| {
                (&known.name, &known.uid, known.ready) == (&pod.name, &pod.uid, pod.ready)
            };
            let at = self.since.get(address).filter(|(known, _)| same(known)).map_or(now, |(_, at)| *at);
            since.insert(address.clone(), (pod.clone(), at));
        }
        self.since = since;
    }

    /// Takes in why pods are not there or not ready.
    pub fn explain(&mut self, why: BTreeMap<String, String>) {
        self.explained = why.into_iter().take(MAX_NODES).collect();
    }

    fn at(&self, address: &str) -> Option<&ListedPod> {
        self.since.get(address).map(|(pod, _)| pod)
    }

    /// Identity of the pod that has this name now.
    pub fn current(&self, name: &str) -> Option<&str> {
        let pods = self.since.values().map(|(pod, _)| pod);
        let mut pods = pods.filter(|pod| pod.name == name && !pod.uid.is_empty() && !pod.terminating);
        pods.next().map(|pod| pod.uid.as_str())
    }

    /// Refuses an agent whose address is another pod's by now.
    pub fn check(&self, address: &str, report: &NodeReport) -> Result<(), String> {
        let Some(listed) = self.at(address).filter(|pod| !pod.uid.is_empty()) else { return Ok(()) };
        match &report.pod {
            Some(pod) if !pod.uid.is_empty() && pod.uid != listed.uid => Err(format!(
                "it is pod {} ({}), the cluster lists {} ({}) at this address",
                pod.name, pod.uid, listed.name, listed.uid
            )),
            _ => Ok(()),
        }
    }

    fn age(&self, address: &str, now: Moment) -> u64 {
        self.since.get(address).map_or(0, |(_, at)| now.saturating_sub(*at).as_secs())
    }

    /// Agents that are listed and not `there`, by address; `lost` says why a session failed.
    fn absent(
        &self,
        there: &BTreeSet<&str>,
        lost: impl Fn(&str) -> Option<String>,
        now: Moment,
    ) -> Vec<Absent> {
        let mut absent = Vec::new();
        let mut named: BTreeSet<&str> = BTreeSet::new();
        for (address, (pod, _)) in &self.since {
            named.insert(&pod.name);
            if there.contains(address.as_str()) || pod.terminating {
                continue;
            }
            let age = self.age(address, now);
            let explained = self.explained.get(&pod.name);
            let why = match (pod.ready, explained) {
                (false, Some(why)) => format!("not ready for {age} s ({why})"),
                (false, None) => format!("not ready for {age} s"),
                (true, _) => {
                    // Names in DNS say nothing about readiness.
                    let word = if pod.uid.is_empty() { "listed" } else { "ready" };
                    let reason = lost(address).map(|reason| format!(": {reason}")).unwrap_or_default();
                    format!("{word} for {age} s, but not connected{reason}")
                }
            };
            let (name, address, pod) = (pod.name.clone(), address.clone(), Some(pod.clone()));
            absent.push(Absent { name, address, pod, why });
        }
        for (name, why) in self.explained.iter().filter(|(name, _)| !named.contains(name.as_str())) {
            let why = format!("is not there ({why})");
            absent.push(Absent { name: name.clone(), address: String::new(), pod: None, why });
        }
        absent.sort_by(|a, b| a.name.cmp(&b.name));
        absent
    }

    /// How many agents there should be.
    fn expected(&self) -> usize {
        let listed = self.since.values().filter(|(pod, _)| !pod.terminating);
        let names: BTreeSet<&str> = listed.map(|(pod, _)| pod.name.as_str()).collect();
        names.len() + self.explained.keys().filter(|name| !names.contains(name.as_str())).count()
    }
}

impl Owner {
    pub(super) fn listed(&mut self, source: usize, found: Found) {
        let now = self.now();
        self.listed.take(source, found, now);
        self.note_leaving();
    }

    /// Pods that are being deleted leave, even if their own word of it was lost.
    pub(super) fn note_leaving(&mut self) {
        let mut leaving = Vec::new();
        for (name, node) in &mut self.nodes.known {
            let Some(pod) = self.listed.at(&node.address).filter(|pod| pod.terminating) else { continue };
            let uid = node.report.pod.clone().unwrap_or_default().uid;
            let same = uid.is_empty() || pod.uid.is_empty() || uid == pod.uid;
            if same && node.leaving.is_none() && node.session.is_some() {
                node.leaving = Some("its pod is being deleted".into());
                leaving.push(name.clone());
            }
        }
        for node in leaving {
            let reason = "its pod is being deleted".into();
            self.all_runs_on(&node, Event::Leaving { node: node.clone(), reason });
        }
    }

    fn absent(&self) -> Vec<Absent> {
        let there = self.nodes.known.values().filter(|node| node.session.is_some());
        let there: BTreeSet<&str> = there.map(|node| node.address.as_str()).collect();
        self.listed.absent(&there, |address| self.nodes.lost(address), self.now())
    }

    /// What a run that does not train waits for, beside the reason of its state.
    pub(super) fn waits_for(&self) -> Vec<String> {
        let absent = self.absent();
        if absent.is_empty() {
            return Vec::new();
        }
        let connected = self.nodes.known.values().filter(|node| node.session.is_some()).count();
        let expected = self.listed.expected().max(connected);
        let mut words = vec![format!("{connected} of {expected} connected")];
        const MOST: usize = 5;
        words.extend(absent.iter().take(MOST).map(|one| format!("{} {}", one.name, one.why)));
        if absent.len() > MOST {
            words.push(format!("and {} more", absent.len() - MOST));
        }
        words
    }

    pub(super) fn node_list(&self) -> Vec<v1::Node> {
        let mut nodes = self.nodes.list();
        for node in &mut nodes {
            node.pod = self.listed.at(&node.address).map(message);
        }
        for absent in self.absent() {
            let known = nodes.iter_mut().find(|node| {
                let by_name = !node.name.is_empty() && node.name == absent.name;
                by_name || !absent.address.is_empty() && node.address == absent.address
            });
            match known {
                Some(node) if node.state() == NodeState::Unreachable => {
                    node.name = absent.name;
                    node.reason = absent.why;
                }
                Some(_) => {}
                None => nodes.push(v1::Node {
                    name: absent.name,
                    address: absent.address,
                    state: NodeState::Expected as i32,
                    reason: absent.why,
                    report: None,
                    pod: absent.pod.as_ref().map(message),
                }),
            }
        }
        nodes
    }

    pub(super) fn list_nodes(&self) -> v1::ListNodesResponse {
        let ways = &self.options.discovery;
        v1::ListNodesResponse {
            nodes: self.node_list(),
            discovery: ways.iter().map(|way| way.describe()).collect::<Vec<_>>().join("; "),
            ways: ways
                .iter()
                .map(|way| v1::DiscoveryWay {
                    mode: way.mode().into(),
                    age_ms: way.age().map(|age| age.as_millis() as u64),
                    trouble: way.reason(),
                })
                .collect(),
        }
    }
}

fn message(pod: &ListedPod) -> v1::ListedPod {
    v1::ListedPod {
        uid: pod.uid.clone(),
        machine: pod.machine.clone(),
        zone: pod.zone.clone(),
        ready: pod.ready,
        terminating: pod.terminating,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pod(name: &str, uid: &str, ready: bool) -> Option<ListedPod> {
        Some(ListedPod { name: name.into(), uid: uid.into(), ready, ..ListedPod::default() })
    }

    fn words(listings: &Listings, there: &[&str], at_s: u64) -> Vec<String> {
        let there = there.iter().copied().collect();
        let lost = |address: &str| (address == "10.0.0.3:7").then(|| "no route".to_owned());
        let absent = listings.absent(&there, lost, Duration::from_secs(at_s));
        absent.iter().map(|one| format!("{} {}", one.name, one.why)).collect()
    }

    #[test]
    fn who_is_missing_is_told_with_age_and_reason() {
        let mut listings = Listings::default();
        let found = |ready| {
            Found::from([
                ("10.0.0.1:7".to_owned(), pod("t-0", "u0", true)),
                ("10.0.0.2:7".to_owned(), pod("t-1", "u1", ready)),
                ("10.0.0.3:7".to_owned(), pod("t-2", "u2", true)),
            ])
        };
        listings.take(0, found(false), Duration::from_secs(10));
        listings.explain(BTreeMap::from([
            ("t-1".to_owned(), "ImagePullBackOff".to_owned()),
            ("t-3".to_owned(), "Pending: Unschedulable".to_owned()),
        ]));
        // Told again, it is still as old as it was.
        listings.take(0, found(false), Duration::from_secs(20));
        assert_eq!(
            words(&listings, &["10.0.0.1:7"], 50),
            [
                "t-1 not ready for 40 s (ImagePullBackOff)",
                "t-2 ready for 40 s, but not connected: no route",
                "t-3 is not there (Pending: Unschedulable)",
            ]
        );
        assert_eq!(listings.expected(), 4);
        listings.take(0, found(true), Duration::from_secs(60));
        assert_eq!(words(&listings, &["10.0.0.1:7"], 62)[0], "t-1 ready for 2 s, but not connected");
    }

    #[test]
    fn an_address_belongs_to_the_pod_that_is_listed_there() {
        let mut listings = Listings::default();
        listings.take(0, Found::from([("10.0.0.1:7".to_owned(), pod("t-0", "new", true))]), Duration::ZERO);
        let report = |uid: &str| {
            let pod = v1::Pod { name: "t-0".into(), uid: uid.into(), ..v1::Pod::default() };
            NodeReport { pod: Some(pod), ..NodeReport::default() }
        };
        assert_eq!(listings.check("10.0.0.1:7", &report("new")), Ok(()));
        assert!(listings.check("10.0.0.1:7", &report("old")).unwrap_err().contains("lists t-0 (new)"));
        assert_eq!(listings.check("10.0.0.1:7", &NodeReport::default()), Ok(()), "it doesn't say who it is");
        assert_eq!(listings.check("10.0.0.2:7", &report("old")), Ok(()), "nobody is listed there");
        assert_eq!(listings.current("t-0"), Some("new"));
    }
}
