//! Checks of the other end's certificate: its chain, its dates, its role and, where it was dialled by name, its name.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};

use crate::identity::{Identity, Role};

/// A certificate of the right CA and the wrong role.
#[derive(Debug)]
pub(crate) struct WrongRole {
    pub found: Option<Identity>,
    pub wanted: Role,
}

impl fmt::Display for WrongRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted = self.wanted;
        match &self.found {
            Some(found) => write!(f, "its certificate is that of {found}, and not of a {wanted}"),
            None => write!(f, "its certificate has no role, and should be that of a {wanted}"),
        }
    }
}

impl std::error::Error for WrongRole {}

fn check_role(certificate: &CertificateDer<'_>, wanted: Role) -> Result<(), Error> {
    let found = Identity::of(certificate);
    if found.as_ref().is_some_and(|found| found.role == wanted) {
        return Ok(());
    }
    let wrong = WrongRole { found, wanted };
    Err(CertificateError::Other(OtherError(Arc::new(wrong))).into())
}

/// The answer to a signature of TLS 1.2, which no configuration here offers.
fn only_tls13() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.2 is not spoken here".into()))
}

/// Whether the name that was dialled must stand in the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// The user typed it.
    Checked,
    /// Addresses come from discovery and change; the role is what counts.
    Any,
}

/// The dialling end's check.
#[derive(Debug)]
pub(crate) struct ServerCheck {
    pub roots: Arc<RootCertStore>,
    pub algorithms: WebPkiSupportedAlgorithms,
    pub wanted: Role,
    pub names: Names,
}

impl ServerCertVerifier for ServerCheck {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)?;
        check_role(certificate, self.wanted)?;
        if self.names == Names::Checked {
            verify_server_name(&parsed, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        only_tls13()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The accepting end's check; with a role, no other may connect.
#[derive(Debug)]
pub(crate) struct ClientCheck {
    pub chain: Arc<dyn ClientCertVerifier>,
    pub wanted: Option<Role>,
}

impl ClientCheck {
    pub fn new(
        roots: &Arc<RootCertStore>,
        provider: &Arc<rustls::crypto::CryptoProvider>,
        wanted: Option<Role>,
    ) -> Result<Self, rustls::server::VerifierBuilderError> {
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider));
        Ok(Self { chain: builder.build()?, wanted })
    }
}

impl ClientCertVerifier for ClientCheck {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(certificate, intermediates, now)?;
        self.wanted.map_or(Ok(()), |wanted| check_role(certificate, wanted))?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        only_tls13()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use rustls::crypto::ring::default_provider;

    use super::*;
    use crate::authority::{self, Request};
    use crate::explain::explain_tls;
    use crate::files::read_certificates;

    fn authority(dir: &Path) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        let ca = authority::init(dir, 400).unwrap().cert;
        roots.add(read_certificates(&ca).unwrap().remove(0)).unwrap();
        Arc::new(roots)
    }

    fn issue(dir: &Path, role: Role) -> CertificateDer<'static> {
        let identity = Identity { role, name: "one".into() };
        let issued = authority::issue(dir, &Request { identity, hosts: Vec::new(), days: 30 }).unwrap();
        read_certificates(&issued.cert).unwrap().remove(0)
    }

    #[test]
    fn chain_dates_role_and_name_are_checked_and_refusals_say_which() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (roots, foreign) = (authority(dir.path()), authority(other.path()));
        let (agent, client) = (issue(dir.path(), Role::Trainer), issue(dir.path(), Role::Client));
        let algorithms = default_provider().signature_verification_algorithms;
        let check = |roots: &Arc<RootCertStore>, names| ServerCheck {
            roots: Arc::clone(roots),
            algorithms,
            wanted: Role::Trainer,
            names,
        };
        let now = UnixTime::now().as_secs();
        let verify = |check: &ServerCheck, certificate: &CertificateDer<'_>, host: &'static str, at: u64| {
            let (name, at) = (ServerName::try_from(host).unwrap(), Duration::from_secs(at));
            let at = UnixTime::since_unix_epoch(at);
            check
                .verify_server_cert(certificate, &[], &name, &[], at)
                .map(drop)
                .map_err(|e| explain_tls(&e).text)
        };
        let refusal = |text: &str| Err(text.to_owned());
        let any = check(&roots, Names::Any);
        assert_eq!(verify(&any, &agent, "10.1.2.3", now), Ok(()));
        assert_eq!(verify(&any, &agent, "x", now + 31 * 86_400), refusal("its certificate has expired"));
        assert_eq!(verify(&any, &agent, "x", now - 3_600), refusal("its certificate is not valid yet"));
        let wrong = refusal("its certificate is that of client/one, and not of a trainer");
        assert_eq!(verify(&any, &client, "x", now), wrong);
        let foreign = check(&foreign, Names::Any);
        assert_eq!(verify(&foreign, &agent, "x", now), refusal("its certificate comes from another CA"));
        let named = check(&roots, Names::Checked);
        assert_eq!(verify(&named, &agent, "localhost", now), Ok(()));
        assert_eq!(verify(&named, &agent, "::1", now), Ok(()));
        let wrong = "its certificate is for localhost, 127.0.0.1, ::1, and not for example.org";
        assert_eq!(verify(&named, &agent, "example.org", now), refusal(wrong));
        let clients = ClientCheck::new(&roots, &Arc::new(default_provider()), Some(Role::Trainer)).unwrap();
        assert!(clients.verify_client_cert(&agent, &[], UnixTime::now()).is_ok());
        assert!(clients.verify_client_cert(&client, &[], UnixTime::now()).is_err());
    }
}
