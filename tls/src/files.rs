//! The three files of a process: the CA, its certificate and its key.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use muster_proto::limits::MAX_CERTIFICATE_BYTES;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::TlsError;
use crate::identity::{Identity, Role};
use crate::info::{CertificateInfo, now, until};

/// Where the files are. They are read again when they change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the CA that the cluster has in common.
    pub ca: PathBuf,
    /// Certificate of this process, and what is between it and the CA.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// What shows that a file has changed: device, inode, size, time of the last change.
pub(crate) type Stamp = [Option<(u64, u64, u64, i64, i64)>; 3];

/// What the files hold.
pub(crate) struct Loaded {
    pub roots: RootCertStore,
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub identity: Identity,
    pub not_after: i64,
}

impl TlsFiles {
    /// The files from three options; none if none is given.
    ///
    /// # Errors
    /// [`TlsError::Incomplete`] if only some are given.
    pub fn from_options(
        ca: Option<PathBuf>,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Result<Option<Self>, TlsError> {
        match (ca, cert, key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => Ok(Some(Self { ca, cert, key })),
            (None, ..) => Err(TlsError::Incomplete { missing: "--tls-ca" }),
            (_, None, _) => Err(TlsError::Incomplete { missing: "--tls-cert" }),
            (.., None) => Err(TlsError::Incomplete { missing: "--tls-key" }),
        }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        [&self.ca, &self.cert, &self.key].map(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
        })
    }

    /// Reads them, for a process of a role.
    pub(crate) fn load(&self, role: Role) -> Result<Loaded, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(&self.ca)? {
            let added = roots.add(certificate);
            added.map_err(|e| TlsError::invalid(&self.ca, format!("no CA can be this: {e}"), CA_HINT))?;
        }
        let chain = read_certificates(&self.cert)?;
        let info = CertificateInfo::of(&self.cert, &chain[0])?;
        let issue = format!("issue one with `muster certs issue {role} NAME`");
        let Some(identity) = info.identity else {
            let problem = "the certificate has no role (a URI muster://ROLE/NAME among its names)";
            return Err(TlsError::invalid(&self.cert, problem, issue));
        };
        if identity.role != role {
            let problem = format!("this is the certificate of {identity}, and a {role} needs one of its own");
            return Err(TlsError::invalid(&self.cert, problem, issue));
        }
        if info.not_after <= now() {
            let problem = format!("the certificate {}", until(info.not_after, now()));
            return Err(TlsError::invalid(&self.cert, problem, issue));
        }
        let bytes = read(&self.key)?;
        let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| {
            let hint = "give the key that was issued with the certificate";
            TlsError::invalid(&self.key, format!("it holds no private key as PEM: {e}"), hint)
        })?;
        Ok(Loaded { roots, chain, key, identity, not_after: info.not_after })
    }
}

const CA_HINT: &str = "give the ca.pem of `muster certs init`";

/// All certificates of a file; at least one.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let hint = "a certificate begins with the line -----BEGIN CERTIFICATE-----";
    match certificates {
        Ok(certificates) if certificates.is_empty() => {
            Err(TlsError::invalid(path, "it holds no certificate as PEM", hint))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(TlsError::invalid(path, format!("it is damaged: {error}"), hint)),
    }
}

/// Reads a file of bounded size.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { path: path.into(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_CERTIFICATE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_CERTIFICATE_BYTES {
        let problem = format!("it has more than {MAX_CERTIFICATE_BYTES} bytes");
        return Err(TlsError::invalid(path, problem, "is this the right file?"));
    }
    Ok(bytes)
}
