//! Giving up: every operation ends at once, and every connected peer is told why.

use std::time::Duration;

use muster_proto::Rank;

use super::link::Link;
use super::{Action, Engine};
use crate::error::{Error, Loss, Phase};
use crate::frame::FrameKind;

/// Longest text in an abort frame, in bytes.
const MAX_TEXT_BYTES: usize = 4096;

impl Engine {
    /// Ends everything with an error of the caller; needs no peer.
    pub fn abort(&mut self, reason: &str, now: Duration) {
        self.now = now;
        self.fail(Error::Aborted { peer: self.me, reason: reason.to_owned() });
    }

    /// Ends everything with an error that was found elsewhere.
    pub(crate) fn fail_with(&mut self, error: Error, now: Duration) {
        self.now = now;
        self.fail(error);
    }

    /// Tells the peers that this rank leaves. Operations under way end with [`Error::Closed`].
    pub(crate) fn close(&mut self, now: Duration) {
        self.now = now;
        let me = self.me;
        if !self.ops.is_empty() {
            return self.fail(Error::Aborted {
                peer: me,
                reason: "it was closed while operations were under way".into(),
            });
        }
        for peer in (0..self.links.len() as u32).map(Rank) {
            if self.links[peer.0 as usize].streams > 0 {
                self.control(peer, FrameKind::Goodbye, None, false, Vec::new());
            }
        }
    }

    /// After a failure: whether a peer that operations needed has never been connected, so that it doesn't know yet.
    pub(crate) fn has_untold_peers(&self) -> bool {
        self.failed.is_some() && self.links.iter().any(|link| link.wanted_since.is_some() && !link.was_up)
    }

    pub(super) fn fail(&mut self, error: Error) {
        if self.failed.is_some() {
            return;
        }
        self.fail_quietly(error.clone());
        for peer in (0..self.links.len() as u32).map(Rank) {
            if self.links[peer.0 as usize].streams > 0 {
                self.tell_failure(peer, &error);
            }
        }
    }

    pub(super) fn fail_quietly(&mut self, error: Error) {
        self.stuck = self.waiting();
        self.failed = Some(error.clone());
        self.links.iter_mut().for_each(Link::clear);
        for (_, op) in std::mem::take(&mut self.ops) {
            self.end(op, Err(error.clone()));
        }
        self.retired.clear();
        self.actions.push_back(Action::Failed(error));
    }

    pub(super) fn tell_failure(&mut self, peer: Rank, error: &Error) {
        self.control(peer, FrameKind::Abort, None, false, encode(self.me, error));
    }
}

/// Writes an error for the peers: a tag, three numbers and two texts.
fn encode(me: Rank, error: &Error) -> Vec<u8> {
    let age = |silent: &Option<Duration>| silent.map_or(u64::MAX, |s| s.as_millis() as u64);
    let (tag, a, b, number, texts) = match error {
        Error::PeerLost { me, loss } => {
            (1, *me, loss.peer, age(&loss.silent), [loss.cause.clone(), address(loss.address)])
        }
        Error::Mismatch { me, peer, operation, mine, theirs } => {
            (2, *me, *peer, *operation, [mine.clone(), theirs.clone()])
        }
        Error::Stalled { me, peer, operation, name, address: at, .. } => {
            (3, *me, *peer, *operation, [name.clone(), address(*at)])
        }
        Error::Aborted { peer, reason } => (4, me, *peer, 0, [reason.clone(), String::new()]),
        other => (4, me, me, 0, [other.to_string(), String::new()]),
    };
    let mut bytes = vec![tag];
    bytes.extend(a.0.to_le_bytes());
    bytes.extend(b.0.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    if let Error::Stalled { waited, silent, .. } = error {
        bytes.extend((waited.as_millis() as u64).to_le_bytes());
        bytes.extend(age(silent).to_le_bytes());
    } else {
        bytes.extend([0; 16]);
    }
    for text in texts {
        let mut end = text.len().min(MAX_TEXT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        bytes.extend((end as u32).to_le_bytes());
        bytes.extend(&text.as_bytes()[..end]);
    }
    bytes
}

fn address(address: Option<std::net::SocketAddr>) -> String {
    address.map(|a| a.to_string()).unwrap_or_default()
}

/// Reads an error of a peer; none if the bytes are none.
pub(super) fn decode(bytes: &[u8]) -> Option<Error> {
    let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let rank = |at: usize| Some(Rank(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)));
    let age = |ms: u64| (ms != u64::MAX).then(|| Duration::from_millis(ms));
    let (me, peer, number) = (rank(1)?, rank(5)?, long(9)?);
    let (waited, silent) = (long(17)?, long(25)?);
    let mut rest = bytes.get(33..)?;
    let mut text = || {
        let len = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?) as usize;
        let text = rest.get(4..4_usize.checked_add(len)?)?;
        rest = &rest[4 + len..];
        Some(String::from_utf8_lossy(text).into_owned())
    };
    let (first, second) = (text()?, text()?);
    Some(match bytes.first()? {
        1 => {
            let (address, silent, phase) = (second.parse().ok(), age(number), Phase::Transfer);
            Error::PeerLost { me, loss: Loss { peer, address, phase, silent, cause: first } }
        }
        2 => Error::Mismatch { me, peer, operation: number, mine: first, theirs: second },
        3 => Error::Stalled {
            me,
            peer,
            address: second.parse().ok(),
            operation: number,
            name: first,
            waited: Duration::from_millis(waited),
            silent: age(silent),
        },
        4 => Error::Aborted { peer, reason: first },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_survive_the_wire() {
        let (me, peer, address) = (Rank(1), Rank(2), Some(([10, 0, 0, 2], 80).into()));
        let silent = Some(Duration::from_millis(1500));
        let loss = Loss { peer, address, phase: Phase::Transfer, silent, cause: "reset".into() };
        let waited = Duration::from_secs(9);
        for error in [
            Error::PeerLost { me, loss },
            Error::Mismatch { me, peer, operation: 7, mine: "a".into(), theirs: "b".into() },
            Error::Stalled { me, peer, address, operation: 7, name: "é".into(), waited, silent },
            Error::Aborted { peer, reason: String::new() },
        ] {
            let bytes = encode(Rank(0), &error);
            assert_eq!(decode(&bytes).unwrap().to_string(), error.to_string());
            assert!(decode(&bytes[..bytes.len() - 1]).is_none());
        }
    }

    proptest! {
        #[test]
        fn aborts_of_any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(&bytes);
        }
    }
}
