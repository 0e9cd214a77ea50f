//! `muster train`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use muster_kernels::{DType, Element, bf16};
use muster_proto::RunSpec;
use muster_trainer::data::DataError;
use muster_trainer::peers::Peers;
use muster_trainer::topology::Binder;
use muster_trainer::train::{
    Conclusion, Event, Hooks, Prepared, Results, Start, TrainError, Writer, prepare,
};

use crate::args::{Global, Resume, TrainArgs};
use crate::commands::print;
use crate::exit::Exit;
use crate::progress::TrainDisplay;
use crate::survey::survey;
use crate::{host, place, plan, scores, stop, train_ranks};

/// Trains a model, or goes on with a run that was stopped.
///
/// # Errors
/// Anything that keeps the run from starting or going on; [`crate::report`] tells it.
pub fn run(args: &TrainArgs, global: &Global) -> anyhow::Result<Exit> {
    let stop = stop::on_signals()?;
    let spec = RunSpec::load_with(&args.run.run, &args.run.overrides)?;
    let outcome = match args.ranks {
        1 => train(args, &spec, &stop, global),
        ranks => train_ranks::train(args, &spec, ranks, &stop, global),
    };
    let stopped_early_on = |error: &anyhow::Error| {
        matches!(error.downcast_ref(), Some(TrainError::Data(DataError::Interrupted(_))))
    };
    match outcome {
        Ok(Some(results)) => {
            print(global, &results, || scores::results(&results))?;
            Ok(Exit::Success)
        }
        Ok(None) => {
            let run = args.run.run.display();
            tracing::warn!("stopped; everything is saved, go on with: muster train {run} --resume");
            Ok(Exit::Interrupted)
        }
        Err(error) if stop.load(Ordering::Relaxed) && stopped_early_on(&error) => {
            tracing::warn!("{error}; no step was done, nothing is lost");
            Ok(Exit::Interrupted)
        }
        Err(error) => Err(error),
    }
}

/// Runs to the end; no results if a signal stopped it.
fn train(
    args: &TrainArgs,
    spec: &RunSpec,
    stop: &AtomicBool,
    global: &Global,
) -> anyhow::Result<Option<Results>> {
    let host = host::detect();
    let run = survey(spec, &host, stop, global)?;
    let plan = plan::plan(spec, &run.dims, &run.stats, &host)?;
    plan.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    for decision in &plan.decisions {
        tracing::debug!("{}: {} ({})", decision.name, decision.value, decision.reason);
    }
    plan.admit()?;
    let start = match args.resume {
        Resume::Never => Start::Fresh,
        Resume::Always => Start::Resume,
        Resume::Auto => Start::ResumeOrFresh,
    };
    let prepared = prepare(spec, run, &plan, (start, Writer::ThisProcess))?;
    let binder = place::binder(spec, &host, &plan, None)?;
    tracing::info!("{} on {} threads in {}", spec.name, plan.cpus.threads, plan.precision());
    match plan.dtype {
        DType::F32 => drive::<f32>(spec, (prepared, &binder), stop, global),
        DType::Bf16 => drive::<bf16>(spec, (prepared, &binder), stop, global),
    }
}

fn drive<E: Element>(
    spec: &RunSpec,
    (prepared, binder): (Prepared, &Binder),
    stop: &AtomicBool,
    global: &Global,
) -> anyhow::Result<Option<Results>> {
    let loaded = prepared.load::<E>()?;
    for damaged in &loaded.skipped {
        tracing::warn!("a damaged checkpoint was passed over: {damaged}");
    }
    if let Some(report) = &loaded.report {
        tracing::info!("{report}");
    }
    let begun = Instant::now();
    let clock = || begun.elapsed();
    let mut display = TrainDisplay::new(global);
    let results = {
        let mut observe = |event: &Event| display.show(event);
        let wish = stop::wish(stop);
        let hooks = Hooks { wish: &wish, clock: &clock, observe: &mut observe };
        let mut trainer = prepared.trainer(loaded, hooks);
        trainer.follow(binder);
        trainer.join(Peers::alone())?;
        trainer.run().and_then(|ending| trainer.finish(&spec.name, ending)).map(Conclusion::results)
    };
    display.clear();
    Ok(results?)
}
