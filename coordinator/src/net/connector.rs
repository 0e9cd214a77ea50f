//! One session task for each address that discovery knows.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::limits::MAX_NODES;
use muster_tls::Security;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::session::{self, Caller};
use crate::discovery::{Discovery, Found};
use crate::owner::Input;

/// Keeps sessions with all agents that several ways of discovery find.
#[derive(Debug)]
pub struct Connector {
    coordinator: String,
    owner: mpsc::Sender<Input>,
    security: Security,
    found: mpsc::Receiver<(usize, Found)>,
    finder: mpsc::Sender<(usize, Found)>,
    finders: Vec<JoinHandle<()>>,
}

impl Connector {
    /// A connector for the coordinator with this identity; `security` protects its sessions.
    pub fn new(coordinator: String, owner: mpsc::Sender<Input>, security: Security) -> Self {
        let (finder, found) = mpsc::channel(16);
        Self { coordinator, owner, security, found, finder, finders: Vec::new() }
    }

    /// Adds a way to find agents. Must be called inside a runtime.
    pub fn add(&mut self, mut discovery: impl Discovery) {
        let (source, finder) = (self.finders.len(), self.finder.clone());
        let task = tokio::spawn(async move {
            loop {
                let addresses = discovery.changed().await;
                if finder.send((source, addresses)).await.is_err() {
                    return;
                }
            }
        });
        self.finders.push(task);
    }

    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let mut by_source: BTreeMap<usize, Found> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        // A session is wanted as long as its sender is here.
        let mut sessions: BTreeMap<String, watch::Sender<()>> = BTreeMap::new();
        while let Some((source, addresses)) = self.found.recv().await {
            // Before the sessions: who is listed under an address decides whether its agent is the right one.
            if self.owner.send(Input::Listed { source, found: addresses.clone() }).await.is_err() {
                return;
            }
            by_source.insert(source, addresses);
            let wanted: BTreeSet<&String> =
                by_source.values().flat_map(Found::keys).take(MAX_NODES).collect();
            let gone: Vec<String> = sessions.keys().filter(|at| !wanted.contains(at)).cloned().collect();
            for address in gone {
                tracing::info!("the agent at {address} is not listed any more");
                sessions.remove(&address);
            }
            while tasks.try_join_next().is_some() {}
            for address in wanted {
                if !sessions.contains_key(address) {
                    let (keep, wanted) = watch::channel(());
                    let caller =
                        Caller { coordinator: self.coordinator.clone(), security: self.security.clone() };
                    tasks.spawn(session::keep(address.clone(), caller, self.owner.clone(), wanted));
                    sessions.insert(address.clone(), keep);
                }
            }
        }
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        self.finders.iter().for_each(JoinHandle::abort);
    }
}
