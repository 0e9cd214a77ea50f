//! A run of several ranks on this machine, without a coordinator process: the gang, and an agent in this process that
//! starts the ranks. Nothing listens but the ranks themselves, on loopback.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use muster_coordinator::gang::{AfterStop, Event, Failure, Gang, Outcome, Policy, Save};
use muster_coordinator::run::{Effect, Recipe, Run, route};
use muster_coordinator::secret::{random_bytes, random_name};
use muster_proto::run_spec::RanksSpec;
use muster_proto::v1::{AgentEvent, FailureKind, NodeReport, Origin, RunState, agent_event, rank_event};
use muster_trainer::agent::{self, AgentOptions, Handle, Session};
use muster_trainer::topology::{HostFacts, split_cpus};

use crate::host;

/// Identity of the coordinator inside this process.
const COORDINATOR: &str = "local";
/// Name of this machine in the run.
const NODE: &str = "local";
/// How often the stop flag is looked at.
const STOP_POLL: Duration = Duration::from_millis(50);

/// What to train, and as how many ranks.
#[derive(Debug, Clone)]
pub struct LocalRun {
    /// Text of the run file.
    pub run_file: String,
    /// Its path.
    pub run_file_path: PathBuf,
    /// `--set` overrides.
    pub overrides: Vec<String>,
    /// Whether to go on from the newest checkpoint.
    pub origin: Origin,
    /// Ranks.
    pub ranks: u32,
    /// Fewest ranks that train, and how long they may keep each other waiting.
    pub spec: RanksSpec,
    /// Program and arguments of a rank; none: this program with `rank`.
    pub program: Option<(PathBuf, Vec<OsString>)>,
    /// Instruction set of the kernels, for reports.
    pub isa: String,
}

/// What the caller sees while the run goes on.
#[derive(Debug)]
pub enum Observed<'a> {
    /// A rank said something.
    Rank {
        /// Its number in the live generation, or on this machine if it is in none.
        rank: u32,
        /// Name of its process.
        member: &'a str,
        /// What it said.
        event: &'a rank_event::Event,
    },
    /// The run is in another state.
    State {
        /// The state.
        state: RunState,
        /// Why.
        reason: &'a str,
    },
    /// Something happened that a person may want to know.
    Note(&'a str),
    /// Lines that a rank wrote.
    Log {
        /// Name of its process.
        member: &'a str,
        /// The lines.
        lines: &'a [String],
    },
}

/// How the run ended.
#[derive(Debug)]
pub enum LocalOutcome {
    /// All steps are done.
    Finished {
        /// results.json.
        results: String,
    },
    /// It was told to stop.
    Stopped {
        /// Step of the checkpoint, if one was written.
        saved: Option<u64>,
    },
    /// It can't go on.
    Failed(Failure),
}

/// Trains with several ranks on this machine until the end, a failure, or `stop`.
///
/// # Errors
/// A number of ranks that can't be dealt to the cores, or a system that refuses threads.
pub fn run_local(
    request: &LocalRun,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(Observed<'_>),
) -> anyhow::Result<LocalOutcome> {
    let facts = host::detect();
    split_cpus(&facts, request.ranks as usize, request.ranks as usize)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.context("can't make an event loop")?;
    let agent = Handle::start(agent_options(request, facts)?).context("can't start the agent")?;
    runtime.block_on(drive(request, &agent, stop, observe))
}

fn agent_options(request: &LocalRun, facts: HostFacts) -> anyhow::Result<AgentOptions> {
    let (program, args) = match &request.program {
        Some((program, args)) => (program.clone(), args.clone()),
        None => (std::env::current_exe().context("can't find this program")?, vec!["rank".into()]),
    };
    Ok(AgentOptions {
        node: NODE.into(),
        incarnation: agent::new_incarnation(),
        boot_id: agent::boot_id(),
        version: env!("CARGO_PKG_VERSION").into(),
        isa: request.isa.clone(),
        listen: "127.0.0.1".into(),
        program,
        args,
        facts,
        pod: None,
        leave_timeout: muster_proto::limits::LEAVE_TIMEOUT,
        frozen_after: muster_proto::limits::RANK_FROZEN_AFTER,
    })
}

fn new_run(request: &LocalRun) -> Run {
    let policy = Policy::default().for_run(&request.spec);
    let recipe = Recipe {
        id: random_name::<8>(),
        run_file: request.run_file.clone(),
        run_file_path: request.run_file_path.to_string_lossy().into_owned(),
        overrides: request.overrides.clone(),
        ranks: request.ranks,
    };
    Run::new(recipe, Gang::new(policy, request.origin), random_bytes::<32>)
}

/// The run, the session with the agent, and who watches.
struct Driver<'a> {
    run: Run,
    session: Session,
    begun: Instant,
    observe: &'a mut dyn FnMut(Observed<'_>),
    shown: Option<(RunState, String)>,
    outcome: Option<Outcome>,
}

