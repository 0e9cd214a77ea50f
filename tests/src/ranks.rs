//! Rank processes without an agent and a coordinator: a test starts them, installs generations and reads their events.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use muster_proto::v1::rank_command::Command;
use muster_proto::v1::rank_event::Event;
use muster_proto::v1::{Install, Member, Origin, RankCommand, RankEvent, Start};
use muster_proto::wire::read_message;
use prost::Message;

use crate::muster;

/// Longer than anything a healthy rank does in a test, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// One rank process.
pub struct RankProcess {
    /// The process.
    pub child: Child,
    /// Its name and node, and where it listens at the moment.
    pub member: Member,
    line: UnixStream,
    events: Receiver<Event>,
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RankProcess {
    /// Starts a rank of a run file on a node of that name.
    pub fn start(run_file: &Path, id: &str, node: &str, origin: Origin) -> Self {
        let (line, theirs) = UnixStream::pair().expect("a socket pair");
        let mut command = muster(&["rank"]);
        let stderr = fs::File::options().create(true).append(true).open(run_file.with_extension("log"));
        command
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(stderr.expect("a log file"));
        let child = command.spawn().expect("muster rank starts");
        drop(command);
        let (send, events) = channel();
        let mut reader = BufReader::new(line.try_clone().expect("a second handle"));
        std::thread::spawn(move || {
            while let Some(event) = read_event(&mut reader) {
                if send.send(event).is_err() {
                    return;
                }
            }
        });
        let member = Member { id: id.into(), node: node.into(), threads: 1, ..Member::default() };
        let mut rank = Self { child, member, line, events };
        rank.tell(Command::Start(Start {
            run_id: format!("test {}", run_file.display()),
            run_file: fs::read_to_string(run_file).expect("the run file"),
            run_file_path: run_file.display().to_string(),
            member_id: id.into(),
            node: node.into(),
            local_ranks: 1,
            listen: "127.0.0.1".into(),
            origin: origin.into(),
            overrides: vec!["ranks.patience_s=5".into()],
            ..Start::default()
        }));
        rank
    }

    /// Sends a command.
    pub fn tell(&mut self, command: Command) {
        let bytes = RankCommand { command: Some(command) }.encode_length_delimited_to_vec();
        // A process that has died is noticed by what it does not say.
        let _ = self.line.write_all(&bytes);
    }

    /// Waits for the first event that `pick` takes; others are passed over. Remembers addresses.
    ///
    /// # Panics
    /// If it does not come, or the rank fails meanwhile.
    pub fn wait<T>(&mut self, what: &str, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        let until = Instant::now() + DEADLINE;
        loop {
            let event = self.events.recv_timeout(until.saturating_duration_since(Instant::now()));
            let event = event.unwrap_or_else(|_| panic!("{} never said {what}", self.member.id));
            match &event {
                Event::Ready(ready) => {
                    self.member.addresses = ready.addresses.clone();
                    self.member.threads = ready.threads;
                }
                Event::Paused(paused) => self.member.addresses = paused.addresses.clone(),
                Event::Broken(broken) => {
                    println!("{}: {}", self.member.id, broken.error);
                    self.member.addresses = broken.addresses.clone();
                }
                _ => {}
            }
            if let Some(found) = pick(&event) {
                return found;
            }
            if let Event::Failed(failed) = &event {
                panic!("{} failed while {what} was expected: {}", self.member.id, failed.error);
            }
        }
    }

    /// Waits until the rank can be installed; returns its step.
    pub fn wait_idle(&mut self) -> Option<u64> {
        self.wait("that it waits", |event| match event {
            Event::Ready(ready) => Some(ready.step),
            Event::Paused(paused) => Some(Some(paused.step)),
            Event::Broken(broken) => Some(broken.step),
            _ => None,
        })
    }

    /// Waits until the rank trains; returns the step at which it begins.
    pub fn wait_running(&mut self) -> u64 {
        self.wait("that it trains", |event| match event {
            Event::Running(running) => Some(running.step),
            _ => None,
        })
    }

    /// Waits until so many steps are done.
    pub fn wait_step(&mut self, step: u64) {
        self.wait(&format!("that step {step} is done"), |event| match event {
            Event::Progress(progress) if progress.step >= step => Some(()),
            _ => None,
        });
    }

    /// Waits for the end of the run; returns the results if this rank wrote them.
    pub fn wait_finished(&mut self) -> Option<serde_json::Value> {
        let text = self.wait("that it is finished", |event| match event {
            Event::Finished(finished) => Some(finished.results.clone()),
            _ => None,
        });
        (!text.is_empty()).then(|| serde_json::from_str(&text).expect("results are JSON"))
    }
}

/// Makes these ranks, which wait, a generation; members of one node must stand together.
pub fn install(generation: u64, ranks: &mut [&mut RankProcess]) {
    let members: Vec<Member> = ranks.iter().map(|rank| rank.member.clone()).collect();
    for (i, rank) in ranks.iter_mut().enumerate() {
        let key = vec![generation as u8; 32].into();
        rank.tell(Command::Install(Install { generation, members: members.clone(), rank: i as u32, key }));
    }
}

fn read_event(reader: &mut impl Read) -> Option<Event> {
    read_message::<RankEvent>(reader).ok()??.event
}
