//! A fixed list of agents; host names in it are resolved again and again.

use std::collections::BTreeSet;

use muster_proto::limits::{CONNECT_TIMEOUT, MAX_NODES, RESOLVE_INTERVAL};

use super::{Discovery, Found, Standing};

/// Agents by a list of `host:port`.
#[derive(Debug)]
pub struct StaticList {
    names: Vec<String>,
    told: Option<BTreeSet<String>>,
}

impl StaticList {
    /// A list of `host:port`.
    pub fn new(names: Vec<String>) -> Self {
        Self { names, told: None }
    }

    /// A name may have several addresses (a headless service has one for each pod). A name that can't be resolved now
    /// keeps what it had: a name server that is away must not stop anything.
    async fn resolve(&self) -> BTreeSet<String> {
        let mut addresses = BTreeSet::new();
        let mut failed = false;
        for name in &self.names {
            match tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::lookup_host(name)).await {
                Ok(Ok(found)) => addresses.extend(found.take(MAX_NODES).map(|address| address.to_string())),
                Ok(Err(error)) => {
                    failed = true;
                    tracing::warn!("can't resolve the agent {name}: {error}");
                }
                Err(_) => {
                    failed = true;
                    tracing::warn!("resolving the agent {name} takes more than {CONNECT_TIMEOUT:?}");
                }
            }
        }
        if failed {
            addresses.extend(self.told.iter().flatten().cloned());
        }
        addresses
    }
}

impl Discovery for StaticList {
    fn standing(&self) -> Standing {
        Standing::given("static", format!("a list of agents: {}", self.names.join(", ")))
    }

    async fn changed(&mut self) -> Found {
        loop {
            let addresses = self.resolve().await;
            if self.told.as_ref() != Some(&addresses) {
                self.told = Some(addresses.clone());
                return addresses.into_iter().map(|address| (address, None)).collect();
            }
            tokio::time::sleep(RESOLVE_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn literals_and_names_become_addresses_and_a_wrong_name_harms_nobody() {
        let mut list = StaticList::new(vec!["127.0.0.1:7".into(), "localhost:8".into(), "no port".into()]);
        let found = list.changed().await;
        assert!(found.contains_key("127.0.0.1:7"), "{found:?}");
        assert!(found.keys().any(|address| address.ends_with(":8")), "{found:?}");
    }
}
