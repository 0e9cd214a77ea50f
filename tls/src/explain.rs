//! Errors of TLS in words that say what to do.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError, Error as Tls};

/// What is wrong between two ends, seen from one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What is wrong.
    pub text: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}

impl Trouble {
    fn new(text: impl Into<String>, hint: &str) -> Self {
        Self { text: text.into(), hint: Some(hint.to_owned()).filter(|hint| !hint.is_empty()) }
    }
}

const SAME_CA: &str = "certificates of all parts come from one CA: `muster certs show` tells who issued what";
const OWN_CERTIFICATE: &str = "look at --tls-cert with `muster certs show`";
const GIVE_CERTIFICATE: &str = "give --tls-ca, --tls-cert and --tls-key; `muster certs issue` makes them";

/// What is known of an error that TLS is the cause of; none if it is not.
pub fn explain(error: &(dyn Error + 'static)) -> Option<Trouble> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<Tls>() {
            return Some(explain_tls(tls));
        }
        // The inner error of an I/O error is not its source.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(trouble) = inner.and_then(|inner| explain(inner as &(dyn Error + 'static))) {
            return Some(trouble);
        }
        next = error.source();
    }
    None
}

/// An error of the TLS library in words.
pub fn explain_tls(error: &Tls) -> Trouble {
    match error {
        Tls::InvalidCertificate(error) => explain_certificate(error),
        Tls::NoCertificatesPresented => Trouble::new("it has shown no certificate", GIVE_CERTIFICATE),
        Tls::InvalidMessage(_) | Tls::NoApplicationProtocol => Trouble::new(
            "it does not speak TLS",
            "is it a part of Muster, and were certificates given to it (--tls-cert)?",
        ),
        Tls::PeerIncompatible(error) => Trouble::new(format!("it speaks another TLS: {error:?}"), ""),
        Tls::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => {
                Trouble::new("it wants a certificate and has got none", GIVE_CERTIFICATE)
            }
            // The second of a CA that has the name of the right one: its signatures are wrong.
            AlertDescription::UnknownCA | AlertDescription::DecryptError => {
                Trouble::new("it does not know the CA of our certificate", SAME_CA)
            }
            AlertDescription::CertificateExpired => {
                Trouble::new("it says that our certificate has expired", OWN_CERTIFICATE)
            }
            AlertDescription::NoApplicationProtocol => {
                Trouble::new("it speaks another protocol over TLS", "")
            }
            alert => Trouble::new(format!("it refused our certificate ({alert:?})"), OWN_CERTIFICATE),
        },
        other => Trouble::new(other.to_string(), ""),
    }
}

fn explain_certificate(error: &CertificateError) -> Trouble {
    use CertificateError as E;
    match error {
        E::Expired | E::ExpiredContext { .. } => Trouble::new(
            "its certificate has expired",
            "issue another with `muster certs issue`; a running part reads it as soon as the file is replaced",
        ),
        E::NotValidYet | E::NotValidYetContext { .. } => {
            Trouble::new("its certificate is not valid yet", "do the clocks of both machines agree?")
        }
        E::UnknownIssuer | E::BadSignature => Trouble::new("its certificate comes from another CA", SAME_CA),
        E::NotValidForName => Trouble::new("its certificate is for another host name", SAN),
        E::NotValidForNameContext { expected, presented } => {
            let expected = expected.to_str();
            let hosts = presented.iter().filter_map(|name| plain(name));
            let hosts = hosts.collect::<Vec<String>>().join(", ");
            Trouble::new(format!("its certificate is for {hosts}, and not for {expected}"), SAN)
        }
        E::Other(other) => Trouble::new(
            other.0.to_string(),
            "`muster certs issue` makes certificates of each role, and `muster certs show` tells whose is whose",
        ),
        other => Trouble::new(format!("its certificate is not accepted: {other}"), ""),
    }
}

const SAN: &str = "use a name that it has, or issue it with --san NAME";

/// A host as webpki writes it, `DnsName("localhost")` or `IpAddress(0::1)`; no other names.
fn plain(name: &str) -> Option<String> {
    let host = name.strip_prefix("DnsName(").or(name.strip_prefix("IpAddress("))?;
    let host = host.strip_suffix(')')?.trim_matches('"');
    let address = host.parse::<std::net::IpAddr>();
    Some(address.map_or_else(|_| host.to_owned(), |address| address.to_string()))
}
