//! Commands of a cluster: the coordinator, node agents, and what people ask of them.

pub mod args;
mod client;
mod coordinator;
mod discover;
mod follow;
mod health;
mod metrics;
mod nodes;
mod pod;
mod runs;
mod security;
mod submit;
mod sweep;
mod trainer;
mod words;

pub use client::ClientError;
pub use coordinator::run as coordinator;
pub use follow::logs;
pub use nodes::run as nodes;
pub use runs::{cancel, list, status};
pub use submit::run as submit;
pub use trainer::run as trainer;

use anyhow::Context;

/// An event loop for a server.
fn server_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.context("can't make an event loop")
}

/// An event loop for one request.
fn client_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("can't make an event loop")
}
