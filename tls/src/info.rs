//! What a certificate says, for people.

use std::path::Path;

use time::OffsetDateTime;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::error::TlsError;
use crate::files::read_certificates;
use crate::identity::Identity;

/// The facts of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Whether it signs others.
    pub is_ca: bool,
    /// Whose it is; none for a CA, or for one that Muster did not make.
    pub identity: Option<Identity>,
    /// Host names and addresses that it is for.
    pub hosts: Vec<String>,
    /// Valid from, in seconds since 1970.
    pub not_before: i64,
    /// Valid until, in seconds since 1970.
    pub not_after: i64,
}

impl CertificateInfo {
    /// Reads the first certificate of a file.
    ///
    /// # Errors
    /// A file that can't be read or holds no certificate.
    pub fn read(path: &Path) -> Result<Self, TlsError> {
        let chain = read_certificates(path)?;
        Self::of(path, &chain[0])
    }

    pub(crate) fn of(path: &Path, der: &[u8]) -> Result<Self, TlsError> {
        let (_, parsed) = X509Certificate::from_der(der)
            .map_err(|e| TlsError::invalid(path, format!("the certificate can't be read: {e}"), ""))?;
        let names = parsed.subject_alternative_name().ok().flatten();
        let hosts = names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => address(bytes),
            _ => None,
        });
        Ok(Self {
            is_ca: parsed.is_ca(),
            identity: Identity::of_parsed(&parsed),
            hosts: hosts.collect(),
            not_before: parsed.validity().not_before.timestamp(),
            not_after: parsed.validity().not_after.timestamp(),
        })
    }
}

fn address(bytes: &[u8]) -> Option<String> {
    let ip: std::net::IpAddr = match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok()?.into(),
        16 => <[u8; 16]>::try_from(bytes).ok()?.into(),
        _ => return None,
    };
    Some(ip.to_string())
}

/// A moment for people and files: "2027-11-30T09:05:00Z".
pub(crate) fn moment(seconds: i64) -> String {
    let Ok(at) = OffsetDateTime::from_unix_timestamp(seconds) else { return seconds.to_string() };
    let (date, time) = (at.date(), at.time());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

/// The opposite of [`moment`].
pub(crate) fn parse_moment(text: &str) -> Option<i64> {
    let (date, clock) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(str::parse::<i32>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let mut clock = clock.splitn(3, ':').map(str::parse::<u8>);
    let (hour, minute, second) = (clock.next()?.ok()?, clock.next()?.ok()?, clock.next()?.ok()?);
    let month = time::Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = time::Date::from_calendar_date(year, month, u8::try_from(day).ok()?).ok()?;
    let clock = time::Time::from_hms(hour, minute, second).ok()?;
    Some(OffsetDateTime::new_utc(date, clock).unix_timestamp())
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    OffsetDateTime::now_utc().unix_timestamp()
}

/// How long it is from `now` until a moment, both in seconds since 1970: "expires in 12 days (2027-11-30T09:05:00Z)".
pub fn until(not_after: i64, now: i64) -> String {
    let left = not_after - now;
    let span = |seconds: i64| match seconds {
        0..7_200 => format!("{} minutes", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    };
    let at = moment(not_after);
    match left {
        0.. => format!("expires in {} ({at})", span(left)),
        _ => format!("expired {} ago ({at})", span(-left)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_and_read_back_and_spans_are_plain_words() {
        for seconds in [0, 1_900_000_000, 951_827_696] {
            assert_eq!(parse_moment(&moment(seconds)), Some(seconds));
        }
        assert_eq!(moment(951_827_696), "2000-02-29T12:34:56Z");
        for bad in ["", "never", "2000-02-30T00:00:00Z", "2000-02-29 12:34:56", "2000-02-29T25:00:00Z"] {
            assert_eq!(parse_moment(bad), None, "{bad}");
        }
        assert_eq!(until(86_400 * 12, 0), "expires in 12 days (1970-01-13T00:00:00Z)");
        assert_eq!(until(0, 3_600 * 5), "expired 5 hours ago (1970-01-01T00:00:00Z)");
    }
}
