//! The line to the agent: commands in, events out, over the socket that is a rank's standard input.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use muster_allreduce::WorldAbort;
use muster_proto::limits::RANK_ALIVE_EVERY;
use muster_proto::v1::rank_command::Command;
use muster_proto::v1::rank_event::Event;
use muster_proto::v1::{Alive, Install, RankCommand, RankEvent, Start};
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
    /// Newest generation that lost a member.
    abandoned: u64,
    /// What this rank takes part in, or is about to.
    present: Present,
    closed: bool,
}

/// The generation that a rank forms or trains in, and how to break it off.
#[derive(Debug, Default)]
struct Present {
    generation: u64,
    /// Ends the meeting.
    is_cancelled: Arc<AtomicBool>,
    /// Ends what comes after the meeting.
    world: WorldAbort,
}

impl Inbox {
    fn abandon(&mut self, generation: u64, reason: &str) {
        self.abandoned = self.abandoned.max(generation);
        if self.present.generation == generation {
            self.present.is_cancelled.store(true, Ordering::Release);
            self.present.world.abort(reason);
        }
    }
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
    out: Arc<Mutex<UnixStream>>,
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
        let out = Arc::new(Mutex::new(line));
        let beating = Arc::downgrade(&out);
        thread::Builder::new().name("muster-alive".into()).spawn(move || beat(&beating))?;
        Ok((Self { shared, out }, start))
    }

    /// Tells the agent something. Without an agent it goes nowhere: `lost` has been called then.
    pub fn tell(&self, event: Event) {
        if let Err(error) = write(&self.out, event) {
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

    /// Begins the meeting of a generation, which ends early once what this returns is true.
    pub fn meeting(&self, generation: u64) -> Arc<AtomicBool> {
        let mut inbox = self.shared.inbox();
        let is_cancelled = Arc::new(AtomicBool::new(inbox.abandoned >= generation));
        let of_agent = Arc::clone(&is_cancelled);
        inbox.present = Present { generation, is_cancelled: of_agent, world: WorldAbort::default() };
        is_cancelled
    }

    /// The generation has met: `world` is ended if a member is lost.
    pub fn met(&self, world: WorldAbort) {
        let mut inbox = self.shared.inbox();
        if inbox.abandoned >= inbox.present.generation {
            world.abort("a member was lost while the generation met");
        }
        inbox.present.world = world;
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

fn write(out: &Mutex<UnixStream>, event: Event) -> io::Result<()> {
    let bytes = RankEvent { event: Some(event) }.encode_length_delimited_to_vec();
    out.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes)
}

/// Tells the agent at a fixed pace that this process can run, until there is no line to it.
fn beat(out: &Weak<Mutex<UnixStream>>) {
    while let Some(out) = out.upgrade() {
        if write(&out, Event::Alive(Alive {})).is_err() {
            return;
        }
        drop(out);
        thread::sleep(RANK_ALIVE_EVERY);
    }
}

fn listen(reader: &mut UnixStream, shared: &Shared) {
    loop {
        let command = read_command(reader);
        let mut inbox = shared.inbox();
        match command {
            Ok(Some(Command::Install(install))) => inbox.installs.push_back(install),
            Ok(Some(Command::Regroup(regroup))) => inbox.regroup = Some(regroup.generation),
            Ok(Some(Command::Abandon(abandon))) => inbox.abandon(abandon.generation, &abandon.reason),
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
    use muster_proto::v1::{Abandon, Regroup, Stop};

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
    fn a_generation_that_lost_a_member_is_broken_off_before_and_while_it_meets() {
        let (control, mut agent, _gone) = open();
        let wait = |flag: &AtomicBool| {
            let begun = std::time::Instant::now();
            while !flag.load(Ordering::Acquire) {
                assert!(begun.elapsed().as_secs() < 10, "nothing breaks it off");
                thread::yield_now();
            }
        };
        let fourth = control.meeting(4);
        send(&mut agent, Command::Abandon(Abandon { generation: 3, reason: "old news".into() }));
        send(&mut agent, Command::Abandon(Abandon { generation: 4, reason: "n/1 is gone".into() }));
        wait(&fourth);
        assert!(control.meeting(4).load(Ordering::Acquire), "it came before the meeting");
        assert!(!control.meeting(5).load(Ordering::Acquire), "only up to the generation that lost a member");
    }

    #[test]
    fn a_rank_tells_that_it_is_alive() {
        let (_control, mut agent, _gone) = open();
        agent.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        for _ in 0..2 {
            let event: RankEvent = read_message(&mut agent).unwrap().unwrap();
            assert_eq!(event.event, Some(Event::Alive(Alive {})));
        }
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
