//! Finding agents.

use std::collections::BTreeSet;
use std::future::Future;

pub use announced::{AnnounceError, Announced, Announcer};
pub use static_list::StaticList;

mod announced;
mod static_list;

/// A way to find the addresses of agents.
pub trait Discovery: Send + 'static {
    /// How agents are found, for people.
    fn describe(&self) -> String;

    /// All addresses that are known, `ip:port`, as soon as they differ from the last ones that were told.
    fn changed(&mut self) -> impl Future<Output = BTreeSet<String>> + Send;
}
