//! The session with one agent: it is opened, carries commands and events, and is opened again when it breaks.

use std::time::{Duration, Instant};

use muster_proto::limits::{MAX_MESSAGE_BYTES, RECONNECT_PAUSE, RPC_TIMEOUT, SESSION_COMMANDS};
use muster_proto::v1::agent_client::AgentClient;
use muster_proto::v1::{AgentEvent, agent_event};
use muster_proto::with_causes;
use muster_tls::{Security, Target, dial, explain};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};

use crate::owner::Input;

/// Header of a session's call: who coordinates. The agent has the same name for it.
const COORDINATOR_ID: &str = "muster-coordinator-id";
/// A session that lasted this long starts its pauses from the beginning.
const HEALTHY: Duration = Duration::from_secs(10);
/// Pause after an agent was refused: nothing will change soon.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// Who opens sessions, and how they are protected.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub coordinator: String,
    pub security: Security,
}

/// How a session ended.
enum End {
    Broken(String),
    Refused,
    OwnerGone,
}

/// Keeps a session with the agent at an address until the owner is gone.
///
/// An address that is not `wanted` any more keeps its session as long as that lasts: that discovery lost sight of an agent
/// says nothing about the agent.
pub(super) async fn keep(
    address: String,
    caller: Caller,
    owner: mpsc::Sender<Input>,
    wanted: watch::Receiver<()>,
) {
    let (shortest, longest) = RECONNECT_PAUSE;
    let mut pause = shortest;
    loop {
        let begun = Instant::now();
        match once(&address, &caller, &owner).await {
            End::OwnerGone => return,
            End::Refused => pause = REFUSED_PAUSE,
            End::Broken(reason) => {
                tracing::debug!("no session with the agent at {address}: {reason}");
                pause = if begun.elapsed() >= HEALTHY { shortest } else { (pause * 2).min(longest) };
                if owner.send(Input::Unreachable { address: address.clone(), reason }).await.is_err() {
                    return;
                }
            }
        }
        if wanted.has_changed().is_err() {
            let _ = owner.send(Input::Forget { address }).await;
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

async fn once(address: &str, caller: &Caller, owner: &mpsc::Sender<Input>) -> End {
    let (commands, queue) = mpsc::channel(SESSION_COMMANDS);
    let opened = match tokio::time::timeout(RPC_TIMEOUT, open(address, caller, queue)).await {
        Ok(opened) => opened,
        Err(_) => Err(format!("it did not begin a session within {RPC_TIMEOUT:?}")),
    };
    let (mut events, report) = match opened {
        Ok(opened) => opened,
        Err(reason) => return End::Broken(reason),
    };
    let (reply, answer) = oneshot::channel();
    let up = Input::SessionUp { address: address.into(), report, commands, reply };
    if owner.send(up).await.is_err() {
        return End::OwnerGone;
    }
    let mut open = match answer.await {
        Ok(Ok(open)) => open,
        Ok(Err(reason)) => {
            tracing::warn!("the agent at {address} is refused: {reason}");
            return End::Refused;
        }
        Err(_) => return End::OwnerGone,
    };
    let reason = loop {
        // No deadline here: an agent may have nothing to say, and keep-alive finds a dead connection.
        let next = tokio::select! {
            next = events.message() => next,
            _ = &mut open.closed => break "it took no commands".to_owned(),
        };
        match next {
            Ok(Some(event)) => {
                let session = open.number;
                if owner.send(Input::FromAgent { session, event }).await.is_err() {
                    return End::OwnerGone;
                }
            }
            Ok(None) => break "the agent ended it".to_owned(),
            Err(status) => break status.message().to_owned(),
        }
    };
    match owner.send(Input::SessionDown { session: open.number, reason: reason.clone() }).await {
        Ok(()) => End::Broken(reason),
        Err(_) => End::OwnerGone,
    }
}

async fn open(
    address: &str,
    caller: &Caller,
    queue: mpsc::Receiver<muster_proto::v1::AgentCommand>,
) -> Result<(Streaming<AgentEvent>, muster_proto::v1::NodeReport), String> {
    caller.security.may_dial(address).map_err(|error| error.to_string())?;
    let channel = dial(address, Target::Agent, caller.security.tls.as_ref()).await;
    let channel = channel.map_err(|error| match explain(&error) {
        Some(trouble) => trouble.text,
        None => with_causes(&error),
    })?;
    let mut client = AgentClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let mut request = Request::new(ReceiverStream::new(queue));
    let id =
        caller.coordinator.parse().map_err(|_| "the coordinator's identity is no header value".to_owned())?;
    request.metadata_mut().insert(COORDINATOR_ID, id);
    let response = client.session(request).await.map_err(|status| status.message().to_owned())?;
    let mut events = response.into_inner();
    let first = events.message().await.map_err(|status| status.message().to_owned())?;
    match first.and_then(|event| event.event) {
        Some(agent_event::Event::Report(report)) => Ok((events, report)),
        _ => Err("its session did not begin with a report".into()),
    }
}
