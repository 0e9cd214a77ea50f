//! One rank process: how it is started, and the tasks that carry its messages and lines.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use muster_proto::limits::{LOG_BATCH_LINES, RANK_COMMAND_QUEUE, RANK_WRITE_TIMEOUT};
use muster_proto::v1::{RankCommand, RankEvent, RankExited};
use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Child;
use tokio::sync::mpsc;

use super::wire::read_message;
use super::{AgentOptions, birth, death, lines};
use crate::topology::memory_kills;

/// How long what a rank wrote before it ended is waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What comes from a rank process.
#[derive(Debug)]
pub(super) enum FromProcess {
    Event(RankEvent),
    Garbage(String),
    Lines(Vec<String>),
    Exited(RankExited),
}

/// A started process.
#[derive(Debug)]
pub(super) struct Process {
    pub pid: u32,
    pub commands: mpsc::Sender<RankCommand>,
    kill: mpsc::Sender<()>,
}

impl Process {
    /// Sends SIGKILL; its exit is reported as any other.
    pub fn kill(&self) {
        // A full queue holds the same request already.
        let _ = self.kill.try_send(());
    }
}

/// Starts the program of a rank on these CPUs. What it says goes to `inbox` with its name. Must run on the agent's own thread.
pub(super) fn start(
    options: &AgentOptions,
    (member, cpus): (&str, &[u32]),
    inbox: mpsc::Sender<(String, FromProcess)>,
) -> std::io::Result<Process> {
    let (mine, theirs) = StdUnixStream::pair()?;
    mine.set_nonblocking(true)?;
    let mut command = Command::new(&options.program);
    command.args(&options.args).stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
    death::die_with_parent(&mut command);
    birth::bind(&mut command, cpus);
    let kills_before = memory_kills(Path::new("/"));
    let mut command = tokio::process::Command::from(command);
    let mut child = command.kill_on_drop(true).spawn()?;
    // The command holds the other end of the socket; while it lives, the rank's end is never seen.
    drop(command);
    let pid = child.id().unwrap_or_default();
    let (reader, writer) = UnixStream::from_std(mine)?.into_split();
    let (commands, queue) = mpsc::channel(RANK_COMMAND_QUEUE);
    let (kill, killed) = mpsc::channel(1);
    let (line, gathered) = mpsc::channel(LOG_BATCH_LINES);
    if let Some(out) = child.stdout.take() {
        tokio::spawn(lines::read_lines(out, line.clone()));
    }
    if let Some(err) = child.stderr.take() {
        tokio::spawn(lines::read_lines(err, line));
    }
    let batches = tokio::spawn(ship_lines(member.to_owned(), gathered, inbox.clone()));
    let events = tokio::spawn(read_events(member.to_owned(), reader, inbox.clone()));
    tokio::spawn(write_commands(writer, queue, kill.clone()));
    let member = member.to_owned();
    tokio::spawn(async move {
        let mut exited = wait(child, killed).await;
        // Its last words come before the news of its end.
        let last_words = async { tokio::join!(events, batches) };
        let _ = tokio::time::timeout(LAST_WORDS, last_words).await;
        let kills = memory_kills(Path::new("/"));
        exited.out_of_memory = exited.signal == Some(9) && kills > kills_before;
        let _ = inbox.send((member, FromProcess::Exited(exited))).await;
    });
    Ok(Process { pid, commands, kill })
}

async fn ship_lines(
    member: String,
    gathered: mpsc::Receiver<String>,
    inbox: mpsc::Sender<(String, FromProcess)>,
) {
    lines::batch(gathered, |batch| {
        let (inbox, member) = (inbox.clone(), member.clone());
        async move { inbox.send((member, FromProcess::Lines(batch))).await.is_ok() }
    })
    .await;
}

async fn read_events(member: String, mut reader: OwnedReadHalf, inbox: mpsc::Sender<(String, FromProcess)>) {
    let mut buffer = Vec::new();
    loop {
        let from = match read_message::<RankEvent>(&mut reader, &mut buffer).await {
            Ok(Some(event)) => FromProcess::Event(event),
            Ok(None) => return,
            // The socket of a killed process is reset.
            Err(super::wire::WireError::Read(_)) => return,
            Err(error) => FromProcess::Garbage(error.to_string()),
        };
        let over = matches!(from, FromProcess::Garbage(_));
        if inbox.send((member.clone(), from)).await.is_err() || over {
            return;
        }
    }
}

/// Writes commands; a rank that doesn't take one in time is stuck and gets killed.
async fn write_commands(
    mut writer: OwnedWriteHalf,
    mut queue: mpsc::Receiver<RankCommand>,
    kill: mpsc::Sender<()>,
) {
    while let Some(command) = queue.recv().await {
        let bytes = command.encode_length_delimited_to_vec();
        match tokio::time::timeout(RANK_WRITE_TIMEOUT, writer.write_all(&bytes)).await {
            Ok(Ok(())) => {}
            // It has ended, or is about to: its exit says more.
            Ok(Err(_)) => return,
            Err(_) => {
                let _ = kill.try_send(());
                return;
            }
        }
    }
}

async fn wait(mut child: Child, mut killed: mpsc::Receiver<()>) -> RankExited {
    use std::os::unix::process::ExitStatusExt;

    let status = loop {
        tokio::select! {
            status = child.wait() => break status,
            Some(()) = killed.recv() => { let _ = child.start_kill(); }
        }
    };
    let (code, signal) = status.map_or((None, None), |status| (status.code(), status.signal()));
    RankExited { code, signal, ..RankExited::default() }
}
