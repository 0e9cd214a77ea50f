//! The line to the agent: commands in, events out, over the socket that is a rank's standard input.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use muster_proto::v1::rank_command::Command;
use muster_proto::v1::rank_event::Event;
use muster_proto::v1::{Install, RankCommand, RankEvent, Start};
use muster_proto::wire::read_message;
use prost::Message;

use crate::peers::Wish;

/// What a waiting rank is told to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Form a generation.
    Install(Install),
    /// End, saving first if so.
    Stop(Wish),
}

#[derive(Debug, Default)]
struct Inbox {
    installs: VecDeque<Install>,
    /// Strongest of all so far; it stays.
    stop: Wish,
    /// Newest generation that shall pause.
    regroup: Option<u64>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    inbox: Mutex<Inbox>,
    news: Condvar,
    /// Generation that is training, for wishes to regroup.
    generation: AtomicU64,
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        // Nobody panics while holding it.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The rank's end of the line.
#[derive(Debug)]
pub struct Control {
    shared: Arc<Shared>,
    out: Mutex<UnixStream>,
}

/// The agent's end is gone.
#[derive(Debug, thiserror::Error)]
#[error("the agent of this rank is gone")]
pub struct AgentGone;

/// Why a rank can't begin.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Standard input is no socket, or can't be used.
    #[error("can't talk to the agent: {0}")]
    Line(#[from] io::Error),
    /// The first command must be Start.
    #[error("the agent's first command is not Start")]
    NoStart,
}

impl Control {
    /// Waits for Start, then listens in a thread of its own; `lost` is called there when the agent is gone.
    ///
    /// # Errors
    /// A line that breaks before that, or begins with something else.
    pub fn open(
        line: UnixStream,
        lost: impl FnOnce() + Send + 'static,
    ) -> Result<(Self, Start), ControlError> {
        let mut reader = line.try_clone()?;
        let Some(Command::Start(start)) = read_command(&mut reader)? else {
            return Err(ControlError::NoStart);
        };
        let shared = Arc::new(Shared::default());
        let listening = Arc::clone(&shared);
        thread::Builder::new().name("muster-control".into()).spawn(move || {
            listen(&mut reader, &listening);
            lost();
        })?;
        Ok((Self { shared, out: Mutex::new(line) }, start))
    }

    /// Tells the agent something. Without an agent it goes nowhere: `lost` has been called then.
    pub fn tell(&self, event: Event) {
        let bytes = RankEvent { event: Some(event) }.encode_length_delimited_to_vec();
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = out.write_all(&bytes) {
            tracing::debug!("the agent does not listen: {error}");
        }
    }

    /// Waits for the next order.
    ///
    /// # Errors
    /// The agent is gone.
    pub fn next_order(&self) -> Result<Order, AgentGone> {
        let mut inbox = self.shared.inbox();
        loop {
            if inbox.stop > Wish::GoOn {
                return Ok(Order::Stop(inbox.stop));
            }
            // Only the newest generation matters: an older one can't form any more.
            if let Some(install) = inbox.installs.pop_back() {
                inbox.installs.clear();
                return Ok(Order::Install(install));
            }
            if inbox.closed {
                return Err(AgentGone);
            }
            inbox = self.shared.news.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Says which generation is training from now on.
    pub fn training(&self, generation: u64) {
        self.shared.generation.store(generation, Ordering::Relaxed);
    }

    /// What the agent wishes of the generation that is training.
    pub fn wish(&self) -> Wish {
        let inbox = self.shared.inbox();
        let regroups = inbox.regroup == Some(self.shared.generation.load(Ordering::Relaxed));
        // A newer generation that is there already needs no request to pause.
        inbox.stop.max(if regroups || !inbox.installs.is_empty() { Wish::Regroup } else { Wish::GoOn })
    }
}

fn listen(reader: &mut UnixStream, shared: &Shared) {
    loop {
        let command = read_command(reader);
        let mut inbox = shared.inbox();
        match command {
            Ok(Some(Command::Install(install))) => inbox.installs.push_back(install),
            Ok(Some(Command::Regroup(regroup))) => inbox.regroup = Some(regroup.generation),
            Ok(Some(Command::Stop(stop))) => {
                inbox.stop = inbox.stop.max(if stop.save { Wish::SaveAndStop } else { Wish::Stop });
            }
            Ok(Some(Command::Start(_))) => tracing::warn!("a second Start is ignored"),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!("the line to the agent ended: {error}");
                inbox.closed = true;
                shared.news.notify_all();
                return;
            }
        }
        shared.news.notify_all();
    }
}

/// Reads one command; `None` if it is of a kind that this version does not know. The end of the stream is an error.
fn read_command(reader: &mut impl Read) -> io::Result<Option<Command>> {
    let command: Option<RankCommand> = read_message(reader)?;
    Ok(command.ok_or(io::ErrorKind::UnexpectedEof)?.command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_proto::v1::{Regroup, Stop};

    fn send(line: &mut UnixStream, command: Command) {
        let bytes = RankCommand { command: Some(command) }.encode_length_delimited_to_vec();
        line.write_all(&bytes).unwrap();
    }

    fn open() -> (Control, UnixStream, std::sync::mpsc::Receiver<()>) {
        let (mut agent, rank) = UnixStream::pair().unwrap();
        send(&mut agent, Command::Start(Start { run_id: "r".into(), ..Start::default() }));
        let (lost, gone) = std::sync::mpsc::channel();
        let (control, start) = Control::open(rank, move || lost.send(()).unwrap()).unwrap();
        assert_eq!(start.run_id, "r");
        (control, agent, gone)
    }

    /// Waits until the control thread has seen what was sent.
    fn until(control: &Control, wish: Wish) {
        let begun = std::time::Instant::now();
        while control.wish() != wish {
            assert!(begun.elapsed().as_secs() < 10, "still {:?}", control.wish());
            thread::yield_now();
        }
    }

    #[test]
    fn a_request_to_pause_counts_for_its_generation_only() {
        let (control, mut agent, _gone) = open();
        control.training(3);
        send(&mut agent, Command::Regroup(Regroup { generation: 3 }));
        until(&control, Wish::Regroup);
        control.training(4);
        assert_eq!(control.wish(), Wish::GoOn);
        send(&mut agent, Command::Install(Install { generation: 5, ..Install::default() }));
        until(&control, Wish::Regroup);
        assert!(matches!(control.next_order(), Ok(Order::Install(install)) if install.generation == 5));
        assert_eq!(control.wish(), Wish::GoOn);
    }

    #[test]
    fn a_stop_stays_and_saving_is_stronger() {
        let (control, mut agent, _gone) = open();
        send(&mut agent, Command::Stop(Stop { save: true, reason: "enough".into() }));
        until(&control, Wish::SaveAndStop);
        send(&mut agent, Command::Stop(Stop { save: false, reason: "now".into() }));
        assert_eq!(control.next_order().unwrap(), Order::Stop(Wish::SaveAndStop));
    }

    #[test]
    fn the_end_of_the_agent_is_noticed_and_events_go_nowhere() {
        let (control, agent, gone) = open();
        drop(agent);
        gone.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
        assert!(control.next_order().is_err());
        control.tell(Event::Note("lost".into()));
    }

    #[test]
    fn nonsense_is_an_error_and_no_allocation() {
        for bytes in [&[0xff; 8][..], &[0x80, 0x80, 0x80, 0x7f], &[3, 1], &[]] {
            assert!(read_command(&mut &*bytes).is_err(), "{bytes:?}");
        }
    }
}
