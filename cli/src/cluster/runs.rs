//! `muster runs`, `muster status` and `muster cancel`.

use muster_proto::v1::{CancelRunRequest, GetRunRequest, ListRunsRequest, Run};

use super::args::{OneRunArgs, RunsArgs};
use super::client::{Client, Line};
use super::{sweep, words};
use crate::args::Global;
use crate::commands::{print, table};
use crate::exit::Exit;
use crate::scores::percent;

/// Lists runs, the newest first.
///
/// # Errors
/// A coordinator that can't be reached.
pub fn list(args: &RunsArgs, global: &Global) -> anyhow::Result<Exit> {
    let sweep = args.sweep.clone().unwrap_or_default();
    // A sweep is judged as a whole.
    let limit = if sweep.is_empty() { args.limit } else { 0 };
    let request = ListRunsRequest { all: args.all, limit, sweep };
    let line = Line::of_client(&args.client)?;
    let mut runs = super::client_runtime()?.block_on(async {
        let client = Client::connect(&line).await?;
        let mut rpc = client.rpc.clone();
        client.answer(rpc.list_runs(request)).await
    })?;
    let is_sweep = args.sweep.is_some();
    let has_best = is_sweep && sweep::rank(&mut runs.runs);
    let json: Vec<_> = runs.runs.iter().map(words::run_json).collect();
    print(global, &json, || match is_sweep {
        true => sweep::render(&runs.runs, has_best),
        false => render_list(&runs.runs),
    })?;
    Ok(Exit::Success)
}

fn render_list(runs: &[Run]) -> String {
    if runs.is_empty() {
        return "no runs\n".into();
    }
    let row = |run: &Run| {
        vec![
            run.id.clone(),
            run.name.clone(),
            words::state(run),
            words::progress(run),
            words::ago(run.submitted_ms),
            run.submitter.clone(),
            run.reason.clone(),
        ]
    };
    let rows: Vec<_> = runs.iter().map(row).collect();
    table(&["id", "name", "state", "progress", "submitted", "by", "why"], &rows)
}

/// Shows one run: what it does, or what it waits for.
///
/// # Errors
/// A coordinator that can't be reached, or doesn't know the run.
pub fn status(args: &OneRunArgs, global: &Global) -> anyhow::Result<Exit> {
    let request = GetRunRequest { run: args.run.clone() };
    let line = Line::of_client(&args.client)?;
    let answer = super::client_runtime()?.block_on(async {
        let client = Client::connect(&line).await?;
        let mut rpc = client.rpc.clone();
        client.answer(rpc.get_run(request)).await
    })?;
    let run = answer.run.unwrap_or_default();
    print(global, &words::run_json(&run), || render(&run))?;
    Ok(Exit::Success)
}

/// Asks a run to save and end.
///
/// # Errors
/// A coordinator that can't be reached or doesn't know the run, or a run that is over.
pub fn cancel(args: &OneRunArgs, global: &Global) -> anyhow::Result<Exit> {
    let request = CancelRunRequest { run: args.run.clone() };
    let line = Line::of_client(&args.client)?;
    let answer = super::client_runtime()?.block_on(async {
        let client = Client::connect(&line).await?;
        let mut rpc = client.rpc.clone();
        client.answer(rpc.cancel_run(request)).await
    })?;
    let run = answer.run.unwrap_or_default();
    print(global, &words::run_json(&run), || format!("{} ({}): {}\n", run.name, run.id, words::state(&run)))?;
    Ok(Exit::Success)
}

fn render(run: &Run) -> String {
    let mut text = format!("{} ({}) is {}\n  {}\n", run.name, run.id, words::state(run), run.reason);
    if !run.waits_for.is_empty() {
        text.push_str(&format!("  {}\n", run.waits_for.join("; ")));
    }
    if run.progress.is_some() {
        text.push_str(&format!("  {}", words::progress(run)));
        if let Some(loss) = run.progress.map(|progress| progress.loss).filter(|loss| loss.is_finite()) {
            text.push_str(&format!(", loss {loss:.4}"));
        }
        text.push('\n');
    }
    if run.recoveries > 0 {
        let ms = run.last_recovery_ms;
        text.push_str(&format!("  recovered {} times, the last time in {ms} ms\n", run.recoveries));
    }
    let by = if run.submitter.is_empty() { String::new() } else { format!(" by {}", run.submitter) };
    text.push_str(&format!("  submitted {}{by}\n", words::ago(run.submitted_ms)));
    if !run.ranks.is_empty() {
        text.push_str(&format!("\ngeneration {}\n{}", run.generation, ranks(run)));
    }
    text
}

fn ranks(run: &Run) -> String {
    let ms = |us: Option<u64>| us.map_or(String::new(), |us| format!("{:.1}", us as f64 / 1_000.0));
    let row = |rank: &muster_proto::v1::RunRank| {
        let progress = rank.progress.as_ref();
        vec![
            rank.rank.to_string(),
            rank.member_id.clone(),
            rank.state.clone(),
            progress.map_or(String::new(), |p| p.step.to_string()),
            ms(progress.map(|p| p.step_us)),
            ms(progress.map(|p| p.compute_us)),
            ms(progress.map(|p| p.exposed_us)),
            ms(progress.map(|p| p.data_us)),
            progress.and_then(|p| p.place).map_or(String::new(), |place| place.cores.to_string()),
            percent(progress.and_then(words::numa_local)),
            percent(progress.and_then(words::throttled)),
        ]
    };
    let rows: Vec<_> = run.ranks.iter().map(row).collect();
    let head = ["rank", "process", "state", "step", "step ms", "compute", "exposed", "data"];
    table(&[&head[..], &["cores", "NUMA-local", "throttled"]].concat(), &rows)
}