async fn drive(
    request: &LocalRun,
    agent: &Handle,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(Observed<'_>),
) -> anyhow::Result<LocalOutcome> {
    // What the first report says is known: there are no ranks yet.
    let (session, _) = open(agent).await?;
    let begun = Instant::now();
    let mut driver = Driver { run: new_run(request), session, begun, observe, shown: None, outcome: None };
    driver.handle(Event::NodeAdded { node: NODE.into(), local_ranks: request.ranks }).await?;
    let mut told = false;
    let mut poll = tokio::time::interval(STOP_POLL);
    let outcome = loop {
        if let Some(outcome) = driver.outcome.take() {
            break outcome;
        }
        let due = driver.run.poll_timeout().unwrap_or(Duration::MAX).saturating_sub(begun.elapsed());
        tokio::select! {
            event = driver.session.events.recv() => match event {
                Some(event) => driver.agent_event(event).await?,
                // It had no room left; the next session begins with what was missed.
                None => {
                    let (session, report) = open(agent).await?;
                    driver.session = session;
                    driver.reported(report).await?;
                }
            },
            () = tokio::time::sleep(due.min(Duration::from_secs(3600))) => driver.handle(Event::Tick).await?,
            _ = poll.tick(), if !told => if stop.load(Ordering::Relaxed) {
                told = true;
                let reason = "a signal".to_owned();
                driver.handle(Event::Stop { save: Save::Yes, reason, then: AfterStop::Over }).await?;
            },
        }
    };
    Ok(local_outcome(outcome))
}

/// Opens a session. Its report is older than anything that is sent afterwards, so it is taken out first.
async fn open(agent: &Handle) -> anyhow::Result<(Session, NodeReport)> {
    let mut session = agent.asker().session(COORDINATOR).await?;
    match session.events.recv().await.and_then(|event| event.event) {
        Some(agent_event::Event::Report(report)) => Ok((session, report)),
        other => anyhow::bail!("a session begins with a report, not with {other:?}"),
    }
}

impl Driver<'_> {
    async fn agent_event(&mut self, event: AgentEvent) -> anyhow::Result<()> {
        if let Some(for_run) = route(&event) {
            if let Event::Said { member, said } = &for_run.event {
                (self.observe)(Observed::Rank { rank: self.run.rank_of(member), member, event: said });
            }
            return self.handle(for_run.event).await;
        }
        if let Some(agent_event::Event::Log(log)) = event.event {
            (self.observe)(Observed::Log { member: &log.member_id, lines: &log.lines });
        }
        Ok(())
    }

    async fn reported(&mut self, report: NodeReport) -> anyhow::Result<()> {
        let id = &self.run.recipe().id;
        let ranks = report.ranks.into_iter().filter(|rank| rank.run_id == *id).collect();
        self.handle(Event::Reported { node: NODE.into(), ranks }).await
    }

    async fn handle(&mut self, event: Event) -> anyhow::Result<()> {
        for effect in self.run.handle(self.begun.elapsed(), event) {
            match effect {
                Effect::Send { command, .. } => self.session.commands.send(command).await?,
                Effect::Note(text) => (self.observe)(Observed::Note(&text)),
                Effect::Ended(outcome) => self.outcome = Some(outcome),
                // There is nobody who could take over: processes end with this one.
                Effect::Numbered { .. } | Effect::Formed { .. } => {}
            }
        }
        let (state, reason) = self.run.state();
        if self.shown.as_ref().is_none_or(|shown| *shown != (state, reason.clone())) {
            (self.observe)(Observed::State { state, reason: &reason });
            self.shown = Some((state, reason));
        }
        Ok(())
    }
}

