//! A coordinator and agents as real processes on loopback, for tests of the control plane.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::certs::Certs;
use crate::muster;
use crate::netns::inside;

/// How long a state may take to come.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A process that is killed with its owner.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command that logs to a file.
    pub fn start(mut command: Command, log: PathBuf) -> Self {
        let file = File::create(&log).expect("a log file");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Self { child: command.spawn().expect("a process"), log }
    }

    /// The address that it says it listens on.
    pub fn address(&self) -> String {
        wait(&format!("an address in {}", self.log.display()), || {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let at = log.find("listens on ")? + "listens on ".len();
            let address = log[at..].split_whitespace().next()?;
            Some(address.to_owned())
        })
    }

    /// Number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Numbers of the processes that it has started and that still run.
    pub fn children(&self) -> Vec<u32> {
        let parent = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name in brackets may hold anything; the state and the parent follow it.
            stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
        };
        let all = std::fs::read_dir("/proc").expect("a list of processes");
        let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid| parent(pid) == Some(self.id())).collect()
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Kills it and waits for its end.
    pub fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it has ended");
    }

    /// Waits for its end and returns its exit code.
    pub fn exit_code(&mut self) -> Option<i32> {
        wait("the end of a process", || self.child.try_wait().expect("a child")).code()
    }

    /// What it wrote to its standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}

/// Sends a signal to a process.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    // It may have ended meanwhile.
    status.expect("kill runs");
}

/// Waits until something is there.
///
/// # Panics
/// After [`DEADLINE`].
pub fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not come within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A place for a cluster's files, and where its coordinator is.
pub struct Cluster {
    dir: PathBuf,
    rank: PathBuf,
    address: String,
    /// The network namespace of the coordinator and of those who ask it.
    space: Option<String>,
    count: std::cell::Cell<u32>,
    certs: Option<Certs>,
    /// More arguments of the coordinator, and variables of its environment.
    more: (Vec<String>, Vec<(String, String)>),
}

impl Cluster {
    /// Starts a coordinator with its files below `dir`; `rank` is the program of ranks.
    pub fn start(dir: &Path, rank: &Path) -> (Self, Process) {
        Self::new(dir, rank).begin()
    }

    /// As [`Cluster::start`], with certificates; `options` are more options of the coordinator.
    pub fn start_secure(dir: &Path, rank: &Path, certs: Certs, options: &[&str]) -> (Self, Process) {
        let more = (options.iter().map(|&option| option.to_owned()).collect(), Vec::new());
        Self { certs: Some(certs), more, ..Self::new(dir, rank) }.begin()
    }

    /// Its certificates.
    ///
    /// # Panics
    /// If it was started without.
    pub fn certs(&self) -> &Certs {
        self.certs.as_ref().expect("a cluster with certificates")
    }

    fn tls(&self, part: &str) -> Vec<String> {
        self.certs.as_ref().map(|certs| certs.options(part)).unwrap_or_default()
    }

    /// As [`Cluster::start`], with more arguments and variables for the coordinator.
    pub fn start_with(dir: &Path, rank: &Path, args: &[&str], env: &[(&str, &str)]) -> (Self, Process) {
        let more = (
            args.iter().map(|arg| (*arg).to_owned()).collect(),
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        );
        Self { more, ..Self::new(dir, rank) }.begin()
    }

    /// As [`Cluster::start`], with the coordinator in a network namespace and at this address there. Plaintext may leave
    /// the machine.
    pub fn start_at(dir: &Path, rank: &Path, (space, ip): (Option<String>, &str)) -> (Self, Process) {
        Self { address: format!("{ip}:0"), space, ..Self::new(dir, rank) }.begin()
    }

    fn new(dir: &Path, rank: &Path) -> Self {
        let address = "127.0.0.1:0".to_owned();
        Self {
            dir: dir.into(),
            rank: rank.into(),
            address,
            space: None,
            count: 0.into(),
            certs: None,
            more: Default::default(),
        }
    }

    fn begin(self) -> (Self, Process) {
        let mut cluster = self;
        let coordinator = cluster.coordinator();
        cluster.address = coordinator.address();
        (cluster, coordinator)
    }

    /// As [`Cluster::start`], with ranks that train.
    pub fn of_muster(dir: &Path) -> (Self, Process) {
        Self::start(dir, Path::new(""))
    }

