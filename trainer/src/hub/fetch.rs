//! Downloads a hub model into the cache.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::api::{Progress, RepoInfo};
use hf_hub::{Cache, Repo, RepoType};
use muster_proto::limits::{HUB_EVENT_QUEUE, HUB_REQUEST_TIMEOUT, HUB_RETRIES, MAX_HUB_FILES};

use super::error::HubError;
use super::files::{self, Wanted};
use super::options::HubOptions;
use super::{HubEvent, is_revision};

/// Bytes are reported when there are this many, or when the last report is this old: a slow download must not
/// look like a stalled one.
const REPORT_BYTES: u64 = 1 << 20;
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// The model to fetch.
pub(super) struct Request<'a> {
    pub name: &'a str,
    pub revision: &'a str,
    pub options: &'a HubOptions,
}

enum Message {
    Event(HubEvent),
    Finished(Result<PathBuf, HubError>),
}

/// Fetches on a thread of its own; gives up when nothing arrives for `stall_timeout`.
///
/// The HTTP client of `hf-hub` has no deadlines, so on a stall the thread is left behind and ends with the
/// process or the connection.
pub(super) fn fetch(request: &Request, progress: &mut dyn FnMut(HubEvent)) -> Result<PathBuf, HubError> {
    let (sender, receiver) = mpsc::sync_channel(HUB_EVENT_QUEUE);
    let worker = Worker {
        name: request.name.to_owned(),
        revision: request.revision.to_owned(),
        options: request.options.clone(),
        sender,
    };
    let spawned = std::thread::Builder::new().name("hub-fetch".into()).spawn(move || {
        let result = worker.run();
        // The receiver is gone only if it gave up on a stall.
        let _ = worker.sender.send(Message::Finished(result));
    });
    spawned.map_err(|error| HubError::Network {
        name: request.name.to_owned(),
        endpoint: request.options.endpoint.clone(),
        source: error.into(),
    })?;
    wait(request, &receiver, progress)
}

fn wait(
    request: &Request,
    receiver: &Receiver<Message>,
    progress: &mut dyn FnMut(HubEvent),
) -> Result<PathBuf, HubError> {
    let mut file = "the list of files".to_owned();
    let waited = request.options.stall_timeout;
    loop {
        match receiver.recv_timeout(waited) {
            Ok(Message::Event(event)) => {
                if let HubEvent::File { name, .. } = &event {
                    file.clone_from(name);
                }
                progress(event);
            }
            Ok(Message::Finished(result)) => return result,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let (name, endpoint) = (request.name.to_owned(), request.options.endpoint.clone());
                return Err(HubError::Stalled { name, endpoint, file, waited });
            }
        }
    }
}

struct Worker {
    name: String,
    revision: String,
    options: HubOptions,
    sender: SyncSender<Message>,
}

impl Worker {
    /// Tries without the token first: a public model, and the storage servers it redirects to, never see it.
    fn run(&self) -> Result<PathBuf, HubError> {
        let refused = |error: &HubError| {
            matches!(
                error,
                HubError::Denied { .. } | HubError::NotFound { .. } | HubError::Status { status: 429, .. }
            )
        };
        match self.run_with(None) {
            Err(error) if refused(&error) && self.options.token.is_some() => {
                self.run_with(self.options.token.clone())
            }
            other => other,
        }
    }

    fn run_with(&self, token: Option<String>) -> Result<PathBuf, HubError> {
        let had_token = token.is_some();
        let map = |error| self.map_error(error, had_token);
        let repo = self.api(token).map_err(map)?.repo(self.repo());
        let available = self.list(&repo, had_token)?;
        let Wanted { small, weights } = files::choose(&available).map_err(|lacking| HubError::Lacks {
            name: self.name.clone(),
            endpoint: self.options.endpoint.clone(),
            what: lacking.what,
            looked_for: lacking.looked_for,
            foreign: lacking.foreign,
        })?;
        let get = |file: &str| self.get(&repo, file).map_err(map);
        for file in &small {
            get(file)?;
        }
        let weights_path = get(&weights)?;
        if weights.ends_with(".index.json") {
            let shards =
                files::shards(&weights_path).ok_or_else(|| self.cache_error("the shard index is damaged"))?;
            for shard in &shards {
                get(shard)?;
            }
        }
        weights_path
            .parent()
            .map(PathBuf::from)
            .ok_or_else(|| self.cache_error("a cached file has no folder"))
    }

