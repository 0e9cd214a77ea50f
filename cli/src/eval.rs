//! `muster eval`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use muster_proto::run_spec::{OnLong, TaskType};
use muster_trainer::data::{
    Budget, BuildOptions, DataSet, Known, Labels, Role, RowSet, SourceOptions, Task, TokenStore,
};
use muster_trainer::topology::{HostFacts, cpu_budget};
use muster_trainer::train::{EvalHooks, EvalPlan, Evaluators, Rows, TrainError, Trained, evaluate};

use crate::args::{Compute, EvalArgs, Global};
use crate::commands::print;
use crate::exit::Exit;
use crate::progress::Counter;
use crate::{scores, stop};

/// Tokens computed at once.
pub const BATCH_TOKENS: usize = 4096;

/// Measures a trained model on labelled data; labels are matched by name, whatever their order.
///
/// # Errors
/// An unusable model or data, or a label that the model does not have.
pub fn run(args: &EvalArgs, global: &Global) -> anyhow::Result<Exit> {
    let stop = stop::on_signals()?;
    let (trained, threads) = open(&args.model, &args.compute)?;
    let store = store(args, &trained, threads, &stop)?;
    let mut engine = trained.engine::<f32>(&args.model, threads)?;
    let rows = Rows { store: Arc::new(store), set: RowSet::All };
    let plan = EvalPlan {
        names: &trained.names,
        threshold: trained.threshold,
        budget: Budget::tokens(BATCH_TOKENS),
    };
    let counter = Counter::new(global);
    let wish = stop::wish(&stop);
    let mut progress = |done, all| counter.show("rows", done, all);
    let hooks = EvalHooks { wish: &wish, progress: &mut progress };
    let report = evaluate(&mut engine, &rows, &plan, Evaluators::Alone, hooks)?;
    counter.clear();
    let Some(report) = report else { return Ok(Exit::Interrupted) };
    print(global, &report, || scores::report("value", &report))?;
    Ok(Exit::Success)
}

/// Opens a trained model and decides on the threads.
///
/// # Errors
/// A folder that is no trained model, or rows longer than it can take.
pub fn open(model: &Path, compute: &Compute) -> anyhow::Result<(Trained, usize)> {
    let mut trained =
        Trained::open(model).with_context(|| format!("can't open the model {}", model.display()))?;
    if let Some(max_length) = compute.max_length {
        trained.set_max_length(max_length as usize)?;
    }
    let threads = cpu_budget(&HostFacts::detect(), compute.threads.map(usize::from)).threads;
    Ok((trained, threads))
}

fn store(
    args: &EvalArgs,
    trained: &Trained,
    threads: usize,
    stop: &AtomicBool,
) -> Result<TokenStore, TrainError> {
    let task = Task::of(trained.task, None);
    let mut options = SourceOptions::new(args.columns.text_column.clone(), args.label.clone(), task);
    options.text_pair.clone_from(&args.columns.text_pair_column);
    let labels = Labels::of_model(&trained.names);
    let known = match trained.task {
        TaskType::Regression => Known::Width(trained.names.len()),
        _ => Known::Labels(&labels),
    };
    let encode = |text: &str, pair: Option<&str>| {
        trained.tokenizer.encode(text, pair, &trained.rule).map_err(|error| error.to_string())
    };
    let build = BuildOptions {
        cache_dir: None,
        threads,
        on_long: OnLong::Truncate,
        tokenizer_fingerprint: trained.tokenizer.fingerprint(),
        rule_fingerprint: 0,
        stop,
        progress: &|_| {},
    };
    let set = DataSet { files: &args.data, options: &options, role: Role::Evaluate, known };
    Ok(TokenStore::open_or_build(&set, &encode, &build)?)
}
