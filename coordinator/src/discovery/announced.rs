//! Agents that announce themselves; those that stop doing so are forgotten.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use muster_proto::limits::{ANNOUNCE_EXPIRY, MAX_NODES};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Discovery, Found, Standing};

/// Announcements that wait to be looked at.
const QUEUE: usize = 1_024;

/// Agents by their announcements.
#[derive(Debug)]
pub struct Announced {
    incoming: mpsc::Receiver<String>,
    seen: BTreeMap<String, Instant>,
}

/// Where announcements go.
#[derive(Debug, Clone)]
pub struct Announcer {
    queue: mpsc::Sender<String>,
}

/// Why an announcement is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnounceError {
    /// The address is no `ip:port`.
    #[error("an agent announces the address {0:?}; it must be ip:port, with a port above 0")]
    Address(String),
    /// Too many at once.
    #[error("too many announcements at once; try again")]
    Busy,
}

impl Announced {
    /// Discovery and the end that gets announcements.
    pub fn new() -> (Self, Announcer) {
        let (queue, incoming) = mpsc::channel(QUEUE);
        (Self { incoming, seen: BTreeMap::new() }, Announcer { queue })
    }
}

impl Announcer {
    /// Notes that an agent is at an address.
    ///
    /// # Errors
    /// An address that none can have, or too many announcements at once.
    pub fn announce(&self, address: &str) -> Result<(), AnnounceError> {
        let parsed = address.parse::<SocketAddr>().ok().filter(|a| a.port() != 0 && !a.ip().is_unspecified());
        let parsed = parsed.ok_or_else(|| AnnounceError::Address(address.chars().take(80).collect()))?;
        self.queue.try_send(parsed.to_string()).map_err(|_| AnnounceError::Busy)
    }
}

impl Discovery for Announced {
    fn standing(&self) -> Standing {
        Standing::given("announced", "announcements of agents")
    }

    async fn changed(&mut self) -> Found {
        loop {
            let next = self.seen.values().min().map(|at| *at + ANNOUNCE_EXPIRY);
            let expiry = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let before = self.seen.len();
            tokio::select! {
                address = self.incoming.recv() => match address {
                    Some(address) if self.seen.len() < MAX_NODES || self.seen.contains_key(&address) => {
                        self.seen.insert(address, Instant::now());
                    }
                    Some(_) => {}
                    // Nobody can announce any more; what is known stays until it expires.
                    None => tokio::time::sleep(ANNOUNCE_EXPIRY).await,
                },
                () = expiry => {}
            }
            self.seen.retain(|_, at| at.elapsed() < ANNOUNCE_EXPIRY);
            if self.seen.len() != before {
                return self.seen.keys().map(|address| (address.clone(), None)).collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn agents_come_with_their_announcements_and_go_without() {
        let (mut found, announcer) = Announced::new();
        announcer.announce("10.0.0.1:7").unwrap();
        assert_eq!(found.changed().await, Found::from([("10.0.0.1:7".to_owned(), None)]));
        for bad in ["", "host:7", "0.0.0.0:7", "10.0.0.1:0", "10.0.0.1"] {
            assert!(matches!(announcer.announce(bad), Err(AnnounceError::Address(_))), "{bad}");
        }
        assert_eq!(found.changed().await, Found::new(), "after the expiry");
    }
}
