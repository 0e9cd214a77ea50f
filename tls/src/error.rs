//! What can be wrong with certificates and the rules around them.

use std::path::{Path, PathBuf};

/// Why certificates can't be made or used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("can't read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file can't be written.
    #[error("can't write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file is there already.
    #[error("{} is there already and is never overwritten", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file does not hold what it should.
    #[error("{}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// What the user can do about it.
        hint: String,
    },
    /// Some but not all of the three files are given.
    #[error("TLS takes a CA, a certificate and its key, but {missing} is not given")]
    Incomplete {
        /// The option that is missing.
        missing: &'static str,
    },
    /// Plaintext would leave this machine.
    #[error("{what} without TLS, beyond this machine")]
    Plaintext {
        /// What was to be done.
        what: String,
    },
    /// A name that can't be used.
    #[error("{name:?} is no name: letters, digits, '-', '_' and '.' are, up to 64 of them")]
    Name {
        /// The name.
        name: String,
    },
    /// Something that no certificate can be made of.
    #[error("{what}")]
    Request {
        /// What is wrong.
        what: String,
    },
    /// The certificate can't be made.
    #[error("can't make the certificate")]
    Generate(#[from] rcgen::Error),
    /// The TLS library refuses what the files hold.
    #[error("these certificates can't be used together: {} and {}", cert.display(), key.display())]
    Library {
        /// The certificate.
        cert: PathBuf,
        /// Its key.
        key: PathBuf,
        /// Why not.
        #[source]
        source: rustls::Error,
    },
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

impl TlsError {
    pub(crate) fn invalid(path: &Path, problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Invalid { path: path.into(), problem: problem.into(), hint: hint.into() }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Read { .. } => "`muster certs init` and `muster certs issue` make these files",
            Self::Write { .. } => "give --dir a directory that this process may write",
            Self::Exists { .. } => "choose another name or directory, or move the old one away first",
            Self::Invalid { hint, .. } => hint,
            Self::Incomplete { .. } => {
                "give --tls-ca, --tls-cert and --tls-key, or MUSTER_TLS_CA, MUSTER_TLS_CERT and MUSTER_TLS_KEY"
            }
            Self::Plaintext { .. } => {
                "give --tls-ca, --tls-cert and --tls-key (`muster certs` makes them), or --insecure if everybody who \
                 reaches this network may start programs on the nodes"
            }
            Self::Library { .. } => {
                "a key belongs to one certificate: give the pair that was issued together"
            }
            Self::Name { .. } | Self::Request { .. } | Self::Generate(_) | Self::Random => return None,
        };
        Some(hint.into()).filter(|hint: &String| !hint.is_empty())
    }
}
