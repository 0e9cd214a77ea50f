//! `muster train --ranks`: several rank processes on this machine, shown as one run.

use std::sync::atomic::AtomicBool;

use anyhow::Context;
use muster_coordinator::gang::Failure;
use muster_kernels::isa;
use muster_proto::RunSpec;
use muster_proto::run_spec::RanksSpec;
use muster_proto::v1::RunState;
use muster_proto::v1::rank_event::Event as Told;
use muster_trainer::train::{Event, Results};

use crate::args::{Global, TrainArgs};
use crate::exit::Exit;
use crate::gang_run::{LocalOutcome, LocalRun, Observed, run_local};
use crate::host;
use crate::progress::TrainDisplay;
use crate::survey::survey;

/// A run that its ranks could not bring to an end; one of them said why.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.error)]
pub struct RunFailed(Failure);

impl RunFailed {
    /// What the rank advises.
    pub fn hint(&self) -> Option<String> {
        (!self.0.hints.is_empty()).then(|| self.0.hints.join("\nhint: "))
    }

    /// The exit code that the rank had.
    pub fn exit(&self) -> Exit {
        Exit::from_code(self.0.exit_code)
    }
}

/// Runs to the end on `ranks` processes; no results if a signal stopped it.
///
/// # Errors
/// Anything that keeps the run from starting or going on.
pub fn train(
    args: &TrainArgs,
    spec: &RunSpec,
    ranks: u32,
    stop: &AtomicBool,
    global: &Global,
) -> anyhow::Result<Option<Results>> {
    let host = host::detect();
    // Finds what is wrong with model and data while there is one process to say it, and fills the token cache once.
    drop(survey(spec, &host, stop, global)?);
    let path = &args.run.run;
    let request = LocalRun {
        run_file: std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?,
        run_file_path: std::path::absolute(path).with_context(|| format!("can't use {}", path.display()))?,
        overrides: args.run.overrides.clone(),
        origin: args.resume.origin(),
        ranks,
        spec: RanksSpec { min: spec.ranks.min.map(|min| min.min(ranks)), ..spec.ranks.clone() },
        program: None,
        isa: isa::detect().chosen.name().into(),
    };
    let mut display = TrainDisplay::new(global);
    tracing::info!("{} on {ranks} ranks", spec.name);
    let outcome = run_local(&request, stop, &mut |observed| show(&mut display, &observed));
    display.clear();
    match outcome? {
        LocalOutcome::Finished { results } => {
            Ok(Some(serde_json::from_str(&results).context("the results of a rank can't be read")?))
        }
        LocalOutcome::Stopped { saved } => {
            tracing::debug!("stopped; checkpoint of step {saved:?}");
            Ok(None)
        }
        LocalOutcome::Failed(failure) => Err(RunFailed(failure).into()),
    }
}

fn show(display: &mut TrainDisplay, observed: &Observed<'_>) {
    match observed {
        Observed::Rank { event: Told::Note(text), .. } => match serde_json::from_str::<Event>(text) {
            Ok(event) => display.show(&event),
            Err(error) => tracing::debug!("a note that can't be read: {error}: {text}"),
        },
        Observed::Rank { rank, member, event: Told::Broken(broken) } => {
            let text = format!("rank {rank} ({member}) after step {}: {}", broken.step(), broken.error);
            display.show(&Event::Warning(text));
        }
        Observed::State { state: RunState::Waiting, reason } => {
            display.show(&Event::Warning((*reason).to_owned()));
        }
        Observed::State { state, reason } => display.aside(|| tracing::debug!("{state:?}: {reason}")),
        Observed::Note(text) => display.aside(|| tracing::info!("{text}")),
        Observed::Log { member, lines } => {
            display.aside(|| lines.iter().for_each(|line| tracing::info!("{member}: {line}")));
        }
        Observed::Rank { .. } => {}
    }
}
