//! A rank for tests of the control plane: it speaks `rank.proto` on its standard input, meets its peers over TCP and
//! does steps in lockstep with them, but computes nothing.
//!
//! Steps are agreed through rank 0. `train.max_steps` is the number of steps; `FAKE_RANK_STEP_MS` is the time of one;
//! `FAKE_RANK_READY_MS` the time to read data. The output directory gets `checkpoint` (a step) and `steps` (every step
//! that was committed, in order). A note tells the process's number to tests that kill it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use muster_proto::RunSpec;
use muster_proto::v1::{self, Origin, RankCommand, RankEvent, rank_command::Command, rank_event::Event};
use muster_proto::wire::read_message;
use prost::Message;

/// A peer that is silent for this long is taken for dead.
const PATIENCE: Duration = Duration::from_millis(1_500);

struct Fake {
    socket: UnixStream,
    commands: Receiver<Command>,
    listener: TcpListener,
    out: PathBuf,
    steps: u64,
    step_time: Duration,
    step: Option<u64>,
    pause: bool,
    stop: Option<bool>,
}

/// Peers that did not come.
#[derive(Debug)]
struct Missing(Vec<u32>);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ranks {:?} did not come", self.0)
    }
}

impl std::error::Error for Missing {}

enum Ended {
    Done,
    Paused,
    Stopped(bool),
    Broken(String, Vec<u32>),
}

/// Runs until the end of the run or of the standard input.
///
/// # Errors
/// Anything that keeps it from speaking with its agent.
pub fn main() -> anyhow::Result<()> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let (sender, commands) = channel();
    let mut reader = socket.try_clone()?;
    std::thread::spawn(move || {
        while let Ok(Some(command)) = read_message::<RankCommand>(&mut reader) {
            if command.command.is_some_and(|command| sender.send(command).is_err()) {
                return;
            }
        }
        // The agent is gone.
        std::process::exit(0);
    });
    let Ok(Command::Start(start)) = commands.recv() else { bail!("the first command must be Start") };
    let spec = RunSpec::parse_with(&start.run_file, Path::new(&start.run_file_path), &start.overrides)?;
    let listener = TcpListener::bind((start.listen.as_str(), 0)).context("can't listen")?;
    let mut fake = Fake {
        socket,
        commands,
        listener,
        out: spec.output_dir.clone(),
        steps: spec.train.max_steps.unwrap_or(100),
        step_time: millis("FAKE_RANK_STEP_MS", 20),
        step: None,
        pause: false,
        stop: None,
    };
    fake.tell(Event::Note(format!("{{\"pid\":{}}}", std::process::id())))?;
    println!("{} has process {}", start.member_id, std::process::id());
    std::thread::sleep(millis("FAKE_RANK_READY_MS", 50));
    let saved = std::fs::read_to_string(fake.out.join("checkpoint")).ok().and_then(|text| text.parse().ok());
    fake.step = match start.origin() {
        Origin::Peers => None,
        Origin::Fresh if saved.is_some() => return fake.fail("the output directory has checkpoints"),
        Origin::Fresh => Some(0),
        Origin::Resume if saved.is_none() => return fake.fail("there is no checkpoint"),
        _ => Some(saved.unwrap_or(0)),
    };
    let ready =
        v1::Ready { addresses: fake.addresses()?, step: fake.step, threads: 1, total_steps: fake.steps };
    fake.tell(Event::Ready(ready))?;
    fake.serve()
}

fn millis(name: &str, default: u64) -> Duration {
    let value = std::env::var(name).ok().and_then(|text| text.parse().ok());
    Duration::from_millis(value.unwrap_or(default))
}

impl Fake {
    fn tell(&mut self, event: Event) -> anyhow::Result<()> {
        let event = RankEvent { event: Some(event) };
        Ok(self.socket.write_all(&event.encode_length_delimited_to_vec())?)
    }

    fn fail(&mut self, error: &str) -> anyhow::Result<()> {
        let kind = v1::FailureKind::Input as i32;
        let failed =
            v1::Failed { kind, error: error.into(), hints: vec!["use --resume".into()], exit_code: 2 };
        self.tell(Event::Failed(failed))?;
        std::process::exit(2);
    }

    fn addresses(&self) -> anyhow::Result<Vec<String>> {
        Ok(vec![self.listener.local_addr()?.to_string()])
    }

