//! What is done for the pods beside finding them, each only if it is wanted and allowed: telling why one is not there,
//! scaling their StatefulSet, keeping busy ones from being evicted, and events on them.
//!
//! Every action compares what is with what should be, so one that failed, or was done by a coordinator that is gone, is
//! put right by the next look. What is forbidden is told once and tried again now and then; nothing else depends on it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use muster_proto::limits::{FORBIDDEN_RETRY, MAX_NODES};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::actions::{self, Actions, PROTECTED};
use super::explain::explain;
use super::follow::{Broken, Change, follow};
use super::scale::{self, Scale};
use super::{Pause, Service};
use crate::discovery::Demand;
use crate::owner::Input;

/// How often it is looked whether something is to be done.
const LOOK: Duration = Duration::from_secs(5);

/// What is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CareOptions {
    /// Tell why pods are not there. May read pods.
    pub explain: bool,
    /// Scale their StatefulSet for the queue. May read and patch its scale.
    pub scale: Option<Scale>,
    /// Keep autoscalers from taking the machines of busy pods. May read and patch pods.
    pub protect: bool,
    /// PodDisruptionBudget that allows no eviction while a run has nodes. May patch it.
    pub budget: Option<String>,
    /// Events on pods that a run takes and gives back. May read pods and make events.
    pub events: bool,
}

impl CareOptions {
    /// Whether there is anything to do.
    pub fn is_wanted(&self) -> bool {
        *self != Self::default()
    }

    fn reads_pods(&self) -> bool {
        self.explain || self.protect || self.events
    }
}

/// A pod as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodNow {
    pub uid: String,
    /// Whether it carries our mark.
    pub protected: bool,
    why: Option<String>,
}

type Pods = BTreeMap<String, PodNow>;

/// The care for the pods of a Service.
pub struct Care {
    client: Client,
    namespace: String,
    service: String,
    options: CareOptions,
}

impl Care {
    /// Care for the pods of a Service.
    pub fn new(client: Client, service: &Service, options: CareOptions) -> Self {
        let (namespace, service) = (service.namespace.clone(), service.name.clone());
        Self { client, namespace, service, options }
    }

    /// Runs until the owner is gone or it is dropped.
    pub async fn run(self, owner: mpsc::WeakSender<Input>, demand: watch::Receiver<Demand>) {
        let (sender, pods) = watch::channel(Pods::new());
        tokio::select! {
            () = self.read(&sender), if self.options.reads_pods() => {}
            () = self.tell(&owner, pods.clone()) => {}
            () = self.act(demand, pods) => {}
        }
    }

    /// Keeps what is known of the pods up to date.
    async fn read(&self, pods: &watch::Sender<Pods>) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let (mut pause, mut warned) = (Pause::default(), false);
        loop {
            let begun = Instant::now();
            let broken = follow(&api, None, |change| {
                pods.send_if_modified(|pods| self.take(pods, change));
            })
            .await;
            match broken {
                Broken::Forbidden(reason) => {
                    if !std::mem::replace(&mut warned, true) {
                        tracing::warn!("why pods are not there can't be told: {reason}");
                    }
                    pods.send_if_modified(|pods| !std::mem::take(pods).is_empty());
                    tokio::time::sleep(FORBIDDEN_RETRY).await;
                }
                Broken::Expired | Broken::Failed(_) => {
                    tracing::debug!("can't follow pods: {broken}");
                    tokio::time::sleep(pause.next(begun.elapsed() > Duration::from_secs(10))).await;
                }
            }
        }
    }

    fn take(&self, pods: &mut Pods, change: Change<Pod>) -> bool {
        // Pods of other things are nobody's business here.
        let ours =
            |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.subdomain.as_deref()) == Some(&self.service);
        match change {
            Change::All(all) => {
                let new: Pods = all.iter().filter(|pod| ours(pod)).map(now).take(MAX_NODES).collect();
                let changed = *pods != new;
                *pods = new;
                changed
            }
            Change::Put(pod) if ours(&pod) && pods.len() < MAX_NODES => {
                let (name, new) = now(&pod);
                pods.insert(name, new.clone()) != Some(new)
            }
            Change::Gone(pod) => {
                let same =
                    pods.get(&pod.name_any()).is_some_and(|known| Some(&known.uid) == pod.uid().as_ref());
                same && pods.remove(&pod.name_any()).is_some()
            }
            Change::Put(_) | Change::Alive => false,
        }
    }

    /// Tells the owner why pods are not there.
    async fn tell(&self, owner: &mpsc::WeakSender<Input>, mut pods: watch::Receiver<Pods>) {
        let mut told = BTreeMap::new();
        while pods.changed().await.is_ok() {
            let why = |(name, pod): (&String, &PodNow)| Some((name.clone(), pod.why.clone()?));
            let now: BTreeMap<String, String> = match self.options.explain {
                true => pods.borrow_and_update().iter().filter_map(why).collect(),
                false => BTreeMap::new(),
            };
            if now != told {
                told.clone_from(&now);
                let Some(owner) = owner.upgrade() else { return };
                if owner.send(Input::Explained(now)).await.is_err() {
                    return;
                }
            }
        }
        // Nobody reads pods: the other tasks go on.
        std::future::pending().await
    }

    /// Does what is to be done, whenever something changes.
    async fn act(&self, mut demand: watch::Receiver<Demand>, mut pods: watch::Receiver<Pods>) {
        let mut actions = Actions::new(self.client.clone(), &self.namespace);
        let mut busy = BTreeMap::new();
        let mut needed_since = (0, Instant::now());
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut reads = self.options.reads_pods();
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                changed = demand.changed() => if changed.is_err() { return },
                changed = pods.changed(), if reads => reads = changed.is_ok(),
            }
            let now = demand.borrow_and_update().clone();
            let known = pods.borrow_and_update().clone();
            if !now.is_known {
                continue;
            }
            if self.options.protect {
                let wrong = |(name, pod): &(&String, &PodNow)| pod.protected != now.busy.contains_key(*name);
                for (name, _) in known.iter().filter(wrong) {
                    actions.protect(name, now.busy.get(name).map(String::as_str)).await;
                }
            }
            if let Some(budget) = &self.options.budget {
                actions.budget(budget, !now.busy.is_empty()).await;
            }
            if self.options.events {
                for (pod, kind, text) in actions::changes(&busy, &now.busy) {
                    if let Some(known) = known.get(&pod) {
                        actions.event(&pod, &known.uid, kind, text).await;
                    }
                }
                busy.clone_from(&now.busy);
            }
            if let Some(scale) = &self.options.scale {
                let needed = scale::needed(&now, scale);
                if needed != needed_since.0 {
                    needed_since = (needed, Instant::now());
                }
                actions.scale(scale, &now, needed_since.1.elapsed()).await;
            }
        }
    }
}

fn now(pod: &Pod) -> (String, PodNow) {
    let protected = pod.annotations().contains_key(PROTECTED);
    (pod.name_any(), PodNow { uid: pod.uid().unwrap_or_default(), protected, why: explain(pod) })
}
