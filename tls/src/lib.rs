//! Who may talk to whom: certificates with roles, mutual TLS for gRPC connections, tokens of submitters.
//!
//! A cluster has a CA of its own ([`authority`]). Whoever holds a certificate of it is known by the URI in it,
//! `muster://ROLE/NAME` ([`Identity`]). [`Tls`] reads certificate files, and reads them again when they change; [`Incoming`]
//! and [`dial`] use it on both ends of gRPC connections, and plaintext where there is none. [`Tokens`] says which people
//! may change something.
//!
//! Invariants
//! * TLS 1.3 only, both ends prove who they are, and each checks the other's role.
//! * A stranger costs a bounded number of sockets for a bounded time, and a log line that is limited in rate.
//! * Plaintext leaves the machine only if somebody asked for it ([`Security`]).
//!
//! It knows nothing of runs: which role may do what is decided where it is done.
#![forbid(unsafe_code)]

pub mod authority;
mod conn;
mod dial;
mod error;
mod explain;
mod files;
mod identity;
mod incoming;
mod info;
mod security;
mod tls;
mod token;
mod verify;

pub use conn::{Conn, Peer};
pub use dial::{Target, dial};
pub use error::TlsError;
pub use explain::{Trouble, explain, explain_tls};
pub use files::TlsFiles;
pub use identity::{Identity, Role};
pub use incoming::Incoming;
pub use info::{CertificateInfo, until};
pub use security::{Security, is_this_machine, require};
pub use tls::{RankTls, Tls};
pub use token::{Secret, TokenError, TokenInfo, Tokens, add_token};