    fn api(&self, token: Option<String>) -> Result<Api, ApiError> {
        ApiBuilder::from_cache(Cache::new(self.options.cache_dir.clone()))
            .with_endpoint(self.options.endpoint.clone())
            .with_token(token)
            .with_retries(HUB_RETRIES)
            .with_progress(false)
            .build()
    }

    fn repo(&self) -> Repo {
        Repo::with_revision(self.name.clone(), RepoType::Model, self.revision.clone())
    }

    /// Names of all files of the model.
    fn list(&self, repo: &ApiRepo, had_token: bool) -> Result<BTreeSet<String>, HubError> {
        let request = repo
            .info_request()
            .config()
            .timeout_global(Some(HUB_REQUEST_TIMEOUT))
            .http_status_as_error(false);
        let mut answer = request.build().call().map_err(|error| self.network(error))?;
        let status = answer.status().as_u16();
        if status != 200 {
            let header = |name: &str| {
                answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
            };
            // Without a token the hub answers 401 for models that don't exist, and says so in a header.
            let unknown = header("x-error-code")
                .is_some_and(|code| matches!(code.as_str(), "RepoNotFound" | "RevisionNotFound"));
            let status = if unknown { 404 } else { status };
            return Err(self.status_error(status, had_token, header("x-error-message")));
        }
        let info: RepoInfo = answer.body_mut().read_json().map_err(|error| self.network(error))?;
        if info.siblings.len() > MAX_HUB_FILES || !is_revision(&info.sha) {
            return Err(self.status_error(
                status,
                had_token,
                Some("the list of files makes no sense".into()),
            ));
        }
        Ok(info.siblings.into_iter().map(|file| file.rfilename).collect())
    }

    fn get(&self, repo: &ApiRepo, file: &str) -> Result<PathBuf, ApiError> {
        let cache = Cache::new(self.options.cache_dir.clone());
        match cache.repo(self.repo()).get(file) {
            Some(path) => Ok(path),
            None => repo.download_with_progress(file, Reporter::new(self.sender.clone())),
        }
    }

    fn map_error(&self, error: ApiError, had_token: bool) -> HubError {
        match error {
            ApiError::RequestError(error) => match *error {
                ureq::Error::StatusCode(status) => self.status_error(status, had_token, None),
                other => self.network(other),
            },
            ApiError::TooManyRetries(error) => self.map_error(*error, had_token),
            ApiError::IoError(error) => self.cache_error(error),
            error @ (ApiError::LockAcquisition(_) | ApiError::InvalidResume) => self.cache_error(error),
            other => self.network(other),
        }
    }

    fn status_error(&self, status: u16, had_token: bool, message: Option<String>) -> HubError {
        let (name, endpoint) = (self.name.clone(), self.options.endpoint.clone());
        match status {
            401 | 403 => HubError::Denied { name, endpoint, status, had_token, message },
            404 => HubError::NotFound { name, endpoint, revision: self.revision.clone(), message },
            _ => HubError::Status { name, endpoint, status, message },
        }
    }

    fn network(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> HubError {
        let (name, endpoint) = (self.name.clone(), self.options.endpoint.clone());
        HubError::Network { name, endpoint, source: source.into() }
    }

    fn cache_error(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> HubError {
        HubError::Cache {
            name: self.name.clone(),
            cache: self.options.cache_dir.clone(),
            source: source.into(),
        }
    }
}

/// Passes progress on, merged to few events.
struct Reporter {
    sender: SyncSender<Message>,
    pending: u64,
    reported: Instant,
}

impl Reporter {
    fn new(sender: SyncSender<Message>) -> Self {
        Self { sender, pending: 0, reported: Instant::now() }
    }

    fn send(&self, event: HubEvent) {
        // The receiver is gone only if it gave up on a stall.
        let _ = self.sender.send(Message::Event(event));
    }
}

impl Progress for Reporter {
    fn init(&mut self, size: usize, filename: &str) {
        self.send(HubEvent::File { name: filename.to_owned(), bytes: size as u64 });
    }

    fn update(&mut self, size: usize) {
        self.pending += size as u64;
        if self.pending >= REPORT_BYTES || self.reported.elapsed() >= REPORT_INTERVAL {
            self.reported = Instant::now();
            let bytes = std::mem::take(&mut self.pending);
            self.send(HubEvent::Bytes(bytes));
        }
    }

    fn finish(&mut self) {
        let bytes = std::mem::take(&mut self.pending);
        self.send(HubEvent::Bytes(bytes));
        self.send(HubEvent::Done);
    }
}
