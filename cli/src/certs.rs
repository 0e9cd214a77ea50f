//! `muster certs`: a CA for one cluster, certificates of its parts, and tokens of people.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueEnum};
use muster_tls::authority::{self, Request};
use muster_tls::{CertificateInfo, Identity, Role, TlsError, Tokens, add_token, until};
use serde::Serialize;

use crate::args::Global;
use crate::commands::{print, table};
use crate::exit::Exit;

/// Arguments of `muster certs`.
#[derive(Debug, Clone, Args)]
pub struct CertsArgs {
    #[command(subcommand)]
    pub command: CertsCommand,
}

/// What to do with certificates.
#[derive(Debug, Clone, Subcommand)]
pub enum CertsCommand {
    /// Make the CA of a cluster: ca.pem, which every part gets, and ca-key.pem, which stays here
    Init(InitArgs),
    /// Issue the certificate of a part
    Issue(IssueArgs),
    /// Make a token for a person who may submit and cancel runs, and print it once
    Token(TokenArgs),
    /// Show what there is and when it ends
    Show(ShowArgs),
}

/// Where the files are.
#[derive(Debug, Clone, Args)]
pub struct DirArgs {
    /// Directory of the CA
    #[arg(long, value_name = "DIR", default_value = "certs")]
    pub dir: PathBuf,
}

#[derive(Debug, Clone, Args)]
pub struct InitArgs {
    #[command(flatten)]
    pub dir: DirArgs,
    /// How long the CA is valid
    #[arg(long, value_name = "COUNT", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

#[derive(Debug, Clone, Args)]
pub struct IssueArgs {
    /// What the certificate allows
    #[arg(value_name = "ROLE")]
    pub role: RoleArg,
    /// Name of the part or person, in logs and in `muster runs`
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub dir: DirArgs,
    /// Host names and IP addresses at which it is reached, beside localhost; clients check the coordinator's
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub san: Vec<String>,
    /// How long it is valid
    #[arg(long, value_name = "COUNT", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

#[derive(Debug, Clone, Args)]
pub struct TokenArgs {
    /// Whose token it is
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub dir: DirArgs,
    /// How long it is valid; default: until its line is deleted
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: Option<u32>,
}

#[derive(Debug, Clone, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub dir: DirArgs,
}

/// A role on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum RoleArg {
    /// Gives runs to nodes
    Coordinator,
    /// An agent and its ranks
    Trainer,
    /// A person or program that submits and watches runs
    Client,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Coordinator => Self::Coordinator,
            RoleArg::Trainer => Self::Trainer,
            RoleArg::Client => Self::Client,
        }
    }
}

/// What was made, for programs.
#[derive(Debug, Serialize)]
struct Made {
    cert: String,
    key: String,
}

/// A certificate or token that there is, for programs.
#[derive(Debug, Serialize)]
struct Shown {
    what: String,
    file: String,
    hosts: Vec<String>,
    not_after: Option<i64>,
    expires: String,
}

/// Makes or shows certificates.
///
/// # Errors
/// Files that are there already, or that can't be read or written.
pub fn run(args: &CertsArgs, global: &Global) -> anyhow::Result<Exit> {
    match &args.command {
        CertsCommand::Init(args) => {
            let made = authority::init(&args.dir.dir, args.days)?;
            let note = "keep the key secret: whoever has it can be any part of the cluster";
            made_print(global, &made, note)?;
        }
        CertsCommand::Issue(args) => {
            let identity = Identity { role: args.role.into(), name: args.name.clone() };
            let request = Request { identity, hosts: args.san.clone(), days: args.days };
            let made = authority::issue(&args.dir.dir, &request)?;
            let ca = args.dir.dir.join(authority::CA);
            let (ca, cert, key) = (ca.display(), made.cert.display(), made.key.display());
            made_print(global, &made, &format!("use: --tls-ca {ca} --tls-cert {cert} --tls-key {key}"))?;
        }
        CertsCommand::Token(args) => token(args, global)?,
        CertsCommand::Show(args) => show(&args.dir.dir, global)?,
    }
    Ok(Exit::Success)
}

fn made_print(global: &Global, made: &authority::Issued, note: &str) -> anyhow::Result<()> {
    let (cert, key) = (made.cert.display().to_string(), made.key.display().to_string());
    print(global, &Made { cert: cert.clone(), key: key.clone() }, || {
        format!("certificate  {cert}\nkey          {key}\n{note}\n")
    })
}

fn token(args: &TokenArgs, global: &Global) -> anyhow::Result<()> {
    let (secret, path) = add_token(&args.dir.dir, &args.name, args.days)?;
    // The token alone goes to stdout, so that `muster certs token NAME > FILE` is all it takes.
    tracing::info!(
        "the digest of the token is in {}: give that file to the coordinator with --tokens",
        path.display()
    );
    let json = serde_json::json!({ "name": args.name, "token": secret.reveal(), "tokens": path });
    print(global, &json, || format!("{}\n", secret.reveal()))
}

fn show(dir: &Path, global: &Global) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    let entries = std::fs::read_dir(dir).map_err(|source| TlsError::Read { path: dir.into(), source })?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_certificate =
            (name.ends_with(".pem") || name.ends_with(".crt")) && !name.ends_with("-key.pem");
        if !is_certificate {
            continue;
        }
        let shown = match CertificateInfo::read(&path) {
            Ok(info) => Shown {
                what: match (&info.identity, info.is_ca) {
                    (Some(identity), _) => identity.to_string(),
                    (None, true) => "CA".into(),
                    (None, false) => "no role: not for Muster".into(),
                },
                file: name,
                hosts: info.hosts,
                not_after: Some(info.not_after),
                expires: until(info.not_after, now),
            },
            Err(error) => {
                let expires = error.to_string();
                Shown { what: "unreadable".into(), file: name, hosts: Vec::new(), not_after: None, expires }
            }
        };
        all.push(shown);
    }
    if let Some(path) = Tokens::file_in(dir) {
        for token in Tokens::parse(&path)? {
            all.push(Shown {
                what: format!("token of {}", token.name),
                file: "tokens".into(),
                hosts: Vec::new(),
                not_after: token.not_after,
                expires: token.not_after.map_or("does not expire".into(), |end| until(end, now)),
            });
        }
    }
    print(global, &all, || render(dir, &all))
}

fn render(dir: &Path, all: &[Shown]) -> String {
    if all.is_empty() {
        return format!("no certificates in {}\n", dir.display());
    }
    let row = |shown: &Shown| {
        vec![shown.what.clone(), shown.file.clone(), shown.expires.clone(), shown.hosts.join(", ")]
    };
    table(&["whose", "file", "valid", "hosts"], &all.iter().map(row).collect::<Vec<_>>())
}
