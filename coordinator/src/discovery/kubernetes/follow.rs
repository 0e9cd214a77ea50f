//! Listing objects of one kind and watching them: every change is told, and every sign of life.
//!
//! A watch lasts 30 s at most and is then opened again, so silence has an end: a server that accepts a watch and goes
//! away without closing the connection is noticed within [`WATCH_SILENCE`]. After anything unexpected the caller lists
//! again, which is cheap at the sizes that matter here and leaves no doubt.

use std::fmt::Debug;

use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt};
use muster_proto::limits::{KUBE_REQUEST_TIMEOUT, MAX_NODES, WATCH_SILENCE, WATCH_TIMEOUT};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::StreamExt;

/// Objects of one answer to a list.
const PAGE: u32 = 500;

/// What is told.
#[derive(Debug)]
pub enum Change<K> {
    /// These are all.
    All(Vec<K>),
    /// One is new or has changed.
    Put(K),
    /// One is gone.
    Gone(K),
    /// Nothing has changed up to now.
    Alive,
}

/// Why it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// The server does not let us (401, 403).
    Forbidden(String),
    /// Our version is too old for the server (410): list again, at once.
    Expired,
    /// Anything else.
    Failed(String),
}

impl Broken {
    /// What an error of the client means.
    pub fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status.code, &status.message),
            other => Self::Failed(muster_proto::with_causes(&other)),
        }
    }

    fn of_status(code: u16, message: &str) -> Self {
        match code {
            401 | 403 => Self::Forbidden(message.into()),
            410 => Self::Expired,
            _ => Self::Failed(format!("the API server says {code}: {message}")),
        }
    }
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Forbidden(message) => write!(f, "not allowed: {message}"),
            Self::Expired => f.write_str("the watch is too old"),
            Self::Failed(message) => f.write_str(message),
        }
    }
}

/// Tells what there is and what changes, until something breaks.
pub async fn follow<K>(api: &Api<K>, labels: Option<&str>, mut tell: impl FnMut(Change<K>)) -> Broken
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let mut version = match list(api, labels).await {
        Ok((objects, version)) => {
            tell(Change::All(objects));
            version
        }
        Err(broken) => return broken,
    };
    loop {
        let begun = Instant::now();
        match watch(api, labels, &version, &mut tell).await {
            Ok(newer) => version = newer,
            Err(broken) => return broken,
        }
        tell(Change::Alive);
        // A server that ends every watch at once must not be asked in a hot loop.
        tokio::time::sleep_until(begun + std::time::Duration::from_secs(1)).await;
    }
}

async fn list<K>(api: &Api<K>, labels: Option<&str>) -> Result<(Vec<K>, String), Broken>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut params =
        ListParams { label_selector: labels.map(str::to_owned), ..ListParams::default() }.limit(PAGE);
    let mut objects = Vec::new();
    loop {
        let page = match timeout(KUBE_REQUEST_TIMEOUT, api.list(&params)).await {
            Ok(page) => page.map_err(Broken::of)?,
            Err(_) => {
                return Err(Broken::Failed(format!("no answer to a list within {KUBE_REQUEST_TIMEOUT:?}")));
            }
        };
        objects.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) if objects.len() < MAX_NODES => params.continue_token = Some(token),
            _ => return Ok((objects, page.metadata.resource_version.unwrap_or_default())),
        }
    }
}

/// One watch to its regular end; returns the version up to which everything was told.
async fn watch<K>(
    api: &Api<K>,
    labels: Option<&str>,
    from: &str,
    tell: &mut impl FnMut(Change<K>),
) -> Result<String, Broken>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let mut params = WatchParams::default().timeout(WATCH_TIMEOUT.as_secs() as u32);
    params.label_selector = labels.map(str::to_owned);
    let silent = || Broken::Failed(format!("a watch was silent for more than {WATCH_SILENCE:?}"));
    let opened = timeout(KUBE_REQUEST_TIMEOUT, api.watch(&params, from)).await;
    let events = opened
        .map_err(|_| Broken::Failed(format!("no answer to a watch within {KUBE_REQUEST_TIMEOUT:?}")))?;
    let mut events = std::pin::pin!(events.map_err(Broken::of)?);
    tell(Change::Alive);
    let mut version = from.to_owned();
    // The server ends the watch before this.
    let end = Instant::now() + WATCH_SILENCE;
    while let Some(event) = timeout_at(end, events.next()).await.map_err(|_| silent())? {
        let object = match event.map_err(Broken::of)? {
            WatchEvent::Bookmark(bookmark) => {
                version = bookmark.metadata.resource_version;
                tell(Change::Alive);
                continue;
            }
            WatchEvent::Error(status) => return Err(Broken::of_status(status.code, &status.message)),
            WatchEvent::Added(object) | WatchEvent::Modified(object) => Change::Put(object),
            WatchEvent::Deleted(object) => Change::Gone(object),
        };
        let newer = match &object {
            Change::Put(object) | Change::Gone(object) => object.resource_version(),
            Change::All(_) | Change::Alive => None,
        };
        version = newer.unwrap_or(version);
        tell(object);
    }
    Ok(version)
}
