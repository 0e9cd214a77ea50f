//! The service `muster.v1.Coordinator`: it only translates between messages and the owner's requests.

use std::pin::Pin;

use muster_proto::limits::{ANNOUNCE_INTERVAL, RPC_TIMEOUT};
use muster_proto::v1::coordinator_server::Coordinator;
use muster_proto::v1::{
    AnnounceRequest, AnnounceResponse, CancelRunRequest, CancelRunResponse, GetRunRequest, GetRunResponse,
    ListNodesRequest, ListNodesResponse, ListRunsRequest, ListRunsResponse, LogsRequest, LogsResponse,
    SubmitRequest, SubmitResponse, WatchRunRequest, WatchRunResponse,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::access::Access;
use crate::discovery::{AnnounceError, Announcer};
use crate::owner::{self, Input, Refusal};

#[derive(Debug)]
pub(super) struct Service {
    pub owner: mpsc::Sender<Input>,
    pub announcer: Announcer,
    pub access: Access,
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::NotFound(_) => Self::not_found(message),
            Refusal::Invalid(_) => Self::invalid_argument(message),
            Refusal::State(_) => Self::failed_precondition(message),
            Refusal::Exhausted(_) => Self::resource_exhausted(message),
            Refusal::Broken(_) => Self::internal(message),
        }
    }
}

impl Service {
    /// Asks the owner and waits for its answer, but not for ever.
    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> owner::Request) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        let asked = async {
            let sent = self.owner.send(Input::Request(request(reply))).await;
            sent.map_err(|_| Status::unavailable("the coordinator is ending"))?;
            answer.await.map_err(|_| Status::unavailable("the coordinator is ending"))
        };
        match tokio::time::timeout(RPC_TIMEOUT, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(Status::deadline_exceeded("the coordinator is busy; try again")),
        }
    }
}

type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Coordinator for Service {
    async fn submit(&self, request: Request<SubmitRequest>) -> Result<Response<SubmitResponse>, Status> {
        let submitter = self.access.change(&request)?;
        let submit = |reply| owner::Request::Submit(request.into_inner(), submitter, reply);
        let run = self.ask(submit).await??;
        Ok(Response::new(SubmitResponse { run: Some(run) }))
    }

    async fn get_run(&self, request: Request<GetRunRequest>) -> Result<Response<GetRunResponse>, Status> {
        self.access.read(&request)?;
        let run = self.ask(|reply| owner::Request::Get(request.into_inner().run, reply)).await??;
        Ok(Response::new(GetRunResponse { run: Some(run) }))
    }

    async fn list_runs(
        &self,
        request: Request<ListRunsRequest>,
    ) -> Result<Response<ListRunsResponse>, Status> {
        self.access.read(&request)?;
        let runs = self.ask(|reply| owner::Request::List(request.into_inner(), reply)).await??;
        Ok(Response::new(ListRunsResponse { runs }))
    }

    type WatchRunStream = Replies<WatchRunResponse>;

    async fn watch_run(
        &self,
        request: Request<WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        self.access.read(&request)?;
        let stream = self.ask(|reply| owner::Request::Watch(request.into_inner().run, reply)).await??;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream).map(Ok))))
    }

    async fn cancel_run(
        &self,
        request: Request<CancelRunRequest>,
    ) -> Result<Response<CancelRunResponse>, Status> {
        let by = self.access.change(&request)?;
        let run = self.ask(|reply| owner::Request::Cancel(request.into_inner().run, by, reply)).await??;
        Ok(Response::new(CancelRunResponse { run: Some(run) }))
    }

    type LogsStream = Replies<LogsResponse>;

    async fn logs(&self, request: Request<LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        self.access.read(&request)?;
        let stream = self.ask(|reply| owner::Request::Logs(request.into_inner(), reply)).await??;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream).map(Ok))))
    }

    async fn list_nodes(
        &self,
        request: Request<ListNodesRequest>,
    ) -> Result<Response<ListNodesResponse>, Status> {
        self.access.read(&request)?;
        Ok(Response::new(self.ask(owner::Request::Nodes).await?))
    }

    async fn announce(
        &self,
        request: Request<AnnounceRequest>,
    ) -> Result<Response<AnnounceResponse>, Status> {
        self.access.announce(&request)?;
        let announced = self.announcer.announce(&request.into_inner().address);
        announced.map_err(|error| match error {
            AnnounceError::Address(_) => Status::invalid_argument(error.to_string()),
            AnnounceError::Busy => Status::resource_exhausted(error.to_string()),
        })?;
        let again_after_ms = ANNOUNCE_INTERVAL.as_millis() as u32;
        Ok(Response::new(AnnounceResponse { again_after_ms }))
    }
}
