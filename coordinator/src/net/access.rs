//! Who may ask for what. With TLS a certificate's role decides, and with tokens whatever changes something takes one.
//!
//! | request | certificate | token |
//! |---|---|---|
//! | submit, cancel | client | if the coordinator has tokens |
//! | get, list, watch, logs, nodes | client | no |
//! | announce | trainer | no |
//! | health, reflection | any | no |

use muster_proto::limits::MAX_TOKEN_BYTES;
use muster_tls::{Peer, Role, Tokens, require};
use tonic::{Request, Status};

/// The rules of a running coordinator.
#[derive(Debug, Default)]
pub(super) struct Access {
    pub tokens: Option<Tokens>,
}

const HOW: &str =
    "who runs the coordinator makes one with `muster certs token`; give it with --token-file or MUSTER_TOKEN";

#[allow(clippy::result_large_err, reason = "tonic's services return this type")]
impl Access {
    /// Something that only looks.
    pub fn read<T>(&self, request: &Request<T>) -> Result<(), Status> {
        require(request, Role::Client)
    }

    /// An agent says where it is.
    pub fn announce<T>(&self, request: &Request<T>) -> Result<(), Status> {
        require(request, Role::Trainer)
    }

    /// Something that changes runs; returns who asks for it, empty if nobody proved that.
    pub fn change<T>(&self, request: &Request<T>) -> Result<String, Status> {
        require(request, Role::Client)?;
        let peer = request.extensions().get::<Peer>();
        let Some(tokens) = &self.tokens else {
            let identity = peer.and_then(|peer| peer.identity.as_ref());
            return Ok(identity.map(|identity| identity.name.clone()).unwrap_or_default());
        };
        let header = request.metadata().get("authorization");
        let header = header.ok_or_else(|| Status::unauthenticated(format!("this takes a token: {HOW}")))?;
        let token = header.to_str().ok().and_then(|text| text.strip_prefix("Bearer "));
        let token = token.filter(|token| token.len() <= MAX_TOKEN_BYTES);
        let token = token.ok_or_else(|| Status::unauthenticated(format!("that is no token: {HOW}")))?;
        tokens.check(token).map_err(|error| {
            if let Some(peer) = peer {
                tracing::warn!("a request from {} is refused: {error}", peer.address);
            }
            Status::unauthenticated(format!("{error}: {HOW}"))
        })
    }
}
