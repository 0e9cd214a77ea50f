//! Who a certificate belongs to.

use std::fmt;

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What somebody is in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Gives runs to nodes.
    Coordinator,
    /// An agent and its ranks.
    Trainer,
    /// A person or a program that asks the coordinator.
    Client,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Coordinator, Self::Trainer, Self::Client];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Trainer => "trainer",
            Self::Client => "client",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A role and a name, as a certificate tells them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// What it is.
    pub role: Role,
    /// Which one.
    pub name: String,
}

/// Longest name, in bytes.
const MAX_NAME_BYTES: usize = 64;

const SCHEME: &str = "muster://";

/// Whether a name can stand in a certificate, a file name and a line of tokens.
pub(crate) fn is_name(name: &str) -> bool {
    let first = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let rest = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    first && rest && name.len() <= MAX_NAME_BYTES
}

impl Identity {
    /// The URI that stands in its certificate.
    pub fn uri(&self) -> String {
        format!("{SCHEME}{}/{}", self.role, self.name)
    }

    /// Reads such a URI.
    pub fn parse(uri: &str) -> Option<Self> {
        let (role, name) = uri.strip_prefix(SCHEME)?.split_once('/')?;
        let role = Role::ALL.into_iter().find(|known| known.name() == role)?;
        is_name(name).then(|| Self { role, name: name.to_owned() })
    }

    /// The identity in a certificate; none if it has none, or more than one.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        Self::of_parsed(&parsed)
    }

    pub(crate) fn of_parsed(parsed: &X509Certificate<'_>) -> Option<Self> {
        let names = parsed.subject_alternative_name().ok()??;
        let mut uris = names.value.general_names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => Self::parse(uri),
            _ => None,
        });
        let first = uris.next()?;
        uris.next().is_none().then_some(first)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.role, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_uris_of_known_roles_and_plain_names_are_identities() {
        for role in Role::ALL {
            let identity = Identity { role, name: "node-1.b_c".into() };
            assert_eq!(Identity::parse(&identity.uri()), Some(identity));
        }
        for uri in [
            "muster://root/x",
            "muster://client/",
            "muster://client",
            "muster://client/a/b",
            "muster://client/a b",
            "muster://client/-a",
            "spiffe://client/a",
            "MUSTER://client/a",
        ] {
            assert_eq!(Identity::parse(uri), None, "{uri}");
        }
        assert!(!is_name(&"x".repeat(65)));
    }
}
