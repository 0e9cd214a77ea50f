//! What can go wrong while a model is found and fetched.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Reasons why a model can't be found or fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Neither an existing folder nor a possible hub name.
    #[error("`{name}` is neither a folder nor a hub name like `org/model`")]
    NotAModel {
        /// What was given.
        name: String,
    },
    /// The path is a file.
    #[error("`{name}` is a file; a model is a folder")]
    IsFile {
        /// What was given.
        name: String,
    },
    /// The revision can't be one.
    #[error("`{revision}` is not a revision: a branch, a tag or a commit")]
    Revision {
        /// What was given.
        revision: String,
    },
    /// The hub has no such model or revision.
    #[error("{endpoint} has no model `{name}` at revision `{revision}`{said}", said = said(message))]
    NotFound {
        /// Model.
        name: String,
        /// Revision.
        revision: String,
        /// Hub asked.
        endpoint: String,
        /// What the hub said about it.
        message: Option<String>,
    },
    /// The hub wants to know who asks, or refuses this user.
    #[error("{endpoint} refuses access to `{name}` (HTTP {status}){said}", said = said(message))]
    Denied {
        /// Model.
        name: String,
        /// Hub asked.
        endpoint: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        had_token: bool,
        /// What the hub said about it.
        message: Option<String>,
    },
    /// The hub answered something unexpected.
    #[error("{endpoint} answered HTTP {status} for `{name}`{said}", said = said(message))]
    Status {
        /// Model.
        name: String,
        /// Hub asked.
        endpoint: String,
        /// The answer.
        status: u16,
        /// What the hub said about it.
        message: Option<String>,
    },
    /// The hub can't be reached.
    #[error("can't reach {endpoint} for `{name}`")]
    Network {
        /// Model.
        name: String,
        /// Hub asked.
        endpoint: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Nothing arrived for too long.
    #[error("nothing arrived from {endpoint} for {waited:?} while fetching {file} of `{name}`")]
    Stalled {
        /// Model.
        name: String,
        /// Hub asked.
        endpoint: String,
        /// File being fetched.
        file: String,
        /// How long.
        waited: Duration,
    },
    /// Downloads are switched off and the cache has no usable copy.
    #[error("`{name}` is not in the cache {cache} and offline mode is on", cache = cache.display())]
    Offline {
        /// Model.
        name: String,
        /// Cache folder.
        cache: PathBuf,
    },
    /// The model has no file of a kind that is needed.
    #[error("`{name}` on {endpoint} has no {what}: looked for {looked_for}{others}", looked_for = looked_for.join(", "),
        others = if foreign.is_empty() { String::new() } else { format!("; found only {}", foreign.join(", ")) })]
    Lacks {
        /// Model.
        name: String,
        /// Hub asked.
        endpoint: String,
        /// `config.json`, `weights` or `tokenizer`.
        what: &'static str,
        /// Names looked for.
        looked_for: Vec<&'static str>,
        /// Weight files of other frameworks.
        foreign: Vec<String>,
    },
    /// The cache folder can't be used, or another process is downloading the same file.
    #[error("can't use the cache {cache} for `{name}`", cache = cache.display())]
    Cache {
        /// Model.
        name: String,
        /// Cache folder.
        cache: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No cache folder: neither a variable nor a home directory says where.
    #[error("no cache folder for hub models: none of HF_HUB_CACHE, HF_HOME and HOME is set")]
    NoCacheDir,
    /// The token file exists but can't be read.
    #[error("can't read the token file {path}", path = path.display())]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl HubError {
    /// Gives the fix for the user, where there is one.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotAModel { .. } => "check the path; relative paths start at the run file's folder".into(),
            Self::IsFile { .. } => "name the folder that holds config.json and the weights".into(),
            Self::NotFound { .. } => "check the spelling; a private model also needs HF_TOKEN".into(),
            Self::Denied { had_token: false, .. } => {
                "accept the model's terms on its page if it has any, then set HF_TOKEN to a token with read access".into()
            }
            Self::Denied { name, .. } => {
                format!("the token in HF_TOKEN has no access; accept the terms of `{name}` on its page")
            }
            Self::Network { .. } | Self::Stalled { .. } => "set HF_ENDPOINT to a reachable mirror, or fetch the model \
                 elsewhere and give its folder; a model in the cache needs no network"
                .into(),
            Self::Offline { .. } => "unset HF_HUB_OFFLINE, or copy the model here and give its folder".into(),
            Self::Lacks { what: "weights", .. } => "save it as safetensors with transformers and give the folder".into(),
            Self::Cache { .. } => "set HF_HUB_CACHE to a folder you can write; another download may be running".into(),
            Self::NoCacheDir => "set HF_HOME".into(),
            _ => return None,
        })
    }
}

fn said(message: &Option<String>) -> String {
    message.as_ref().map(|text| format!(": {text}")).unwrap_or_default()
}
