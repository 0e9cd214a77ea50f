//! The agent's gRPC service: it only translates between streams and the owner task's queues.

use std::pin::Pin;
use std::time::Duration;

use muster_proto::v1::agent_server::Agent;
use muster_proto::v1::{AgentCommand, AgentEvent, DescribeRequest, DescribeResponse};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{Asker, SessionError};

/// Header of a session's call: identity of the coordinator, the same across its restarts.
pub const COORDINATOR_ID: &str = "muster-coordinator-id";

/// How long the owner task may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest identity of a coordinator, in bytes.
const MAX_ID_BYTES: usize = 128;

/// The service `muster.v1.Agent` of a running agent.
#[derive(Debug, Clone)]
pub struct AgentService {
    agent: Asker,
}

impl AgentService {
    /// Serves an agent.
    pub fn new(agent: Asker) -> Self {
        Self { agent }
    }
}

impl From<SessionError> for Status {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Held { .. } => Self::failed_precondition(error.to_string()),
            SessionError::Ended => Self::unavailable(error.to_string()),
        }
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, SessionError>>) -> Result<T, Status> {
    match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(Status::from),
        Err(_) => Err(Status::deadline_exceeded("the agent did not answer in time")),
    }
}

#[tonic::async_trait]
impl Agent for AgentService {
    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        let node = in_time(self.agent.describe()).await?;
        Ok(Response::new(DescribeResponse { node: Some(node) }))
    }

    type SessionStream = Pin<Box<dyn Stream<Item = Result<AgentEvent, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<AgentCommand>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let id = request.metadata().get(COORDINATOR_ID).and_then(|id| id.to_str().ok());
        let id = id.filter(|id| !id.is_empty() && id.len() <= MAX_ID_BYTES);
        let id = id.ok_or_else(|| {
            Status::invalid_argument(format!("a session needs the header {COORDINATOR_ID}: who coordinates?"))
        })?;
        let session = in_time(self.agent.session(id)).await?;
        let mut commands = request.into_inner();
        tokio::spawn(async move {
            // Ends with the stream, or with the agent. Keep-alive of the connection finds dead peers.
            while let Some(Ok(command)) = commands.next().await {
                if session.commands.send(command).await.is_err() {
                    return;
                }
            }
        });
        let events = ReceiverStream::new(session.events).map(Ok);
        Ok(Response::new(Box::pin(events)))
    }
}
