//! Access to the API server, as this process has it: a service account inside a cluster, or a kubeconfig.

use kube::{Client, Config};
use muster_proto::limits::KUBE_REQUEST_TIMEOUT;
use muster_proto::with_causes;

/// A way to the API server.
#[derive(Clone)]
pub struct Access {
    /// The client.
    pub client: Client,
    /// Namespace of this process.
    pub namespace: String,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AccessError(String);

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Access {
    /// Takes what the environment gives: `KUBECONFIG` or the user's file, or the token of the pod. Asks nobody.
    ///
    /// # Errors
    /// If there is neither, or it can't be used.
    pub async fn infer() -> Result<Self, AccessError> {
        let mut config = Config::infer().await.map_err(|error| AccessError(with_causes(&error)))?;
        config.connect_timeout = Some(KUBE_REQUEST_TIMEOUT);
        let namespace = config.default_namespace.clone();
        let client = Client::try_from(config).map_err(|error| AccessError(with_causes(&error)))?;
        Ok(Self { client, namespace })
    }
}
