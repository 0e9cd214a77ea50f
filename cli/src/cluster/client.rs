//! A connection to the coordinator, and its errors.

use muster_proto::limits::{MAX_MESSAGE_BYTES, RPC_TIMEOUT};
use muster_proto::v1::coordinator_client::CoordinatorClient;
use muster_tls::{Role, Security, Target, TlsError, Trouble, dial, explain};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::args::ClientArgs;

/// Why the coordinator did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// An address that none can have.
    #[error("{address:?} is no address of a coordinator")]
    Address {
        /// The address.
        address: String,
    },
    /// Plaintext would leave this machine.
    #[error(transparent)]
    Plaintext(#[from] TlsError),
    /// Nobody there.
    #[error("can't reach the coordinator at {address}")]
    Connect {
        /// Where it should be.
        address: String,
        /// Why not.
        #[source]
        source: tonic::transport::Error,
    },
    /// Somebody there, but one of both ends does not trust the other.
    #[error("no trust between this end and the coordinator at {address}: {}", trouble.text)]
    Trust {
        /// Where it should be.
        address: String,
        /// What is wrong.
        trouble: Trouble,
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
            Self::Plaintext(error) => error.hint(),
            Self::Connect { .. } => Some(
                "is `muster coordinator` running there? --coordinator or MUSTER_COORDINATOR says where"
                    .into(),
            ),
            Self::Trust { trouble, .. } => trouble.hint.clone(),
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
            Self::Address { .. } | Self::Plaintext(_) | Self::Trust { .. } => false,
        }
    }

    /// Whether the request itself was wrong.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Address { .. } | Self::Plaintext(_) => true,
            Self::Refused { status } => {
                matches!(status.code(), Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition)
            }
            Self::Connect { .. } | Self::Timeout { .. } | Self::Trust { .. } => false,
        }
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> Self {
        Self::Refused { status: Box::new(status) }
    }
}

/// Where the coordinator is and how to speak with it; each connection uses the newest certificates.
#[derive(Debug, Clone)]
pub struct Line {
    address: String,
    security: Security,
    token: Bearer,
}

impl Line {
    /// For a person or program.
    ///
    /// # Errors
    /// Certificates or a token that can't be used, or plaintext that would leave this machine.
    pub fn of_client(args: &ClientArgs) -> anyhow::Result<Self> {
        let security = args.tls.load(Role::Client)?;
        let line = Self::new(&args.coordinator, security)?;
        // A token is for whoever it was made for: it is read after it is known that it can't leak.
        Ok(Self { token: Bearer(args.token.header()?), ..line })
    }

    /// For an agent.
    ///
    /// # Errors
    /// Plaintext that would leave this machine.
    pub fn new(address: &str, security: Security) -> Result<Self, ClientError> {
        let address = address.strip_prefix("http://").or(address.strip_prefix("https://")).unwrap_or(address);
        security.may_dial(address)?;
        Ok(Self { address: address.into(), security, token: Bearer(None) })
    }
}

impl Line {
    /// Where the coordinator is.
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// Adds the token to requests.
#[derive(Debug, Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// A connected client.
pub struct Client {
    address: String,
    pub rpc: CoordinatorClient<InterceptedService<Channel, Bearer>>,
}

impl Client {
    /// Connects.
    pub async fn connect(line: &Line) -> Result<Self, ClientError> {
        let address = &line.address;
        let is_address = address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !is_address {
            return Err(ClientError::Address { address: address.clone() });
        }
        let channel = dial(address, Target::Coordinator, line.security.tls.as_ref()).await;
        let channel = channel.map_err(|source| match explain(&source) {
            Some(trouble) => ClientError::Trust { address: address.clone(), trouble },
            None => ClientError::Connect { address: address.clone(), source },
        })?;
        let rpc = CoordinatorClient::with_interceptor(channel, line.token.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(Self { address: address.clone(), rpc })
    }

    /// Waits for an answer, but not for ever.
    pub async fn answer<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(RPC_TIMEOUT, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(match explain(&status) {
                Some(trouble) => ClientError::Trust { address: self.address.clone(), trouble },
                None => status.into(),
            }),
            Err(_) => Err(ClientError::Timeout { address: self.address.clone() }),
        }
    }
}
