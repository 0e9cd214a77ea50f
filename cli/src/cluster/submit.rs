//! `muster submit`.

use anyhow::Context;
use muster_proto::RunSpec;
use muster_proto::v1::{Run, SubmitRequest, WatchRunRequest};

use super::args::SubmitArgs;
use super::client::{Client, ClientError, Line};
use super::{sweep, words};
use crate::args::Global;
use crate::commands::print;
use crate::exit::Exit;

/// Pause before a coordinator that went away is asked again.
const RETRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(500);
/// How often in a row it is asked again.
const RETRIES: u32 = 600;

/// Queues a run; waits for its end if that is wanted.
///
/// # Errors
/// A bad run file, or a coordinator that can't be reached or refuses the run.
pub fn run(args: &SubmitArgs, global: &Global) -> anyhow::Result<Exit> {
    // Mistakes are told here with file and line, before anybody else is asked.
    RunSpec::load_with(&args.run.run, &args.run.overrides)?;
    let path = std::path::absolute(&args.run.run).context("the path of the run file")?;
    let text = std::fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    let request = SubmitRequest {
        run_file: text,
        run_file_path: path.to_string_lossy().into_owned(),
        overrides: args.run.overrides.clone(),
        priority: args.priority,
        request_id: muster_coordinator::secret::random_name::<16>(),
        resume: args.resume,
        tenant: args.tenant.clone().unwrap_or_default(),
        sweep: String::new(),
    };
    let line = Line::of_client(&args.client)?;
    let runtime = super::client_runtime()?;
    if let Some(sets) = sweep::sets(&args.sweep, args.sweep_file.as_deref())? {
        return submit_sweep(args, global, &runtime, &request, (&sets, &line));
    }
    let run = runtime.block_on(submit(&line, request))?;
    if !args.wait {
        print(global, &words::run_json(&run), || format!("{} ({}): {}\n", run.name, run.id, run.reason))?;
        return Ok(Exit::Success);
    }
    let run = runtime.block_on(wait(&line, run))?;
    print(global, &words::run_json(&run), || format!("{} ({}): {}\n", run.name, run.id, run.reason))?;
    Ok(words::exit(&run))
}

/// Queues a run for each set of values; waits for all of them if that is wanted.
fn submit_sweep(
    args: &SubmitArgs,
    global: &Global,
    runtime: &tokio::runtime::Runtime,
    base: &SubmitRequest,
    (sets, line): (&[Vec<String>], &Line),
) -> anyhow::Result<Exit> {
    let sweep = muster_coordinator::secret::random_name::<4>();
    // All of them are checked before the first one is queued.
    let all: Vec<Vec<String>> = sets
        .iter()
        .enumerate()
        .map(|(index, set)| sweep::overrides(&args.run.run, &args.run.overrides, set, &sweep, index))
        .collect::<anyhow::Result<_>>()?;
    let mut runs = Vec::with_capacity(all.len());
    for (index, overrides) in all.into_iter().enumerate() {
        let request_id = format!("{}-{index}", base.request_id);
        let request = SubmitRequest { overrides, request_id, sweep: sweep.clone(), ..base.clone() };
        let queued = runtime.block_on(submit(line, request));
        runs.push(
            queued.with_context(|| format!("{index} of {} runs of sweep {sweep} are queued", sets.len()))?,
        );
    }
    let mut exit = Exit::Success;
    if args.wait {
        for run in &mut runs {
            *run = runtime.block_on(wait(line, run.clone()))?;
            exit = if exit == Exit::Success { words::exit(run) } else { exit };
        }
    }
    let json: Vec<_> = runs.iter().map(words::run_json).collect();
    print(global, &json, || {
        let text = format!(
            "sweep {sweep}: {} runs; `muster runs --sweep {sweep}` shows their results\n",
            runs.len()
        );
        if !args.wait {
            return text;
        }
        let mut runs = runs.clone();
        let has_best = sweep::rank(&mut runs);
        text + &sweep::render(&runs, has_best)
    })?;
    Ok(exit)
}

async fn submit(line: &Line, request: SubmitRequest) -> Result<Run, ClientError> {
    let client = Client::connect(line).await?;
    let mut rpc = client.rpc.clone();
    // The request has an id: asking again does not queue it twice.
    let first = client.answer(rpc.submit(request.clone())).await;
    let answer = match first {
        Err(error) if error.may_pass() => {
            tokio::time::sleep(RETRY_PAUSE).await;
            let client = Client::connect(line).await?;
            let mut rpc = client.rpc.clone();
            client.answer(rpc.submit(request)).await?
        }
        other => other?,
    };
    Ok(answer.run.unwrap_or_default())
}

/// Watches a run to its end, across restarts of the coordinator.
async fn wait(line: &Line, mut run: Run) -> Result<Run, ClientError> {
    let mut failures = 0;
    while !words::is_over(&run) {
        match watch(line, &mut run).await {
            Ok(()) => failures = 0,
            Err(error) if error.may_pass() && failures < RETRIES => {
                failures += 1;
                if failures == 1 {
                    tracing::warn!("lost the coordinator ({error}); the run goes on, trying again");
                }
            }
            Err(error) => return Err(error),
        }
        if !words::is_over(&run) {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
    Ok(run)
}

async fn watch(line: &Line, run: &mut Run) -> Result<(), ClientError> {
    let client = Client::connect(line).await?;
    let mut rpc = client.rpc.clone();
    let mut stream = client.answer(rpc.watch_run(WatchRunRequest { run: run.id.clone() })).await?;
    // No deadline: a run may train for days, and keep-alive finds a dead connection.
    while let Some(message) = stream.message().await? {
        let Some(now) = message.run else { continue };
        if (now.state, &now.reason) != (run.state, &run.reason) {
            tracing::info!(
                "{} is {}: {} {}",
                now.name,
                words::state(&now),
                now.reason,
                words::progress(&now)
            );
        }
        *run = now;
    }
    Ok(())
}
