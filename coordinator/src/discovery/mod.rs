//! Finding agents.
//!
//! A [`Discovery`] says which agents should exist and where; whether they do is for sessions to find out. Knowledge that
//! can't be renewed is kept, and its age is told: a name server or API server that is away stops nothing.

use std::collections::BTreeMap;
use std::future::Future;

pub use announced::{AnnounceError, Announced, Announcer};
pub use demand::Demand;
pub use pod::ListedPod;
pub use standing::Standing;
pub use static_list::StaticList;

mod announced;
mod demand;
pub mod dns;
pub mod kubernetes;
mod pod;
mod standing;
mod static_list;

/// Agents by their addresses, `ip:port`, with what the cluster says about each.
pub type Found = BTreeMap<String, Option<ListedPod>>;

/// A way to find agents.
pub trait Discovery: Send + 'static {
    /// How agents are found, and how old that knowledge is.
    fn standing(&self) -> Standing;

    /// All agents that are known, as soon as they differ from the last ones that were told.
    fn changed(&mut self) -> impl Future<Output = Found> + Send;
}
