//! Requests that change something in the cluster.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use muster_proto::limits::{FORBIDDEN_RETRY, KUBE_REQUEST_TIMEOUT};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::follow::Broken;
use super::scale::{self, Scale};
use crate::discovery::Demand;
use crate::secret::random_name;

/// Our mark on a pod: only what we set is taken back.
pub const PROTECTED: &str = "muster-run";

/// Annotations that keep autoscalers away, and their values.
const KEEP_AWAY: [(&str, &str); 2] =
    [("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), ("karpenter.sh/do-not-disrupt", "true")];

/// Requests, and which of them failed when.
pub(super) struct Actions {
    client: Client,
    namespace: String,
    /// Kinds that failed, with the moment from which they are tried again.
    failed: BTreeMap<&'static str, Instant>,
    /// Evictions that the budget was told to allow, if it was told.
    budget: Option<bool>,
}

impl Actions {
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.into(), failed: BTreeMap::new(), budget: None }
    }

    /// Whether a kind of request may be tried now.
    fn may(&self, kind: &'static str) -> bool {
        self.failed.get(kind).is_none_or(|again| Instant::now() >= *again)
    }

    /// Waits for an answer; says whether it was a good one. What fails is told once and then left alone for a while.
    async fn done<T: Debug>(
        &mut self,
        kind: &'static str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Option<T> {
        let broken = match timeout(KUBE_REQUEST_TIMEOUT, call).await {
            Ok(Ok(answer)) => {
                self.failed.remove(kind);
                return Some(answer);
            }
            Ok(Err(error)) => Broken::of(error),
            Err(_) => Broken::Failed(format!("no answer within {KUBE_REQUEST_TIMEOUT:?}")),
        };
        if !self.failed.contains_key(kind) {
            tracing::warn!("{kind} failed, runs go on without it: {broken}");
        }
        let pause = match broken {
            Broken::Forbidden(_) => FORBIDDEN_RETRY,
            Broken::Expired | Broken::Failed(_) => Duration::from_secs(5),
        };
        self.failed.insert(kind, Instant::now() + pause);
        None
    }

    /// Marks a pod as busy with a run, or takes the mark back.
    pub async fn protect(&mut self, pod: &str, run: Option<&str>) {
        const KIND: &str = "marking busy pods";
        if !self.may(KIND) {
            return;
        }
        let mut annotations = serde_json::Map::new();
        for (key, value) in KEEP_AWAY.into_iter().chain([(PROTECTED, run.unwrap_or_default())]) {
            annotations.insert(key.into(), run.map_or(serde_json::Value::Null, |_| value.into()));
        }
        let patch = json!({ "metadata": { "annotations": annotations } });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        self.done(KIND, api.patch(pod, &PatchParams::default(), &Patch::Merge(patch))).await;
    }

    /// Lets a disruption budget allow all evictions, or none.
    pub async fn budget(&mut self, name: &str, busy: bool) {
        const KIND: &str = "changing the disruption budget";
        if self.budget == Some(busy) || !self.may(KIND) {
            return;
        }
        let allowed = if busy { json!(0) } else { json!("100%") };
        let patch = json!({ "spec": { "maxUnavailable": allowed, "minAvailable": null } });
        let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &self.namespace);
        if self.done(KIND, api.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await.is_some() {
            self.budget = Some(busy);
        }
    }

    /// Scales a StatefulSet if the demand asks for it. `idle` is how long it has been what it is.
    pub async fn scale(&mut self, scale: &Scale, demand: &Demand, idle: Duration) {
        const KIND: &str = "scaling";
        if !self.may(KIND) {
            return;
        }
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let Some(found) = self.done(KIND, api.get_scale(&scale.statefulset)).await else { return };
        let present =
            found.spec.and_then(|spec| spec.replicas).and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
        let Some(wanted) = scale::decide(demand, scale, present, idle) else { return };
        tracing::info!(
            "{} is scaled from {present} to {wanted}: {} nodes are busy, runs wait for {}",
            scale.statefulset,
            demand.busy.len(),
            demand.wanted
        );
        let patch = Patch::Merge(json!({ "spec": { "replicas": wanted } }));
        self.done(KIND, api.patch_scale(&scale.statefulset, &PatchParams::default(), &patch)).await;
    }

    /// Puts an event on a pod.
    pub async fn event(&mut self, pod: &str, uid: &str, reason: &str, note: String) {
        const KIND: &str = "making events";
        if !self.may(KIND) {
            return;
        }
        let metadata = ObjectMeta {
            name: Some(format!("{pod}.{}", random_name::<8>())),
            namespace: Some(self.namespace.clone()),
            ..ObjectMeta::default()
        };
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: Some(pod.into()),
            namespace: Some(self.namespace.clone()),
            uid: Some(uid.into()),
            ..ObjectReference::default()
        };
        let event = Event {
            metadata,
            regarding: Some(regarding),
            event_time: Some(MicroTime(Timestamp::now())),
            action: Some("Train".into()),
            reason: Some(reason.into()),
            note: Some(note),
            type_: Some("Normal".into()),
            reporting_controller: Some("muster-coordinator".into()),
            reporting_instance: Some("muster-coordinator".into()),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        self.done(KIND, api.create(&PostParams::default(), &event)).await;
    }
}

/// Events for pods that runs have taken or given back.
pub(super) fn changes(
    before: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Vec<(String, &'static str, String)> {
    let taken = now.iter().filter(|(pod, run)| before.get(*pod) != Some(run));
    let taken = taken.map(|(pod, run)| (pod.clone(), "RunStarted", format!("the run {run} trains here")));
    let given = before.iter().filter(|(pod, _)| !now.contains_key(*pod));
    let given = given.map(|(pod, run)| (pod.clone(), "RunLeft", format!("the run {run} has left")));
    given.chain(taken).collect()
}
