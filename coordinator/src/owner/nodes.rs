//! The nodes that are known, and their sessions.

use std::collections::BTreeMap;

use muster_proto::limits::MAX_NODES;
use muster_proto::v1::{self, AgentCommand, NodeReport, NodeState};
use tokio::sync::{mpsc, oneshot};

/// A node that had a session once.
#[derive(Debug)]
pub(super) struct Node {
    pub address: String,
    /// The last report, without its ranks.
    pub report: NodeReport,
    pub session: Option<Link>,
    pub leaving: Option<String>,
    /// Why there is no session.
    pub lost: String,
}

/// The owner's end of a session.
#[derive(Debug)]
pub(super) struct Link {
    pub number: u64,
    pub commands: mpsc::Sender<AgentCommand>,
    /// Dropping it ends the session.
    pub _open: oneshot::Sender<()>,
}

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is on its way.
    Yes,
    /// There is no session.
    NoSession,
    /// The session had no room and is closed now.
    Closed,
}

/// All nodes, by name; and addresses where no session is possible, with the reason.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub known: BTreeMap<String, Node>,
    refused: BTreeMap<String, (NodeState, String, Option<NodeReport>)>,
}

impl Nodes {
    /// Decides whether a session with this agent is wanted.
    ///
    /// `current` is the pod of the agent's name that the cluster lists now.
    pub fn admit(
        &mut self,
        address: &str,
        report: &NodeReport,
        version: &str,
        current: Option<&str>,
    ) -> Result<(), String> {
        let refusal = self.refusal(report, version, current);
        match refusal {
            None => {
                self.refused.remove(address);
                Ok(())
            }
            Some(reason) => {
                let twice = |node: &Node| node.report.incarnation == report.incarnation;
                if self.known.get(&report.node).is_some_and(twice) {
                    // One agent under two addresses is no trouble that people should read of.
                    return Err(reason);
                }
                self.note(address, NodeState::Refused, &reason, Some(report.clone()));
                Err(reason)
            }
        }
    }

    fn refusal(&self, report: &NodeReport, version: &str, current: Option<&str>) -> Option<String> {
        if report.protocol != v1::PROTOCOL {
            let (theirs, ours) = (report.protocol, v1::PROTOCOL);
            return Some(format!("its protocol is version {theirs}, this coordinator speaks version {ours}"));
        }
        if report.version != version {
            let theirs = &report.version;
            return Some(format!("it runs Muster {theirs}, this coordinator is {version}: use one version"));
        }
        if report.node.is_empty() || report.node.len() > 253 || report.node.contains(['/', '#']) {
            return Some(format!("its name {:?} is no node name", report.node));
        }
        let other = self.known.get(&report.node);
        // A pod that was made again takes the place of the one that is gone, whatever its old session seems to be.
        let reborn = |node: &Node| {
            let uid = |report: &NodeReport| report.pod.clone().unwrap_or_default().uid;
            current.is_some_and(|current| uid(report) == current && uid(&node.report) != current)
        };
        if let Some(other) = other.filter(|node| node.session.is_some() && !reborn(node)) {
            let address = &other.address;
            return Some(match other.report.incarnation == report.incarnation {
                true => format!("it is connected already, through {address}"),
                false => format!("another agent with the name {} is connected, at {address}", report.node),
            });
        }
        let full = other.is_none() && self.known.len() >= MAX_NODES;
        full.then(|| format!("there are {MAX_NODES} nodes already"))
    }

    pub fn unreachable(&mut self, address: &str, reason: &str) {
        if let Some(node) = self.known.values_mut().find(|node| node.address == address) {
            if node.session.is_none() {
                reason.clone_into(&mut node.lost);
            }
            return;
        }
        self.note(address, NodeState::Unreachable, reason, None);
    }

    /// Why there is no session with the agent at an address, as far as that is known.
    pub fn lost(&self, address: &str) -> Option<String> {
        let node = self.known.values().find(|node| node.address == address && node.session.is_none());
        let known = node.map(|node| node.lost.clone()).filter(|lost| !lost.is_empty());
        known.or_else(|| self.refused.get(address).map(|(_, reason, _)| reason.clone()))
    }

    pub fn forget(&mut self, address: &str) {
        self.refused.remove(address);
        self.known.retain(|_, node| node.address != address || node.session.is_some());
    }

    fn note(&mut self, address: &str, state: NodeState, reason: &str, report: Option<NodeReport>) {
        if self.refused.len() < MAX_NODES || self.refused.contains_key(address) {
            self.refused.insert(address.into(), (state, reason.into(), report));
        }
    }

    /// The node of a session.
    pub fn of_session(&mut self, session: u64) -> Option<(&String, &mut Node)> {
        let mut nodes = self.known.iter_mut();
        nodes.find(|(_, node)| node.session.as_ref().is_some_and(|link| link.number == session))
    }

    /// Hands a command to a session. One that has no room is closed; the next one begins with a report.
    pub fn send(&mut self, name: &str, command: AgentCommand) -> Sent {
        let Some(node) = self.known.get_mut(name) else { return Sent::NoSession };
        let Some(link) = &node.session else { return Sent::NoSession };
        if link.commands.try_send(command).is_ok() {
            return Sent::Yes;
        }
        tracing::warn!("node {name} takes no commands; its session is closed");
        node.session = None;
        node.lost = "it took no commands".into();
        Sent::Closed
    }

    /// Nodes with a session that were not told to end.
    pub fn usable(&self) -> impl Iterator<Item = &Node> {
        self.known.values().filter(|node| node.session.is_some() && node.leaving.is_none())
    }

    /// All of them, for people.
    pub fn list(&self) -> Vec<v1::Node> {
        let known = self.known.iter().map(|(name, node)| {
            let (state, reason) = match (&node.session, &node.leaving) {
                (Some(_), Some(reason)) => (NodeState::Leaving, reason.clone()),
                (Some(_), None) => (NodeState::Connected, String::new()),
                (None, _) => (NodeState::Unreachable, node.lost.clone()),
            };
            let report = Some(NodeReport { ranks: Vec::new(), ..node.report.clone() });
            v1::Node {
                name: name.clone(),
                address: node.address.clone(),
                state: state as i32,
                reason,
                report,
                pod: None,
            }
        });
        let refused = self.refused.iter().map(|(address, (state, reason, report))| v1::Node {
            name: report.as_ref().map(|report| report.node.clone()).unwrap_or_default(),
            address: address.clone(),
            state: *state as i32,
            reason: reason.clone(),
            pod: None,
            report: report.as_ref().map(|report| NodeReport { ranks: Vec::new(), ..report.clone() }),
        });
        known.chain(refused).collect()
    }

    /// Refusals in words, for runs that wait.
    pub fn refusals(&self) -> impl Iterator<Item = String> {
        self.refused
            .iter()
            .filter(|(_, (state, ..))| *state == NodeState::Refused)
            .map(|(address, (_, reason, _))| format!("the agent at {address} is refused: {reason}"))
    }
}
