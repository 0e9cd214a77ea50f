//! Options of certificates and tokens, the same for every command of a cluster.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap::builder::FalseyValueParser;
use muster_proto::limits::MAX_TOKEN_BYTES;
use muster_tls::{Role, Security, Tls, TlsFiles};
use tonic::metadata::{Ascii, MetadataValue};

/// Certificates of this command (docs/cluster.md, Security).
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Security")]
pub struct TlsArgs {
    /// Certificate of the cluster's CA; with these three files everything is encrypted and both ends prove who they are
    #[arg(long, value_name = "FILE", env = "MUSTER_TLS_CA")]
    pub tls_ca: Option<PathBuf>,
    /// Certificate of this command, from `muster certs issue`
    #[arg(long, value_name = "FILE", env = "MUSTER_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, value_name = "FILE", env = "MUSTER_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// Without certificates: allow plaintext beyond this machine, in a network where everybody is trusted
    #[arg(long, env = "MUSTER_INSECURE", value_parser = FalseyValueParser::new())]
    pub insecure: bool,
}

impl TlsArgs {
    /// The three files, if they are given.
    ///
    /// # Errors
    /// If only some are.
    pub fn files(&self) -> anyhow::Result<Option<TlsFiles>> {
        Ok(TlsFiles::from_options(self.tls_ca.clone(), self.tls_cert.clone(), self.tls_key.clone())?)
    }

    /// Reads the files, for a part of this role.
    ///
    /// # Errors
    /// Files that are missing or can't be used.
    pub fn load(&self, role: Role) -> anyhow::Result<Security> {
        let tls = self.files()?.map(|files| Tls::load(files, role)).transpose()?;
        Ok(Security { tls, allows_plaintext: self.insecure })
    }
}

/// A token of this command.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Security")]
pub struct TokenArgs {
    /// File of a token, for coordinators that want one; or the token itself in MUSTER_TOKEN
    #[arg(long, value_name = "FILE", env = "MUSTER_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// The header that carries the token, if there is one.
    ///
    /// # Errors
    /// A file that can't be read, or a token that no header can carry.
    pub fn header(&self) -> anyhow::Result<Option<MetadataValue<Ascii>>> {
        let token = match &self.token_file {
            Some(path) => {
                let text = std::fs::read_to_string(path);
                Some(text.with_context(|| format!("can't read the token in {}", path.display()))?)
            }
            None => std::env::var("MUSTER_TOKEN").ok().filter(|token| !token.is_empty()),
        };
        let Some(token) = token else { return Ok(None) };
        let token = token.trim();
        anyhow::ensure!(
            !token.is_empty()
                && token.len() <= MAX_TOKEN_BYTES
                && token.bytes().all(|b| b.is_ascii_graphic()),
            "that is no token: it is one line, as `muster certs token` prints it"
        );
        let mut header: MetadataValue<Ascii> =
            format!("Bearer {token}").parse().context("no header carries this token")?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}