    /// Where the coordinator listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn log(&self, name: &str) -> PathBuf {
        self.count.set(self.count.get() + 1);
        self.dir.join(format!("{name}.{}.log", self.count.get()))
    }

    /// Starts the coordinator, again if there was one.
    pub fn coordinator(&self) -> Process {
        let state = self.dir.join("state");
        self.coordinator_with(&state)
    }

    /// Starts a coordinator whose state lies elsewhere.
    pub fn coordinator_with(&self, state: &Path) -> Process {
        let mut command =
            muster(&["coordinator", "--wait-for-ranks", "5", "--listen", &self.address, "--state"]);
        command.arg(state).args(self.tls("coordinator-main"));
        command.args(self.plaintext()).args(&self.more.0).envs(self.more.1.iter().cloned());
        let command = self.beside_coordinator(command);
        Process::start(command, self.log("coordinator"))
    }

    /// Starts an agent.
    pub fn agent(&self, name: &str) -> Process {
        self.agent_with(name, 20)
    }

    /// Starts an agent whose ranks take so long for a step.
    pub fn agent_with(&self, name: &str, step_ms: u32) -> Process {
        self.start_agent(name, step_ms, &[])
    }

    /// Starts an agent with more arguments.
    pub fn agent_args(&self, name: &str, args: &[&str]) -> Process {
        self.start_agent(name, 20, args)
    }

    fn start_agent(&self, name: &str, step_ms: u32, args: &[&str]) -> Process {
        let mut command = Self::agent_command(name, "127.0.0.1");
        command.arg(&self.address).args(self.tls("trainer-node")).args(args);
        if !self.rank.as_os_str().is_empty() {
            command.arg("--rank-program").arg(&self.rank).env("FAKE_RANK_STEP_MS", step_ms.to_string());
        }
        Process::start(command, self.log(name))
    }

    /// Starts an agent that announces itself to nobody, as the pod with this identity.
    pub fn pod(&self, name: &str, uid: &str) -> Process {
        let mut command =
            muster(&["trainer", "--listen", "127.0.0.1:0", "--pod-name", name, "--pod-uid", uid]);
        command.arg("--rank-program").arg(&self.rank).env("FAKE_RANK_STEP_MS", "20");
        Process::start(command, self.log(name))
    }

    /// Starts an agent in a network namespace, with ranks that train.
    pub fn agent_in(&self, space: &str, name: &str, ip: &str) -> Process {
        let mut command = Self::agent_command(name, ip);
        command.arg(&self.address).args(self.plaintext());
        Process::start(inside(space, &command), self.log(name))
    }

    fn agent_command(name: &str, ip: &str) -> Command {
        muster(&["trainer", "--listen", &format!("{ip}:0"), "--name", name, "--coordinator"])
    }

    /// Beyond loopback plaintext has to be asked for.
    fn plaintext(&self) -> Option<&str> {
        let is_here = self.address.starts_with("127.") || self.certs.is_some();
        (!is_here).then_some("--insecure")
    }

    fn beside_coordinator(&self, command: Command) -> Command {
        match &self.space {
            Some(space) => inside(space, &command),
            None => command,
        }
    }

    /// Writes a run file with its own output directory.
    pub fn run_file(&self, name: &str, steps: u32, ranks: &str) -> PathBuf {
        let text = format!(
            "version = 1\nname = \"{name}\"\noutput_dir = \"{name}\"\n[model]\npath = \"m\"\n\
             [task]\ntype = \"single_label\"\n[data]\ntrain = \"t.csv\"\n[train]\nmax_steps = {steps}\n[ranks]\n{ranks}\n"
        );
        let path = self.dir.join(format!("{name}.toml"));
        std::fs::write(&path, text).expect("a run file");
        path
    }

    /// A command of a person.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.command_as(args, &self.tls("client-me"));
        command.arg("--json");
        command
    }

    /// A command of a person, with these options for security.
    pub fn command_as(&self, args: &[&str], security: &[String]) -> Command {
        let mut command = muster(args);
        command.args(["--coordinator", &self.address]).args(security).args(self.plaintext());
        self.beside_coordinator(command)
    }

    /// What a command that succeeds prints for people.
    pub fn text(&self, args: &[&str]) -> String {
        let output = self.command_as(args, &self.tls("client-me")).output().expect("muster runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// The answer to a command that succeeds.
    pub fn ask(&self, args: &[&str]) -> Value {
        let output = self.command(args).output().expect("muster runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Queues a run and returns its id.
    pub fn submit(&self, run_file: &Path) -> String {
        let run = self.ask(&["submit", &run_file.to_string_lossy()]);
        run["id"].as_str().expect("an id").to_owned()
    }

    /// What is known of a run; nothing while the coordinator is away.
    pub fn status(&self, run: &str) -> Option<Value> {
        let output = self.command(&["status", run]).output().expect("muster runs");
        output.status.success().then(|| serde_json::from_slice(&output.stdout).expect("JSON"))
    }

    /// Waits until a run is as wanted.
    pub fn until(&self, run: &str, what: &str, mut is: impl FnMut(&Value) -> bool) -> Value {
        let mut last = None;
        let deadline = Instant::now() + DEADLINE;
        loop {
            last = self.status(run).or(last);
            if let Some(run) = last.as_ref().filter(|run| is(run)) {
                return run.clone();
            }
            assert!(Instant::now() < deadline, "{what} did not come: {last:#?}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits until a run has done so many steps.
    pub fn until_step(&self, run: &str, step: u64) -> Value {
        self.until(run, &format!("step {step}"), |run| run["step"].as_u64() >= Some(step))
    }

    /// Waits until a run is in a state.
    pub fn until_state(&self, run: &str, state: &str) -> Value {
        self.until(run, state, |run| run["state"] == state)
    }

    /// Waits until so many nodes are connected.
    pub fn until_nodes(&self, count: usize) {
        wait(&format!("{count} nodes"), || {
            let nodes = self.ask(&["nodes"]);
            let connected = nodes.as_array()?.iter().filter(|node| node["state"] == "connected").count();
            (connected == count).then_some(())
        });
    }

    /// Numbers of the processes of a run's present ranks, by the names of the members.
    pub fn rank_pids(&self, run: &str) -> Vec<(String, u32)> {
        let output = self.command(&["logs", run]).output().expect("muster runs");
        let status = self.status(run).unwrap_or_default();
        let present = |member: &str| {
            status["ranks"].as_array().is_some_and(|ranks| ranks.iter().any(|rank| rank["member"] == member))
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines
            .filter_map(|line| {
                let (member, pid) = line["line"].as_str()?.split_once(" has process ")?;
                Some((member.to_owned(), pid.parse().ok()?))
            })
            .filter(|(member, _)| present(member))
            .collect()
    }

    /// The steps that a run has committed, in order; a step that was done twice by two leaders counts once.
    pub fn steps(&self, name: &str) -> Vec<u64> {
        let log = std::fs::read_to_string(self.dir.join(name).join("steps")).unwrap_or_default();
        let mut steps: Vec<u64> = log.lines().map(|line| line.parse().expect("a step")).collect();
        steps.dedup();
        steps
    }
}