fn local_outcome(outcome: Outcome) -> LocalOutcome {
    match outcome {
        Outcome::Succeeded { results } => LocalOutcome::Finished { results },
        Outcome::Failed(failure) => LocalOutcome::Failed(failure),
        Outcome::Stopped { saved, then: AfterStop::Over, .. } => LocalOutcome::Stopped { saved },
        // Here is no queue that would start it again.
        Outcome::Stopped { saved, reason, then: AfterStop::Requeue } => {
            let hint = match saved {
                Some(step) => format!("a checkpoint of step {step} was saved: --resume continues"),
                None => "--resume continues from the newest checkpoint, if there is one".into(),
            };
            let kind = FailureKind::Other;
            LocalOutcome::Failed(Failure { kind, error: reason, hints: vec![hint], exit_code: 1 })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    /// Not a test by itself: the process of a rank in the tests below, which run it with a socket as standard input.
    #[test]
    #[ignore = "the process of a rank, started by other tests"]
    fn acts_as_a_rank() {
        muster_tests::fake_rank::main().expect("a rank that speaks with its agent");
    }

    fn request(dir: &Path, ranks: u32, steps: u64) -> LocalRun {
        let run_file = format!(
            "version = 1\noutput_dir = \"out\"\n[model]\npath = \"m\"\n[task]\ntype = \"single_label\"\n\
             [data]\ntrain = \"t.csv\"\n[train]\nmax_steps = {steps}\n"
        );
        let args = ["gang_run::tests::acts_as_a_rank", "--exact", "--ignored", "--nocapture"];
        LocalRun {
            run_file,
            run_file_path: dir.join("run.toml"),
            overrides: Vec::new(),
            origin: Origin::Fresh,
            ranks,
            spec: RanksSpec::default(),
            program: Some((std::env::current_exe().expect("a test"), args.map(OsString::from).into())),
            isa: "none".into(),
        }
    }

    fn finished(outcome: &LocalOutcome) -> &str {
        match outcome {
            LocalOutcome::Finished { results } => results,
            other => panic!("{other:?}"),
        }
    }

    /// Kills processes by the numbers that their notes tell, when a rank reaches a step.
    #[derive(Default)]
    struct Killer {
        pids: BTreeMap<String, i32>,
        training: Vec<Instant>,
        notes: Vec<String>,
    }

    impl Killer {
        fn see(&mut self, observed: &Observed<'_>) {
            match observed {
                Observed::Rank { member, event: rank_event::Event::Note(note), .. } => {
                    let pid = note.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("a number");
                    self.pids.insert((*member).into(), pid);
                }
                Observed::Rank { event: rank_event::Event::Running(_), .. } => {
                    self.training.push(Instant::now())
                }
                Observed::Note(note) => self.notes.push((*note).into()),
                _ => {}
            }
        }

        fn kill(&self, member: &str) {
            let status =
                std::process::Command::new("kill").args(["-9", &self.pids[member].to_string()]).status();
            assert!(status.expect("kill runs").success());
        }
    }

    #[test]
    fn two_ranks_train_to_the_end() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut steps = Vec::new();
        let mut observe = |observed: Observed<'_>| {
            if let Observed::Rank { rank: 0, event: rank_event::Event::Progress(progress), .. } = observed {
                steps.push(progress.step);
            }
        };
        let outcome = run_local(&request(dir.path(), 2, 30), &AtomicBool::new(false), &mut observe);
        assert_eq!(finished(&outcome.expect("a run")), "{\"steps\":30}");
        assert_eq!(steps, (1..=30).collect::<Vec<u64>>());
    }

    #[test]
    fn a_killed_rank_costs_less_than_a_second_and_no_step() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut killer = Killer::default();
        let (mut killed, mut next_step) = (None::<Instant>, None::<Duration>);
        let mut observe = |observed: Observed<'_>| {
            killer.see(&observed);
            if let Observed::Rank { event: rank_event::Event::Progress(progress), .. } = observed {
                if progress.step == 20 && killed.is_none() {
                    killer.kill("local/0#1");
                    killed = Some(Instant::now());
                } else if progress.generation == 2 && next_step.is_none() {
                    next_step = killed.map(|at| at.elapsed());
                }
            }
        };
        let outcome = run_local(&request(dir.path(), 2, 150), &AtomicBool::new(false), &mut observe);
        assert_eq!(finished(&outcome.expect("a run")), "{\"steps\":150}");
        let took = next_step.expect("a step after the crash");
        assert!(took < Duration::from_secs(1), "{took:?}");
        // The killed process came back and took part again.
        assert!(killer.pids.contains_key("local/0#3"), "{:?}", killer.notes);
        assert!(killer.notes.iter().any(|note| note.contains("to join")), "{:?}", killer.notes);
        let steps = std::fs::read_to_string(dir.path().join("out/steps")).expect("a log of steps");
        let mut steps: Vec<u64> = steps.lines().map(|line| line.parse().expect("a step")).collect();
        steps.dedup();
        assert_eq!(steps, (1..=150).collect::<Vec<u64>>(), "no step is missing or out of order");
    }

    #[test]
    fn a_stop_saves_and_resume_goes_on_and_fresh_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let stop = Arc::new(AtomicBool::new(false));
        let mut observe = |observed: Observed<'_>| {
            if let Observed::Rank { event: rank_event::Event::Progress(progress), .. } = observed
                && progress.step == 7
            {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let mut request = request(dir.path(), 2, 40);
        let outcome = run_local(&request, &stop, &mut observe).expect("a run");
        let LocalOutcome::Stopped { saved: Some(saved) } = outcome else { panic!("{outcome:?}") };
        assert!((7..20).contains(&saved), "{saved}");
        let outcome = run_local(&request, &AtomicBool::new(false), &mut |_| {}).expect("a run");
        let LocalOutcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
        assert_eq!((failure.kind, failure.exit_code), (FailureKind::Input, 2));
        request.origin = Origin::Resume;
        let mut first = None;
        let mut observe = |observed: Observed<'_>| {
            if let Observed::Rank { event: rank_event::Event::Running(running), .. } = observed {
                first.get_or_insert(running.step);
            }
        };
        let outcome = run_local(&request, &AtomicBool::new(false), &mut observe).expect("a run");
        assert_eq!(finished(&outcome), "{\"steps\":40}");
        assert_eq!(first, Some(saved));
    }
}
