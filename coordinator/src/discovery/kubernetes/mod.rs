//! Agents that are pods of a headless Service: by its EndpointSlices, or by its SRV records where those may not be read.
//!
//! One task follows the slices. A server that refuses (403, or no token at all) is asked again now and then; DNS does
//! meanwhile. Any other trouble keeps what is known and is tried again within seconds: agents that train must not notice.

use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use muster_proto::limits::{FORBIDDEN_RETRY, KUBE_PAUSE};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::dns::Srv;
use super::{Discovery, Found, Standing};
use crate::secret::random_bytes;

pub use access::{Access, AccessError};
pub use care::{Care, CareOptions};
pub use follow::Broken;
pub use scale::Scale;
pub use service::{DEFAULT_PORT, Service, ServiceError};

mod access;
mod actions;
mod care;
mod explain;
mod follow;
mod scale;
mod service;
mod slices;
#[cfg(test)]
mod tests;

/// A watch that lived for so long was healthy: the next pause is a short one.
const HEALTHY: Duration = Duration::from_secs(10);

/// Agents by the EndpointSlices of a Service.
#[derive(Debug)]
pub struct Kubernetes {
    standing: Standing,
    found: watch::Receiver<Option<Found>>,
    task: JoinHandle<()>,
}

impl Kubernetes {
    /// Begins to follow a Service. Must be called inside a runtime. Without a client only DNS is asked; `why_not` says why.
    pub fn start(service: &Service, client: Result<Client, String>, dns: Option<Srv>) -> Self {
        let detail = format!("EndpointSlices of {} in {}", service.name, service.namespace);
        let standing = Standing::asking("endpointslice", detail.clone());
        let (sender, found) = watch::channel(None);
        let work = Work { service: service.clone(), detail, standing: standing.clone(), found: sender };
        let task = tokio::spawn(work.run(client, dns));
        Self { standing, found, task }
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Discovery for Kubernetes {
    fn standing(&self) -> Standing {
        self.standing.clone()
    }

    async fn changed(&mut self) -> Found {
        loop {
            if self.found.changed().await.is_err() {
                // The task ends with this value only; what it told last stays.
                std::future::pending::<()>().await;
            }
            if let Some(found) = self.found.borrow_and_update().clone() {
                return found;
            }
        }
    }
}

struct Work {
    service: Service,
    detail: String,
    standing: Standing,
    found: watch::Sender<Option<Found>>,
}

impl Work {
    async fn run(self, client: Result<Client, String>, mut dns: Option<Srv>) {
        let client = match client {
            Ok(client) => client,
            Err(reason) => {
                tracing::warn!("no access to the API server ({reason}): agents are found by DNS alone");
                return self.ask_dns(&mut dns, &reason, None).await;
            }
        };
        let slices: Api<EndpointSlice> = Api::namespaced(client, &self.service.namespace);
        let labels = format!("kubernetes.io/service-name={}", self.service.name);
        let mut pause = Pause::default();
        loop {
            let begun = Instant::now();
            let mut known = slices::Slices::default();
            let mut is_first = true;
            let broken = follow::follow(&slices, Some(&labels), |change| {
                if is_first {
                    self.standing.switch("endpointslice", self.detail.clone());
                    is_first = false;
                }
                self.standing.synced();
                if known.take(change) {
                    self.tell(known.found(&self.service.port));
                }
            })
            .await;
            if self.standing.trouble(&broken.to_string()) {
                tracing::warn!("can't follow {}: {broken}", self.detail);
            }
            match broken {
                Broken::Forbidden(reason) => self.ask_dns(&mut dns, &reason, Some(FORBIDDEN_RETRY)).await,
                Broken::Expired | Broken::Failed(_) => {
                    tokio::time::sleep(pause.next(begun.elapsed() >= HEALTHY)).await;
                }
            }
        }
    }

    /// Asks DNS, for a while or for ever.
    async fn ask_dns(&self, dns: &mut Option<Srv>, why: &str, time: Option<Duration>) {
        let Some(dns) = dns else {
            return match time {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            };
        };
        dns.stand_as(&self.standing, why);
        let asking = async {
            let mut has_any = false;
            loop {
                let found = dns.changed().await;
                // Names that do not exist yet take nothing away that slices have told.
                has_any |= !found.is_empty();
                if has_any {
                    self.tell(found);
                }
            }
        };
        match time {
            Some(time) => drop(tokio::time::timeout(time, asking).await),
            None => asking.await,
        }
    }

    fn tell(&self, found: Found) {
        self.found.send_if_modified(|told| {
            let is_new = told.as_ref() != Some(&found);
            *told = Some(found);
            is_new
        });
    }
}

/// Growing pauses between attempts, with some chance in them so that many coordinators don't come at once.
#[derive(Debug, Default)]
pub struct Pause {
    failures: u32,
}

impl Pause {
    /// The next pause; short again after an attempt that went well.
    pub fn next(&mut self, went_well: bool) -> Duration {
        self.failures = if went_well { 0 } else { self.failures + 1 };
        let (shortest, longest) = KUBE_PAUSE;
        let pause = shortest.saturating_mul(1 << self.failures.min(8)).min(longest);
        let [chance] = random_bytes::<1>();
        pause.mul_f64(0.75 + f64::from(chance) / 1024.0)
    }
}
