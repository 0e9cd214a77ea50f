//! Tokens of people who may change something. The server's file holds names and digests, never a token.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use muster_proto::limits::MAX_TOKENS;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::{Choice, ConstantTimeEq};

use crate::error::TlsError;
use crate::files::read;
use crate::identity::is_name;
use crate::info::{moment, now, parse_moment, until};

/// File of tokens in the directory of a CA.
const FILE: &str = "tokens";
/// What a token begins with: scanners for leaked secrets look for such things.
const PREFIX: &str = "muster_";
const HINT: &str =
    "a line is NAME, sha256:DIGEST and the end, a time or \"never\"; `muster certs token` writes them";

/// A new token, which is shown once.
pub struct Secret(String);

impl Secret {
    /// The token, for its owner alone.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenInfo {
    /// Whose it is.
    pub name: String,
    /// When it ends, in seconds since 1970; none: never.
    pub not_after: Option<i64>,
    digest: [u8; 32],
}

/// Why a token is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Nobody has this token.
    #[error("the token is not known here, or was withdrawn")]
    Unknown,
    /// It has ended.
    #[error("the token of {name} {when}")]
    Expired {
        /// Whose it is.
        name: String,
        /// "expired 3 days ago".
        when: String,
    },
}

fn sha256(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Makes a token and adds its line to the file `tokens` of a directory; the path of that file comes with it.
///
/// # Errors
/// A name that has a token already, or a file that can't be written.
pub fn add_token(dir: &Path, name: &str, days: Option<u32>) -> Result<(Secret, PathBuf), TlsError> {
    if !is_name(name) {
        return Err(TlsError::Name { name: name.into() });
    }
    let path = dir.join(FILE);
    let known = if path.exists() { Tokens::parse(&path)? } else { Vec::new() };
    if known.iter().any(|token| token.name == name) {
        let problem = format!("{name} has a token already");
        return Err(TlsError::invalid(&path, problem, "choose another name, or delete that line first"));
    }
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| TlsError::Random)?;
    let secret = format!("{PREFIX}{}", hex(&bytes));
    let end = days.map_or("never".into(), |days| moment(now() + i64::from(days) * 86_400));
    let line = format!("{name} sha256:{} {end}\n", hex(&sha256(&secret)));
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(|source| TlsError::Write { path: path.clone(), source })?;
    Ok((Secret(secret), path))
}

type Stamp = Option<(u64, u64, i64, i64)>;

/// The tokens of a file, read again when it changes.
#[derive(Debug)]
pub struct Tokens {
    path: PathBuf,
    state: Mutex<(Stamp, Vec<TokenInfo>)>,
}

impl Tokens {
    /// Reads the file.
    ///
    /// # Errors
    /// A file that can't be read, with the line that is wrong.
    pub fn load(path: &Path) -> Result<Self, TlsError> {
        let stamp = stamp(path);
        let tokens = Self::parse(path)?;
        Ok(Self { path: path.into(), state: Mutex::new((stamp, tokens)) })
    }

    /// Whose token this is.
    ///
    /// # Errors
    /// A token that nobody has, or that has ended.
    pub fn check(&self, token: &str) -> Result<String, TokenError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(&self.path);
        if state.0 != stamp {
            state.0 = stamp;
            match Self::parse(&self.path) {
                Ok(tokens) => {
                    tracing::info!("the tokens in {} were read again", self.path.display());
                    state.1 = tokens;
                }
                Err(error) => {
                    let error = muster_proto::with_causes(&error);
                    tracing::warn!("tokens changed and can't be used; the old ones stay: {error}");
                }
            }
        }
        let digest = sha256(token);
        // Looks at all of them, and takes the same time for every token.
        let mut found = None;
        for known in &state.1 {
            let same: Choice = known.digest.ct_eq(&digest);
            if bool::from(same) {
                found = Some(known);
            }
        }
        let known = found.ok_or(TokenError::Unknown)?;
        match known.not_after {
            Some(end) if end <= now() => {
                Err(TokenError::Expired { name: known.name.clone(), when: until(end, now()) })
            }
            _ => Ok(known.name.clone()),
        }
    }

    /// The lines of a file.
    ///
    /// # Errors
    /// As [`Tokens::load`].
    pub fn parse(path: &Path) -> Result<Vec<TokenInfo>, TlsError> {
        let bytes = read(path)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| TlsError::invalid(path, "it is no text", HINT))?;
        let mut tokens = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = || TlsError::invalid(path, format!("line {} is no token", i + 1), HINT);
            tokens.push(parse_line(line).ok_or_else(wrong)?);
            if tokens.len() > MAX_TOKENS {
                return Err(TlsError::invalid(path, format!("more than {MAX_TOKENS} tokens"), ""));
            }
        }
        Ok(tokens)
    }

    /// The file of a directory, if it is there.
    pub fn file_in(dir: &Path) -> Option<PathBuf> {
        Some(dir.join(FILE)).filter(|path| path.exists())
    }
}

fn parse_line(line: &str) -> Option<TokenInfo> {
    let mut words = line.split_whitespace();
    let (name, digest, end) = (words.next()?, words.next()?, words.next()?);
    let not_after = match end {
        "never" => None,
        end => Some(parse_moment(end)?),
    };
    let digest = unhex(digest.strip_prefix("sha256:")?)?;
    let whole = is_name(name) && words.next().is_none();
    whole.then(|| TokenInfo { name: name.into(), not_after, digest })
}

fn stamp(path: &Path) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_known_until_they_end_or_are_withdrawn() {
        let dir = tempfile::tempdir().unwrap();
        let (anna, path) = add_token(dir.path(), "anna", Some(30)).unwrap();
        let tokens = Tokens::load(&path).unwrap();
        assert_eq!(tokens.check(anna.reveal()).as_deref(), Ok("anna"));
        assert_eq!(tokens.check("muster_00"), Err(TokenError::Unknown));
        let (ben, _) = add_token(dir.path(), "ben", None).unwrap();
        assert_eq!(tokens.check(ben.reveal()).as_deref(), Ok("ben"), "without a restart");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(anna.reveal()) && !format!("{anna:?}").contains(anna.reveal()));
        let digest = hex(&sha256("old"));
        std::fs::write(&path, format!("# people\nold sha256:{digest} 2001-01-01T00:00:00Z # gone\n"))
            .unwrap();
        assert_eq!(tokens.check(anna.reveal()), Err(TokenError::Unknown), "its line was deleted");
        let expired = tokens.check("old").unwrap_err();
        assert!(expired.to_string().starts_with("the token of old expired"), "{expired}");
        std::fs::write(&path, "nonsense\n").unwrap();
        assert!(matches!(tokens.check("old"), Err(TokenError::Expired { .. })), "the last good ones stay");
    }

    #[test]
    fn one_name_has_one_token_and_wrong_lines_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = add_token(dir.path(), "anna", None).unwrap();
        assert!(add_token(dir.path(), "anna", None).unwrap_err().to_string().contains("already"));
        assert!(matches!(add_token(dir.path(), "a b", None), Err(TlsError::Name { .. })));
        let good = std::fs::read_to_string(&path).unwrap();
        for bad in ["anna", "anna sha256:00 never", "anna sha256:zz never x", "anna md5:00 never"] {
            std::fs::write(&path, format!("{good}{bad}\n")).unwrap();
            assert!(Tokens::load(&path).unwrap_err().to_string().contains("line 2"), "{bad}");
        }
    }
}
