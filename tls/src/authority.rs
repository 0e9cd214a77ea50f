//! A CA for one cluster, in a directory: `ca.pem`, `ca-key.pem`, and a pair of files for everything it issues.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};

use crate::error::TlsError;
use crate::files::read;
use crate::identity::{Identity, is_name};
use crate::info::{CertificateInfo, now, until};

/// Certificate of the CA.
pub const CA: &str = "ca.pem";
/// Key of the CA.
pub const CA_KEY: &str = "ca-key.pem";
/// Clocks may differ by this much.
const SKEW: Duration = Duration::minutes(5);

/// A certificate to issue.
#[derive(Debug, Clone)]
pub struct Request {
    /// Whose it is.
    pub identity: Identity,
    /// Host names and IP addresses beside this machine's own.
    pub hosts: Vec<String>,
    /// How long it is valid.
    pub days: u32,
}

/// The files of an issued certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issued {
    /// The certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

fn validity(params: &mut CertificateParams, days: u32) {
    let begin = OffsetDateTime::now_utc();
    params.not_before = begin - SKEW;
    params.not_after = begin + Duration::days(days.into());
}

fn subject(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "Muster");
    subject.push(DnType::CommonName, name);
    subject
}

/// Makes a CA in a directory, which is made if it is missing.
///
/// # Errors
/// A CA that is there already, or a directory that can't be written.
pub fn init(dir: &Path, days: u32) -> Result<Issued, TlsError> {
    let issued = Issued { cert: dir.join(CA), key: dir.join(CA_KEY) };
    refuse_existing(&issued)?;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| TlsError::Write { path: dir.into(), source })?;
    let mut params = CertificateParams::default();
    validity(&mut params, days);
    params.distinguished_name = subject("Muster CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    write(&issued, &certificate.pem(), &key.serialize_pem())?;
    Ok(issued)
}

/// Issues a certificate; its files lie beside the CA's.
///
/// # Errors
/// A CA that is missing or ends before the certificate would, a name that can't be used, files that are there already.
pub fn issue(dir: &Path, request: &Request) -> Result<Issued, TlsError> {
    let identity = &request.identity;
    if !is_name(&identity.name) {
        return Err(TlsError::Name { name: identity.name.clone() });
    }
    let stem = format!("{}-{}", identity.role, identity.name);
    let issued = Issued { cert: dir.join(format!("{stem}.pem")), key: dir.join(format!("{stem}-key.pem")) };
    refuse_existing(&issued)?;
    let mut params = CertificateParams::default();
    validity(&mut params, request.days);
    let issuer = issuer(dir, params.not_after)?;
    params.distinguished_name = subject(&identity.to_string());
    params.subject_alt_names = names(request)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    write(&issued, &certificate.pem(), &key.serialize_pem())?;
    Ok(issued)
}

fn issuer(dir: &Path, not_after: OffsetDateTime) -> Result<Issuer<'static, KeyPair>, TlsError> {
    let path = dir.join(CA);
    let info = CertificateInfo::read(&path)?;
    if info.not_after < not_after.unix_timestamp() {
        let problem = format!("the CA {}, before the certificate would", until(info.not_after, now()));
        return Err(TlsError::invalid(&path, problem, "ask for fewer --days, or make a new CA"));
    }
    let text = |path: &Path| {
        let bytes = read(path)?;
        String::from_utf8(bytes).map_err(|_| TlsError::invalid(path, "it is no PEM file", ""))
    };
    let pem = text(&path)?;
    let key_path = dir.join(CA_KEY);
    let key = KeyPair::from_pem(&text(&key_path)?)
        .map_err(|e| TlsError::invalid(&key_path, format!("it holds no private key: {e}"), ""))?;
    Issuer::from_ca_cert_pem(&pem, key)
        .map_err(|e| TlsError::invalid(&path, format!("it is no certificate of a CA: {e}"), ""))
}

