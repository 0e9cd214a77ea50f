//! A connection to the coordinator, and its errors.

use muster_proto::limits::{
    CONNECT_TIMEOUT, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, MAX_MESSAGE_BYTES, RPC_TIMEOUT,
};
use muster_proto::v1::coordinator_client::CoordinatorClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

/// Why the coordinator did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// An address that none can have.
    #[error("{address:?} is no address of a coordinator")]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        #[source]
        source: tonic::transport::Error,
    },
    /// Nobody there.
    #[error("can't reach the coordinator at {address}")]
    Connect {
        /// Where it should be.
        address: String,
        /// Why not.
        #[source]
        source: tonic::transport::Error,
    },
    /// No answer in time.
    #[error("the coordinator at {address} did not answer within {} s", RPC_TIMEOUT.as_secs())]
    Timeout {
        /// Where it is.
        address: String,
    },
    /// It refused.
    #[error("{}", status.message())]
    Refused {
        /// What it said.
        status: Box<Status>,
    },
}

impl ClientError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Address { .. } => Some("give --coordinator host:port".into()),
            Self::Connect { .. } => Some(
                "is `muster coordinator` running there? --coordinator or MUSTER_COORDINATOR says where"
                    .into(),
            ),
            Self::Timeout { .. } => Some("try again; its log says what it is busy with".into()),
            Self::Refused { status } => match status.code() {
                Code::NotFound => Some("`muster runs --all` lists runs".into()),
                _ => None,
            },
        }
    }

    /// Whether repeating the request may help.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Timeout { .. } => true,
            Self::Refused { status } => {
                matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled)
            }
            Self::Address { .. } => false,
        }
    }

    /// Whether the request itself was wrong.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Address { .. } => true,
            Self::Refused { status } => {
                matches!(status.code(), Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition)
            }
            Self::Connect { .. } | Self::Timeout { .. } => false,
        }
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        Self::Refused { status: Box::new(status) }
    }
}

/// A connected client.
pub struct Client {
    address: String,
    pub rpc: CoordinatorClient<Channel>,
}

impl Client {
    /// Connects to `host:port`.
    pub async fn connect(address: &str) -> Result<Self, ClientError> {
        let text = address.strip_prefix("http://").unwrap_or(address);
        let endpoint = Endpoint::from_shared(format!("http://{text}"))
            .map_err(|source| ClientError::Address { address: address.into(), source })?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|source| ClientError::Connect { address: address.into(), source })?;
        let rpc = CoordinatorClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(Self { address: address.into(), rpc })
    }

    /// Waits for an answer, but not for ever.
    pub async fn answer<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(RPC_TIMEOUT, call).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => Err(ClientError::Timeout { address: self.address.clone() }),
        }
    }
}
