//! Ranks as processes: the test binary itself, running the ignored test `rank_process`.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use muster_kernels::rng;
use rustix::process::{Pid, Signal, kill_process};

/// Environment variable that tells a rank what it is.
pub const ROLE: &str = "MUSTER_TEST_RANK";

/// The words that this rank was given; none in the process of the tests.
pub fn role() -> Option<Vec<String>> {
    Some(std::env::var(ROLE).ok()?.split(' ').map(str::to_owned).collect())
}

/// A rank; it is killed when this is dropped.
pub struct Rank {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    stdin: ChildStdin,
}

impl Rank {
    /// Starts a rank that knows these words.
    pub fn start(role: &str) -> Self {
        Self::spawn(Command::new(std::env::current_exe().unwrap()), role)
    }

    /// Starts a rank in a network namespace.
    pub fn start_in(namespace: &str, role: &str) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
        Self::spawn(command, role)
    }

    fn spawn(mut command: Command, role: &str) -> Self {
        let mut child = command
            .args(["--exact", "rank_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let stdin = child.stdin.take().unwrap();
        Self { child, lines, stdin }
    }

    /// The rest of the next line that begins with a word.
    #[track_caller]
    pub fn expect(&mut self, word: &str) -> String {
        let found = self.lines.by_ref().map(|l| l.unwrap()).find(|l| l.starts_with(word));
        found.unwrap_or_else(|| panic!("the process ended before {word}"))[word.len()..].trim().to_owned()
    }

    /// Writes a line to its standard input.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Which signal hits the victim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    Kill,
    Stop,
}

impl Fault {
    /// Hits a random rank at a random moment within so long. Returns which one.
    pub fn strike(self, ranks: &[Rank], seed: u64, within: Duration) -> usize {
        let victim = (rng::uniform(seed, 0) * ranks.len() as f64) as usize;
        // Not waiting for a state: the moment is what is tried.
        std::thread::sleep(within.mul_f64(rng::uniform(seed, 1)));
        ranks[victim].signal(if self == Self::Kill { Signal::KILL } else { Signal::STOP });
        victim
    }
}

/// Trials of a kind: few, or what `MUSTER_FAULT_TRIALS` says.
pub fn trials(default: u64) -> u64 {
    std::env::var("MUSTER_FAULT_TRIALS").map_or(default, |n| n.parse().unwrap())
}

/// Gradients of a rank in operations that take turns.
pub fn inputs(rank: usize) -> Vec<Vec<f32>> {
    let noise =
        |count: u64| (0..count).map(|i| rng::uniform(rank as u64, i % 997 + count) as f32 - 0.5).collect();
    [200_000, 150_000, 10, 300_000, 5_000, 2_000, 90_000].map(noise).to_vec()
}
