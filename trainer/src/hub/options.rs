//! Where the hub is, who asks, and where copies are kept; from the variables that Hugging Face tools use.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_proto::limits::{HUB_STALL_TIMEOUT, MAX_TOKEN_FILE_BYTES};

use super::error::HubError;
use crate::bounded;

/// The public hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// How to reach a hub.
#[derive(Clone)]
pub struct HubOptions {
    /// Base address, without a slash at the end.
    pub endpoint: String,
    /// Access token; sent only to models that can't be read without one.
    pub token: Option<String>,
    /// Folder of `models--org--name` folders, shared with the Python tools.
    pub cache_dir: PathBuf,
    /// Use the cache only.
    pub offline: bool,
    /// A download without a byte for this long is given up.
    pub stall_timeout: Duration,
}

impl std::fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token stays out of logs.
        f.debug_struct("HubOptions")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "set"))
            .field("cache_dir", &self.cache_dir)
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

impl HubOptions {
    /// Reads `HF_ENDPOINT`, `HF_TOKEN` (else the file `HF_TOKEN_PATH` or `token` in `HF_HOME`), `HF_HUB_CACHE`,
    /// `HF_HOME` and `HF_HUB_OFFLINE` through `env`.
    ///
    /// # Errors
    /// No folder for the cache, or a token file that can't be read.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let var = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let home = var("HF_HOME")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(var("XDG_CACHE_HOME")?).join("huggingface")))
            .or_else(|| Some(PathBuf::from(var("HOME")?).join(".cache/huggingface")));
        let cache_dir = var("HF_HUB_CACHE").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join("hub")));
        let token_file =
            var("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join("token")));
        let token = match (var("HF_TOKEN"), token_file) {
            (Some(token), _) => Some(token.trim().to_owned()),
            (None, Some(path)) => read_token(&path)?,
            (None, None) => None,
        };
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        let offline = var("HF_HUB_OFFLINE").is_some_and(|value| {
            matches!(value.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
        });
        Ok(Self {
            endpoint: endpoint.trim().trim_end_matches('/').to_owned(),
            token,
            cache_dir: cache_dir.ok_or(HubError::NoCacheDir)?,
            offline,
            stall_timeout: HUB_STALL_TIMEOUT,
        })
    }
}

fn read_token(path: &Path) -> Result<Option<String>, HubError> {
    let text = bounded::read(path, MAX_TOKEN_FILE_BYTES)
        .map_err(io::Error::from)
        .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    match text {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty())),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(HubError::TokenFile { path: path.to_owned(), source }),
    }
}