    fn save(&self, step: u64) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.out)?;
        let name = self.out.join(format!("checkpoint.{}", std::process::id()));
        std::fs::write(&name, step.to_string())?;
        Ok(std::fs::rename(name, self.out.join("checkpoint"))?)
    }

    fn commit(&self, step: u64) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.out)?;
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(self.out.join("steps"))?;
        Ok(writeln!(log, "{step}")?)
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        loop {
            match self.commands.recv()? {
                Command::Install(install) => {
                    let generation = install.generation;
                    let ended = match self.generation(&install) {
                        Ok(ended) => ended,
                        Err(error) => {
                            let missing = error.downcast_ref::<Missing>().map(|missing| missing.0.clone());
                            Ended::Broken(format!("{error:#}"), missing.unwrap_or_default())
                        }
                    };
                    (self.pause, self.stop) = (false, None);
                    if self.after(generation, install.rank, ended)? {
                        return Ok(());
                    }
                }
                Command::Stop(stop) => return self.stopped(stop.save),
                Command::Start(_) | Command::Regroup(_) | Command::Abandon(_) => {}
            }
        }
    }

    /// Tells how a generation ended; true if the process ends too.
    fn after(&mut self, generation: u64, rank: u32, ended: Ended) -> anyhow::Result<bool> {
        let (step, addresses) = (self.step.unwrap_or(0), self.addresses()?);
        match ended {
            Ended::Paused => self.tell(Event::Paused(v1::Paused { generation, step, addresses }))?,
            Ended::Broken(error, culprits) => {
                self.tell(Event::Broken(v1::Broken {
                    generation,
                    step: Some(step),
                    addresses,
                    error,
                    culprits,
                }))?;
            }
            Ended::Stopped(save) => {
                self.stopped(save && rank == 0)?;
                return Ok(true);
            }
            Ended::Done => {
                if rank == 0 {
                    self.save(step)?;
                }
                let results = if rank == 0 { format!("{{\"steps\":{step}}}") } else { String::new() };
                self.tell(Event::Finished(v1::Finished { results, step }))?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn stopped(&mut self, save: bool) -> anyhow::Result<()> {
        let step = self.step.unwrap_or(0);
        if save {
            self.save(step)?;
        }
        self.tell(Event::Stopped(v1::Stopped { step, saved: save }))
    }

    fn generation(&mut self, install: &v1::Install) -> anyhow::Result<Ended> {
        let begun = Instant::now();
        let (me, world) = (install.rank, install.members.len() as u32);
        let mut peers = if me == 0 { self.accept(install)? } else { vec![(0, self.connect(install)?)] };
        let mut steps = vec![self.step];
        if me == 0 {
            for (_, peer) in &mut peers {
                steps.push(read_line(peer)?.trim().parse::<u64>().ok());
            }
            let newest = steps.iter().flatten().max().context("nobody has weights")?;
            self.step = Some(*newest);
            send_all(&mut peers, &format!("{newest}"))?;
        } else {
            let step = self.step.map_or("none".into(), |step| step.to_string());
            send_all(&mut peers, &step)?;
            self.step = Some(read_line(&mut peers[0].1)?.trim().parse()?);
        }
        let (generation, step) = (install.generation, self.step.unwrap_or(0));
        let formed_us = begun.elapsed().as_micros() as u64;
        self.tell(Event::Running(v1::Running { generation, step, rank: me, formed_us }))?;
        loop {
            let ended = if me == 0 { self.lead(&mut peers)? } else { self.follow(&mut peers[0].1)? };
            if let Some(ended) = ended {
                return Ok(ended);
            }
            let step = self.step.unwrap_or(0);
            let step_us = self.step_time.as_micros() as u64;
            let (total_steps, rows) = (self.steps, u64::from(world));
            let progress =
                v1::Progress { generation, step, total_steps, rows, step_us, ..v1::Progress::default() };
            self.tell(Event::Progress(progress))?;
            if step >= self.steps {
                return Ok(Ended::Done);
            }
        }
    }

    /// Works for the time of a step, and hears commands meanwhile.
    fn work(&mut self) {
        let until = Instant::now() + self.step_time;
        loop {
            match self.commands.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Command::Regroup(_)) => self.pause = true,
                Ok(Command::Stop(stop)) => self.stop = Some(stop.save || self.stop == Some(true)),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// One step as rank 0: hears all, then tells all what follows.
    fn lead(&mut self, peers: &mut [(u32, BufReader<TcpStream>)]) -> anyhow::Result<Option<Ended>> {
        self.work();
        let mut culprits = Vec::new();
        for (rank, peer) in peers.iter_mut() {
            match read_line(peer) {
                Ok(line) => {
                    self.pause |= line.contains("pause");
                    if line.contains("stop") {
                        self.stop = Some(line.contains("save") || self.stop == Some(true));
                    }
                }
                Err(_) => culprits.push(*rank),
            }
        }
        if !culprits.is_empty() {
            let list: Vec<String> = culprits.iter().map(u32::to_string).collect();
            let _ = send_all(peers, &format!("broken {}", list.join(" ")));
            return Ok(Some(Ended::Broken("a peer is lost".into(), culprits)));
        }
        let step = self.step.unwrap_or(0) + 1;
        let verdict = match (self.stop, self.pause) {
            (Some(true), _) => "stop save",
            (Some(false), _) => "stop",
            (None, true) => "pause",
            (None, false) => "go",
        };
        self.step = Some(step);
        self.commit(step)?;
        send_all(peers, verdict)?;
        if step.is_multiple_of(20) {
            self.save(step)?;
        }
        Ok(self.verdict(verdict))
    }

    fn follow(&mut self, leader: &mut BufReader<TcpStream>) -> anyhow::Result<Option<Ended>> {
        self.work();
        let stop = self.stop.map_or("", |save| if save { "stop save" } else { "stop" });
        let words = format!("done {} {stop}\n", if self.pause { "pause" } else { "" });
        let heard =
            leader.get_mut().write_all(words.as_bytes()).map_err(Into::into).and_then(|()| read_line(leader));
        let Ok(line) = heard else {
            return Ok(Some(Ended::Broken("the leader is lost".into(), vec![0])));
        };
        if let Some(list) = line.strip_prefix("broken") {
            let culprits = list.split_whitespace().filter_map(|rank| rank.parse().ok()).collect();
            return Ok(Some(Ended::Broken("the leader lost a peer".into(), culprits)));
        }
        self.step = self.step.map(|step| step + 1);
        Ok(self.verdict(line.trim()))
    }

    fn verdict(&self, verdict: &str) -> Option<Ended> {
        match verdict {
            _ if self.step >= Some(self.steps) => None,
            "stop save" => Some(Ended::Stopped(true)),
            "stop" => Some(Ended::Stopped(false)),
            "pause" => Some(Ended::Paused),
            _ => None,
        }
    }

    fn accept(&self, install: &v1::Install) -> anyhow::Result<Vec<(u32, BufReader<TcpStream>)>> {
        let deadline = Instant::now() + PATIENCE * 2;
        self.listener.set_nonblocking(true)?;
        let mut peers: Vec<(u32, BufReader<TcpStream>)> = Vec::new();
        while peers.len() + 1 < install.members.len() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    let mut peer = open(stream)?;
                    let hello = read_line(&mut peer).unwrap_or_default();
                    let (generation, rank) = hello.trim().split_once(' ').unwrap_or_default();
                    // Callers of an older generation are strangers.
                    if generation == install.generation.to_string() {
                        peers.push((rank.parse()?, peer));
                    }
                }
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => {
                    let came: Vec<u32> = peers.iter().map(|(rank, _)| *rank).collect();
                    let all = 1..install.members.len() as u32;
                    return Err(Missing(all.filter(|rank| !came.contains(rank)).collect()).into());
                }
            }
        }
        Ok(peers)
    }

    fn connect(&self, install: &v1::Install) -> anyhow::Result<BufReader<TcpStream>> {
        let deadline = Instant::now() + PATIENCE * 2;
        let address = install.members[0].addresses.first().context("rank 0 has no address")?;
        loop {
            match TcpStream::connect(address) {
                Ok(stream) => {
                    let mut peer = open(stream)?;
                    let hello = format!("{} {}\n", install.generation, install.rank);
                    peer.get_mut().write_all(hello.as_bytes())?;
                    return Ok(peer);
                }
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(error).context("rank 0 can't be reached"),
            }
        }
    }
}

fn open(stream: TcpStream) -> anyhow::Result<BufReader<TcpStream>> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(BufReader::new(stream))
}

fn read_line(peer: &mut BufReader<TcpStream>) -> anyhow::Result<String> {
    let mut line = String::new();
    if peer.read_line(&mut line)? == 0 {
        bail!("the peer has closed");
    }
    Ok(line)
}

fn send_all(peers: &mut [(u32, BufReader<TcpStream>)], line: &str) -> anyhow::Result<()> {
    for (_, peer) in peers {
        peer.get_mut().write_all(format!("{line}\n").as_bytes())?;
    }
    Ok(())
}
