//! Finds a model: a folder as it is, or a hub model through the cache that the Python tools share.
//!
//! A complete copy in the cache is used without asking the hub, so a run that worked once works again without a
//! network and with the same weights. Only needed files are fetched: configuration, tokenizer and one kind of
//! weights. The access token is sent only where access without it fails. Downloads run on a thread of their own, so that
//! a hub that stops answering ends in an error and not in a wait.
#![forbid(unsafe_code)]

mod error;
mod fetch;
mod files;
mod options;

use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo, RepoType};

use crate::export::CONFIG;

pub use error::HubError;
pub use options::{DEFAULT_ENDPOINT, HubOptions};

/// Branch used when no revision is given.
const DEFAULT_REVISION: &str = "main";
/// Longest part of a hub name; the hub's own limit.
const MAX_NAME_PART: usize = 96;

/// What a download is doing, for a progress display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubEvent {
    /// A file starts.
    File {
        /// Its name.
        name: String,
        /// Its size in bytes.
        bytes: u64,
    },
    /// Bytes arrived (or were there from an earlier attempt).
    Bytes(u64),
    /// The file is complete.
    Done,
}

/// Finds the folder of a model, fetching it if need be.
///
/// `name` is a folder, or a hub name such as `microsoft/deberta-v3-small`. Returns a folder with configuration,
/// tokenizer and weights; for a given folder nothing is checked here.
///
/// # Errors
/// Neither folder nor hub name, unknown or refused model, no network, or a model without files Muster reads.
pub fn resolve_model(
    name: &str,
    revision: Option<&str>,
    options: &HubOptions,
    progress: &mut dyn FnMut(HubEvent),
) -> Result<PathBuf, HubError> {
    let path = Path::new(name);
    if path.is_dir() {
        return Ok(path.to_owned());
    }
    if path.exists() {
        return Err(HubError::IsFile { name: name.to_owned() });
    }
    if !is_hub_name(name) {
        return Err(HubError::NotAModel { name: name.to_owned() });
    }
    let revision = revision.unwrap_or(DEFAULT_REVISION);
    if !is_revision(revision) {
        return Err(HubError::Revision { revision: revision.to_owned() });
    }
    if let Some(dir) = cached(name, revision, options) {
        tracing::debug!(model = name, dir = %dir.display(), "model found in the cache");
        return Ok(dir);
    }
    if options.offline {
        return Err(HubError::Offline { name: name.to_owned(), cache: options.cache_dir.clone() });
    }
    fetch::fetch(&fetch::Request { name, revision, options }, progress)
}

/// The complete snapshot of a model in the cache, by branch, tag or commit.
fn cached(name: &str, revision: &str, options: &HubOptions) -> Option<PathBuf> {
    let cache = Cache::new(options.cache_dir.clone());
    let repo = Repo::with_revision(name.to_owned(), RepoType::Model, revision.to_owned());
    let by_ref = cache.repo(repo.clone()).get(CONFIG).and_then(|path| Some(path.parent()?.to_owned()));
    let by_commit = (!revision.contains('/')).then(|| cache.repo(repo).pointer_path(revision));
    by_ref.into_iter().chain(by_commit).find(|dir| files::is_complete(dir))
}

/// Hub names: `org/model`, or `model` alone for the oldest ones; letters, digits, `-`, `_` and `.`.
fn is_hub_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let plain = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let edges = edge(part.bytes().next()) && edge(part.bytes().last());
        plain && edges && part.len() <= MAX_NAME_PART && !part.contains("--") && !part.contains("..")
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2 && parts.into_iter().all(is_part)
}

fn is_revision(revision: &str) -> bool {
    let plain = revision.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
    let parts = revision.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
    plain && parts && revision.len() <= 255
}
