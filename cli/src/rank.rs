//! `muster rank`: one rank of a run, started by an agent, which it talks to over its standard input.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use muster_allreduce::{LinkTls, Timeouts};
use muster_kernels::{DType, Element, bf16};
use muster_proto::v1::rank_event::Event as Told;
use muster_proto::v1::{Failed, FailureKind, Origin, Start};
use muster_proto::{RunSpec, with_causes};
use muster_tls::{RankTls, TlsFiles};
use muster_trainer::rank::{Control, Outcome, Reporter, Seat};
use muster_trainer::topology::{MemoryPolicy, bind_memory, bind_process};
use muster_trainer::train::{Event, Hooks, Prepared, Start as From, Writer, prepare};

use crate::args::{Global, RankArgs};
use crate::exit::Exit;
use crate::report::Story;
use crate::survey::survey;
use crate::{host, place, plan, stop};

/// How long a rank may be unreachable before the others give it up.
const LEASE: Duration = Duration::from_secs(3);

/// Takes part in a run until it ends.
///
/// # Errors
/// Whatever keeps this rank from going on; the agent is told too.
pub fn run(args: &RankArgs, global: &Global) -> anyhow::Result<Exit> {
    // Ctrl-C reaches every process of the terminal; the agent decides what it means.
    stop::ignore_signals()?;
    let line = std::io::stdin().as_fd().try_clone_to_owned().context("can't use standard input")?;
    let gone = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&gone);
    // Nobody is left to say how this process ends, and peers notice it by themselves.
    let lost = move || {
        if !flag.load(Ordering::SeqCst) {
            std::process::exit(i32::from(Exit::Failure.code()));
        }
    };
    let (control, start) = Control::open(UnixStream::from(line), lost)
        .context("muster rank is started by an agent: use muster train or muster trainer")?;
    let outcome = train(&control, &start, args, global);
    gone.store(true, Ordering::SeqCst);
    match outcome {
        Ok(Outcome::Finished) => Ok(Exit::Success),
        Ok(Outcome::Stopped) => Ok(Exit::Interrupted),
        // The agent passes it on; a second report in the log would only repeat it.
        Err(error) => {
            let story = Story::of(&error);
            control.tell(Told::Failed(failed(&story)));
            Ok(story.exit)
        }
    }
}

fn failed(story: &Story) -> Failed {
    let kind = match story.exit {
        Exit::Usage | Exit::Data => FailureKind::Input,
        Exit::Resources => FailureKind::Resources,
        Exit::Diverged => FailureKind::Diverged,
        _ => FailureKind::Other,
    };
    let error = std::iter::once(&story.message).chain(&story.causes).map(String::as_str);
    Failed {
        kind: kind.into(),
        error: error.collect::<Vec<_>>().join(": "),
        hints: story.hints.clone(),
        exit_code: story.exit.code().into(),
    }
}

fn train(control: &Control, start: &Start, args: &RankArgs, global: &Global) -> anyhow::Result<Outcome> {
    let files = TlsFiles::from_options(args.tls_ca.clone(), args.tls_cert.clone(), args.tls_key.clone())?;
    // Before anything is allocated: memory comes from where it is touched first.
    let refusal = bind_process(&start.cpus);
    let spec = RunSpec::parse_with(&start.run_file, Path::new(&start.run_file_path), &start.overrides)?;
    let mut host = host::detect();
    if let Some(refusal) = refusal {
        tracing::warn!("{refusal}; the scheduler places this rank");
    }
    if let MemoryPolicy::Refused(error) = bind_memory(&host, spec.ranks.membind)?
        && start.local_rank == 0
    {
        tracing::warn!(
            "memory can't be bound to its NUMA node ({error}); bound threads touch it first instead"
        );
    }
    host.memory.share(start.local_ranks);
    let never = AtomicBool::new(false);
    let run = survey(&spec, &host, &never, global)?;
    let plan = plan::plan(&spec, &run.dims, &run.stats, &host)?;
    plan.admit()?;
    let from = match start.origin() {
        Origin::Fresh | Origin::Unspecified => From::Fresh,
        Origin::Resume => From::Resume,
        Origin::ResumeOrFresh => From::ResumeOrFresh,
        Origin::Peers => From::Peers,
    };
    let threads = plan.cpus.threads;
    let prepared = prepare(&spec, run, &plan, (from, Writer::FirstRank))?;
    let binder = place::binder(&spec, &host, &plan, Some(start))?;
    tracing::info!("{} with {threads} threads in {}", start.member_id, plan.precision());
    if files.is_some() {
        tracing::info!("links to other nodes are encrypted");
    }
    let reporter = Reporter::new(control, &binder);
    let tls = || files.as_ref().map(link_tls).transpose();
    let seat = Seat {
        control,
        start,
        name: &spec.name,
        threads: threads as u32,
        timeouts: timeouts(&spec),
        tls: &tls,
        reporter: &reporter,
        binder: &binder,
    };
    match plan.dtype {
        DType::F32 => serve::<f32>(&seat, prepared),
        DType::Bf16 => serve::<bf16>(&seat, prepared),
    }
}

/// The agent's certificates as they are now.
fn link_tls(files: &TlsFiles) -> Result<LinkTls, String> {
    let tls = RankTls::load(files).map_err(|error| with_causes(&error))?;
    Ok(LinkTls { client: tls.client, server: tls.server })
}

/// Equal on all ranks, as they have one run file.
fn timeouts(spec: &RunSpec) -> Timeouts {
    let patience = Duration::from_secs(spec.ranks.patience_s.into());
    Timeouts::new(LEASE.min(patience), patience).expect("the run file's bounds fit")
}

fn serve<E: Element>(seat: &Seat, prepared: Prepared) -> anyhow::Result<Outcome> {
    let loaded = prepared.load::<E>()?;
    for damaged in &loaded.skipped {
        tracing::warn!("a damaged checkpoint was passed over: {damaged}");
    }
    if let Some(report) = loaded.report.as_ref().filter(|_| seat.start.local_rank == 0) {
        tracing::info!("{report}");
    }
    let begun = Instant::now();
    let clock = || begun.elapsed();
    let wish = || seat.control.wish();
    let mut observe = |event: &Event| seat.reporter.observe(event);
    let hooks = Hooks { wish: &wish, clock: &clock, observe: &mut observe };
    let mut trainer = prepared.trainer(loaded, hooks);
    trainer.follow(seat.binder);
    Ok(seat.serve(&mut trainer)?)
}
