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
        Err(Error::General("TLS 1.2 is not spoken here".into()))
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
        Err(Error::General("TLS 1.2 is not spoken here".into()))
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
