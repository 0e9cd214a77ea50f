//! Configurations of TLS from files, made again when the files change.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::{CryptoProvider, ring};
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, ServerConfig, version};

use crate::error::TlsError;
use crate::files::{Loaded, Stamp, TlsFiles};
use crate::identity::{Identity, Role};
use crate::info::{now, until};
use crate::verify::{ClientCheck, Names, ServerCheck};

/// A certificate that ends sooner than this is warned of, in seconds.
const EXPIRES_SOON: i64 = 14 * 86_400;

/// What gRPC connections agree on.
const GRPC: &[u8] = b"h2";
/// What connections between ranks agree on: they can't be mistaken for anything else.
const RANKS: &[u8] = b"muster-rank/1";

/// The certificates of a process. Clones share them.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    files: TlsFiles,
    role: Role,
    state: RwLock<State>,
}

struct State {
    stamp: Stamp,
    configs: Arc<Configs>,
}

/// What one reading of the files gave.
pub(crate) struct Configs {
    pub identity: Identity,
    /// Accepts every role; who may do what is checked with each request.
    pub server: Arc<ServerConfig>,
    /// For a coordinator that was dialled by name.
    pub to_coordinator: Arc<ClientConfig>,
    /// For an agent that discovery found.
    pub to_agent: Arc<ClientConfig>,
}

/// Configurations of both ends of connections between ranks.
#[derive(Debug, Clone)]
pub struct RankTls {
    /// The end that dials.
    pub client: Arc<ClientConfig>,
    /// The end that accepts.
    pub server: Arc<ServerConfig>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tls").field(&self.0.files).finish()
    }
}

impl Tls {
    /// Reads the files of a process of a role.
    ///
    /// # Errors
    /// Files that can't be used; see [`TlsError`].
    pub fn load(files: TlsFiles, role: Role) -> Result<Self, TlsError> {
        let stamp = files.stamp();
        let configs = Arc::new(grpc(&files, files.load(role)?)?);
        Ok(Self(Arc::new(Inner { files, role, state: RwLock::new(State { stamp, configs }) })))
    }

    /// Who this process is.
    pub fn identity(&self) -> Identity {
        self.current().identity.clone()
    }

    /// Where its files are.
    pub fn files(&self) -> &TlsFiles {
        &self.0.files
    }

    /// The newest configurations. Files that changed and can't be used leave the old ones, with a warning.
    pub(crate) fn current(&self) -> Arc<Configs> {
        let inner = &*self.0;
        let stamp = inner.files.stamp();
        {
            let state = inner.state.read().unwrap_or_else(PoisonError::into_inner);
            if state.stamp == stamp {
                return Arc::clone(&state.configs);
            }
        }
        let mut state = inner.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.stamp != stamp {
            // Remembered in any case: a file that is wrong is told of once.
            state.stamp = stamp;
            let loaded = inner.files.load(inner.role).and_then(|loaded| grpc(&inner.files, loaded));
            match loaded {
                Ok(configs) => {
                    tracing::info!("the certificate {} was read again", inner.files.cert.display());
                    state.configs = Arc::new(configs);
                }
                Err(error) => {
                    let error = muster_proto::with_causes(&error);
                    tracing::warn!("certificates changed and can't be used; the old ones stay: {error}");
                }
            }
        }
        Arc::clone(&state.configs)
    }
}

impl RankTls {
    /// Configurations from files as they are now, for ranks of an agent.
    ///
    /// # Errors
    /// Files that can't be used; see [`TlsError`].
    pub fn load(files: &TlsFiles) -> Result<Self, TlsError> {
        let loaded = files.load(Role::Trainer)?;
        let maker = Maker::new(files, loaded);
        let mut server = maker.server(Some(Role::Trainer), RANKS)?;
        // Links are made once per generation: nobody resumes them.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let mut client = maker.client(Role::Trainer, Names::Any, RANKS)?;
        client.resumption = rustls::client::Resumption::disabled();
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }
}

fn grpc(files: &TlsFiles, loaded: Loaded) -> Result<Configs, TlsError> {
    let (identity, not_after) = (loaded.identity.clone(), loaded.not_after);
    if not_after - now() < EXPIRES_SOON {
        tracing::warn!("the certificate {} {}", files.cert.display(), until(not_after, now()));
    }
    let maker = Maker::new(files, loaded);
    let mut server = maker.server(None, GRPC)?;
    // A ticket would outlive a certificate that was replaced.
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    let client = |role, names| {
        let mut config = maker.client(role, names, GRPC)?;
        config.resumption = rustls::client::Resumption::disabled();
        Ok::<_, TlsError>(Arc::new(config))
    };
    Ok(Configs {
        identity,
        server: Arc::new(server),
        to_coordinator: client(Role::Coordinator, Names::Checked)?,
        to_agent: client(Role::Trainer, Names::Any)?,
    })
}

/// Makes configurations of what was read.
struct Maker<'a> {
    files: &'a TlsFiles,
    roots: Arc<rustls::RootCertStore>,
    provider: Arc<CryptoProvider>,
    loaded: Loaded,
}

impl<'a> Maker<'a> {
    fn new(files: &'a TlsFiles, mut loaded: Loaded) -> Self {
        let mut provider = ring::default_provider();
        // The fastest on every CPU with AES instructions comes first: bulk data is encrypted with it.
        provider
            .cipher_suites
            .sort_by_key(|suite| suite.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
        let roots = std::mem::replace(&mut loaded.roots, rustls::RootCertStore::empty());
        Self { files, roots: Arc::new(roots), provider: Arc::new(provider), loaded }
    }

    fn refused(&self, source: rustls::Error) -> TlsError {
        TlsError::Library { cert: self.files.cert.clone(), key: self.files.key.clone(), source }
    }

    fn server(&self, wanted: Option<Role>, protocol: &[u8]) -> Result<ServerConfig, TlsError> {
        let check = ClientCheck::new(&self.roots, &self.provider, wanted)
            .map_err(|e| TlsError::invalid(&self.files.ca, e.to_string(), ""))?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|e| self.refused(e))?
            .with_client_cert_verifier(Arc::new(check));
        let (chain, key) = (self.loaded.chain.clone(), self.loaded.key.clone_key());
        let mut config = builder.with_single_cert(chain, key).map_err(|e| self.refused(e))?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }

    fn client(&self, wanted: Role, names: Names, protocol: &[u8]) -> Result<ClientConfig, TlsError> {
        let algorithms = self.provider.signature_verification_algorithms;
        let check = ServerCheck { roots: Arc::clone(&self.roots), algorithms, wanted, names };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|e| self.refused(e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(check));
        let (chain, key) = (self.loaded.chain.clone(), self.loaded.key.clone_key());
        let mut config = builder.with_client_auth_cert(chain, key).map_err(|e| self.refused(e))?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}