/// The role, this machine, and what was asked for.
fn names(request: &Request) -> Result<Vec<SanType>, TlsError> {
    let text = |name: &str| {
        name.try_into().map_err(|_| TlsError::Request { what: format!("{name:?} is no host name") })
    };
    let mut names = vec![SanType::URI(text(&request.identity.uri())?)];
    let mut hosts = vec!["localhost", "127.0.0.1", "::1"];
    // Nobody dials a client.
    if request.identity.role == crate::Role::Client {
        hosts.clear();
    }
    for host in hosts.into_iter().chain(request.hosts.iter().map(String::as_str)) {
        let name = match host.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) if is_host(host) => SanType::DnsName(text(host)?),
            Err(_) => {
                let what =
                    format!("{host:?} is no host name or IP address: give --san without scheme or port");
                return Err(TlsError::Request { what });
            }
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

fn is_host(host: &str) -> bool {
    let name = host.strip_prefix("*.").unwrap_or(host);
    rustls::pki_types::DnsName::try_from(name).is_ok() && !name.is_empty()
}

fn refuse_existing(issued: &Issued) -> Result<(), TlsError> {
    let taken = [&issued.cert, &issued.key].into_iter().find(|path| path.symlink_metadata().is_ok());
    taken.map_or(Ok(()), |path| Err(TlsError::Exists { path: path.clone() }))
}

fn write(issued: &Issued, certificate: &str, key: &str) -> Result<(), TlsError> {
    write_new(&issued.key, key, 0o600)?;
    write_new(&issued.cert, certificate, 0o644).inspect_err(|_| {
        // A key without its certificate would only be in the way.
        let _ = std::fs::remove_file(&issued.key);
    })
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let failed = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::AlreadyExists => TlsError::Exists { path: path.into() },
        _ => TlsError::Write { path: path.into(), source },
    };
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let mut file = file.map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::Role;

    fn request(role: Role, name: &str) -> Request {
        let hosts = vec!["muster.example.org".into(), "10.0.0.7".into(), "localhost".into()];
        Request { identity: Identity { role, name: name.into() }, hosts, days: 30 }
    }

    #[test]
    fn what_is_issued_has_its_role_its_hosts_and_a_secret_key() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("certs");
        let ca = init(&dir, 100).unwrap();
        assert!(CertificateInfo::read(&ca.cert).unwrap().is_ca);
        let issued = issue(&dir, &request(Role::Trainer, "n1")).unwrap();
        assert_eq!(issued.cert, dir.join("trainer-n1.pem"));
        let info = CertificateInfo::read(&issued.cert).unwrap();
        assert_eq!(info.identity.unwrap().uri(), "muster://trainer/n1");
        assert_eq!(info.hosts, ["localhost", "127.0.0.1", "::1", "muster.example.org", "10.0.0.7"]);
        assert!(!info.is_ca && info.not_before < now() && (info.not_after - now() - 30 * 86_400).abs() < 60);
        for key in [ca.key, issued.key] {
            assert_eq!(std::fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn nothing_is_overwritten_and_bad_requests_say_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let missing = issue(dir.path(), &request(Role::Client, "me")).unwrap_err();
        assert!(missing.to_string().contains("ca.pem") && missing.hint().unwrap().contains("certs init"));
        init(dir.path(), 60).unwrap();
        assert!(matches!(init(dir.path(), 60), Err(TlsError::Exists { .. })));
        issue(dir.path(), &request(Role::Client, "me")).unwrap();
        assert!(matches!(issue(dir.path(), &request(Role::Client, "me")), Err(TlsError::Exists { .. })));
        assert!(matches!(issue(dir.path(), &request(Role::Client, "../x")), Err(TlsError::Name { .. })));
        let long = Request { days: 61, ..request(Role::Client, "long") };
        assert!(issue(dir.path(), &long).unwrap_err().to_string().contains("before the certificate would"));
        let odd = Request { hosts: vec!["http://x:1".into()], ..request(Role::Client, "odd") };
        assert!(issue(dir.path(), &odd).unwrap_err().to_string().contains("without scheme or port"));
    }
}
