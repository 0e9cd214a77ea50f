//! Whether connections of a process are encrypted, and where they may go if not.

use std::net::{IpAddr, SocketAddr};

use tonic::{Request, Status};

use crate::conn::Peer;
use crate::error::TlsError;
use crate::identity::Role;
use crate::tls::Tls;

/// How a process protects its connections.
#[derive(Debug, Clone, Default)]
pub struct Security {
    /// Its certificates; without, connections are plaintext.
    pub tls: Option<Tls>,
    /// Whether plaintext may leave this machine.
    pub allows_plaintext: bool,
}

impl Security {
    /// Checks that it may listen on an address.
    ///
    /// # Errors
    /// [`TlsError::Plaintext`] beyond loopback without TLS, unless that was asked for.
    pub fn may_listen(&self, address: SocketAddr) -> Result<(), TlsError> {
        self.check(address.ip().is_loopback(), || format!("listening on {address}"))
    }

    /// Checks that it may connect to `host:port`.
    ///
    /// # Errors
    /// As [`Security::may_listen`].
    pub fn may_dial(&self, address: &str) -> Result<(), TlsError> {
        self.check(is_this_machine(address), || format!("connecting to {address}"))
    }

    fn check(&self, is_here: bool, what: impl FnOnce() -> String) -> Result<(), TlsError> {
        if self.tls.is_some() || self.allows_plaintext || is_here {
            return Ok(());
        }
        Err(TlsError::Plaintext { what: what() })
    }
}

/// Whether `host:port` is loopback. Other names may lead anywhere.
pub fn is_this_machine(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// For a server all of whose methods are for one role: refuses others. Without TLS everybody counts as everything.
///
/// # Errors
/// PERMISSION_DENIED, with the role that was shown and the one that it takes.
#[allow(clippy::result_large_err, reason = "tonic's interceptors return this type")]
pub fn require<T>(request: &Request<T>, wanted: Role) -> Result<(), Status> {
    let identity = request.extensions().get::<Peer>().and_then(|peer| peer.identity.as_ref());
    match identity {
        Some(identity) if identity.role != wanted => Err(Status::permission_denied(format!(
            "the certificate of {identity} may not do that: it takes one of a {wanted} (`muster certs issue {wanted} NAME`)"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_stays_on_this_machine_unless_asked_for() {
        let closed = Security::default();
        let open = Security { allows_plaintext: true, ..Security::default() };
        for (address, is_here) in [
            ("127.0.0.1:1", true),
            ("127.1.2.3:1", true),
            ("localhost:1", true),
            ("[::1]:1", true),
            ("10.0.0.1:1", false),
            ("localhost.example.org:1", false),
            ("[::]:1", false),
        ] {
            assert_eq!(closed.may_dial(address).is_ok(), is_here, "{address}");
            assert!(open.may_dial(address).is_ok());
            if let Ok(socket) = address.parse() {
                assert_eq!(closed.may_listen(socket).is_ok(), is_here, "{address}");
            }
        }
        assert!(closed.may_listen(([0, 0, 0, 0], 1).into()).is_err());
    }
}
