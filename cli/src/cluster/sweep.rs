//! Sweeps: one run file, many sets of values, one run for each.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use muster_proto::RunSpec;
use muster_proto::limits::MAX_OPEN_RUNS;
use muster_proto::run_spec::TaskType;
use muster_proto::v1::Run;
use muster_trainer::metrics::{Goal, Metric, Report};
use muster_trainer::train::Results;

use super::words;
use crate::commands::table;

/// Largest file of values, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The sets of overrides that `--sweep` or `--sweep-file` ask for; none: no sweep.
///
/// # Errors
/// Values that can't be read, or too many of them.
pub fn sets(sweeps: &[String], file: Option<&Path>) -> anyhow::Result<Option<Vec<Vec<String>>>> {
    let sets = match file {
        Some(file) => of_file(file)?,
        None if sweeps.is_empty() => return Ok(None),
        None => grid(sweeps)?,
    };
    let count = sets.len();
    ensure!(count > 0, "the sweep has no values");
    ensure!(
        count <= MAX_OPEN_RUNS,
        "the sweep has {count} runs; at most {MAX_OPEN_RUNS} may be queued at once"
    );
    for (index, set) in sets.iter().enumerate() {
        for own in ["name", "output_dir"] {
            let sets_it =
                set.iter().any(|value| value.split_once('=').is_some_and(|(key, _)| key.trim() == own));
            ensure!(!sets_it, "a sweep can't set {own}: each of its runs gets one of its own");
        }
        ensure!(!sets[..index].contains(set), "the sweep has {} twice", set.join(" "));
    }
    Ok(Some(sets))
}

/// Every combination; the last key changes fastest.
fn grid(sweeps: &[String]) -> anyhow::Result<Vec<Vec<String>>> {
    let mut sets: Vec<Vec<String>> = vec![Vec::new()];
    for sweep in sweeps {
        let (key, values) = sweep
            .split_once('=')
            .filter(|(key, values)| !key.trim().is_empty() && !values.trim().is_empty())
            .with_context(|| format!("--sweep {sweep:?} is not KEY=VALUE,VALUE..."))?;
        let values = split(values);
        if values.iter().any(|value| value.is_empty()) {
            bail!("--sweep {sweep:?} has an empty value");
        }
        ensure!(
            sets.len().saturating_mul(values.len()) <= MAX_OPEN_RUNS,
            "the sweep has more than {MAX_OPEN_RUNS} combinations"
        );
        let add = |set: &Vec<String>| {
            let with = |value: &String| [set.as_slice(), &[format!("{}={value}", key_of(key))]].concat();
            values.iter().map(with).collect::<Vec<_>>()
        };
        sets = sets.iter().flat_map(add).collect();
    }
    Ok(sets)
}

/// Values between commas, except those inside quotes or brackets.
fn split(text: &str) -> Vec<String> {
    let (mut values, mut depth, mut quote) = (vec![String::new()], 0_usize, None);
    for c in text.chars() {
        match (c, quote) {
            (_, Some(end)) if c == end => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth = depth.saturating_sub(1),
            (',', None) if depth == 0 => {
                values.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(last) = values.last_mut() {
            last.push(c);
        }
    }
    values.iter().map(|value| value.trim().to_owned()).collect()
}

/// Keys of `[train]` may be given without their table: they are what is swept.
fn key_of(key: &str) -> String {
    let key = key.trim();
    let known = |name: &str| muster_proto::run_spec::KEYS.iter().any(|known| known.name == name);
    let full = format!("train.{key}");
    if !key.contains('.') && !known(key) && known(&full) { full } else { key.to_owned() }
}

fn of_file(file: &Path) -> anyhow::Result<Vec<Vec<String>>> {
    let size = std::fs::metadata(file).with_context(|| format!("can't read {}", file.display()))?.len();
    ensure!(size <= MAX_FILE_BYTES, "{} has {size} bytes; at most {MAX_FILE_BYTES} are read", file.display());
    let text = std::fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
    let mut sets = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = || format!("{}:{}", file.display(), number + 1);
        let pair = |pair: &str| match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => {
                Ok(format!("{}={value}", key_of(key)))
            }
            _ => bail!("{}: {pair:?} is not KEY=VALUE", place()),
        };
        sets.push(line.split_whitespace().map(pair).collect::<anyhow::Result<_>>()?);
    }
    Ok(sets)
}

/// The overrides of one run: what the user gave, the values of its set, and a name and directory of its own.
///
/// # Errors
/// A set that makes the run file wrong.
pub fn overrides(
    file: &Path,
    common: &[String],
    set: &[String],
    sweep: &str,
    index: usize,
) -> anyhow::Result<Vec<String>> {
    let base = RunSpec::load_with(file, common)?;
    let number = format!("{:03}", index + 1);
    let output = base.output_dir.join(format!("sweep-{sweep}")).join(&number);
    // Nodes know nothing of the directory that this command runs in.
    let output = std::path::absolute(output).context("the output directory")?;
    let quoted = |text: &str| serde_json::to_string(text).context("a name that is no text");
    let own = [
        format!("name={}", quoted(&format!("{}-{sweep}-{number}", base.name))?),
        format!("output_dir={}", quoted(&output.to_string_lossy())?),
    ];
    let all = [common, set, &own].concat();
    RunSpec::load_with(file, &all)
        .with_context(|| format!("run {number} of the sweep: {}", set.join(" ")))?;
    Ok(all)
}

/// What distinguishes the runs of a sweep: overrides that not all of them have.
fn values(runs: &[Run]) -> Vec<Vec<String>> {
    let in_all = |value: &String| runs.iter().all(|run| run.overrides.contains(value));
    let own = |value: &String| !value.starts_with("name=") && !value.starts_with("output_dir=");
    let of = |run: &Run| {
        let differs = |value: &&String| own(value) && (runs.len() == 1 || !in_all(value));
        run.overrides.iter().filter(differs).cloned().collect()
    };
    runs.iter().map(of).collect()
}

/// How good the chosen model of a run is, by the run's own metric, and which way is better.
fn score(run: &Run) -> Option<(f64, Goal)> {
    let results: Results = serde_json::from_str(&run.results).ok()?;
    let report = results.eval.or(results.test)?;
    let labels: Vec<String> = report.labels().iter().map(|label| label.label.clone()).collect();
    let task = match report {
        Report::SingleLabel(_) => TaskType::SingleLabel,
        Report::MultiLabel(_) => TaskType::MultiLabel,
        Report::Regression(_) => TaskType::Regression,
    };
    let metric = Metric::parse(&results.metric, task, &labels).ok()?;
    Some((report.value(metric).filter(|value| value.is_finite())?, metric.goal()))
}

/// Sorts the runs of a sweep by what they reached: the best first, those without a result last. Says whether there is a
/// best one.
pub fn rank(runs: &mut [Run]) -> bool {
    // The results of many runs are read once each.
    runs.sort_by_cached_key(|run| {
        let better_first =
            score(run).map(|(value, goal)| ordered(if goal == Goal::Highest { -value } else { value }));
        (better_first.is_none(), better_first, run.submitted_ms, run.name.clone())
    });
    // Runs that were judged by different metrics have no best one.
    let comparable = runs.iter().all(|run| run.metric == runs[0].metric);
    comparable && runs.first().is_some_and(|run| score(run).is_some())
}

/// A number whose order as an integer is its own.
fn ordered(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

/// The table of a sweep's results.
pub fn render(runs: &[Run], has_best: bool) -> String {
    let Some(first) = runs.first() else { return "no runs\n".into() };
    let values = values(runs);
    let row = |(index, (run, values)): (usize, (&Run, &Vec<String>))| {
        vec![
            if has_best && index == 0 { "best".into() } else { String::new() },
            run.id.clone(),
            values.join(" "),
            words::state(run),
            words::progress(run),
            score(run).map_or(String::new(), |(score, _)| format!("{score:.4}")),
            if words::is_over(run) && score(run).is_some() { String::new() } else { run.reason.clone() },
        ]
    };
    let rows: Vec<_> = runs.iter().zip(&values).enumerate().map(row).collect();
    let metric = if first.metric.is_empty() { "result" } else { first.metric.as_str() };
    table(&["", "id", "values", "state", "progress", metric, "why"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sweeps: &[&str]) -> anyhow::Result<Vec<Vec<String>>> {
        let sweeps: Vec<String> = sweeps.iter().map(|text| (*text).to_owned()).collect();
        Ok(sets(&sweeps, None)?.unwrap_or_default())
    }

    #[test]
    fn grids_have_every_combination_and_mistakes_are_named() {
        let sets = of(&["learning_rate=1e-5,2e-5", "seed=1,2"]).expect("a grid");
        assert_eq!(sets[1], ["train.learning_rate=1e-5", "seed=2"]);
        assert_eq!((sets.len(), sets[2][0].as_str()), (4, "train.learning_rate=2e-5"));
        let lists = of(&["data.train=[\"a.csv\", \"b.csv\"],\"c.csv\""]).expect("lists are values");
        assert_eq!(lists[0], ["data.train=[\"a.csv\", \"b.csv\"]"]);
        for (wrong, text) in [
            ("seed", "is not KEY=VALUE"),
            ("seed=1,,2", "an empty value"),
            ("seed=1,1", "twice"),
            ("name=a,b", "can't set name"),
        ] {
            let error = of(&[wrong]).expect_err(wrong).to_string();
            assert!(error.contains(text), "{error}");
        }
        let many = (0..40).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let error = of(&[&format!("seed={many}"), &format!("epochs={many}")]).expect_err("1600 runs");
        assert!(error.to_string().contains("more than 1000"), "{error}");
    }

    #[test]
    fn the_best_run_is_the_one_with_the_best_metric() {
        let results = |metric: &str, value: f64| {
            let report = match metric {
                "mse" => {
                    serde_json::json!({"task": "regression", "rows": 1, "loss": null, "mse": value, "rmse": null,
                    "mae": null, "pearson": null, "spearman": null, "unpredicted": 0, "constant": false, "targets": []})
                }
                _ => serde_json::json!({"task": "single_label", "rows": 1, "loss": null, "accuracy": value,
                    "f1_macro": null, "f1_micro": null, "f1_weighted": null, "mcc": null, "unpredicted": 0,
                    "only_prediction": null, "labels": [], "confusion": []}),
            };
            let results = serde_json::json!({"name": "x", "steps": 1, "total_steps": 1, "epochs": 1.0, "rows": 1,
                "tokens": 1, "skipped_steps": 0, "stopped_early": false, "metric": metric, "model_step": 1,
                "weights_digest": "", "eval": report, "test": null, "model_dir": "", "elapsed_s": 1.0});
            results.to_string()
        };
        let run = |id: &str, metric: &str, value: Option<f64>| Run {
            id: id.into(),
            metric: metric.into(),
            overrides: vec![format!("seed={id}"), "train.epochs=1".into(), format!("name=\"{id}\"")],
            results: value.map_or(String::new(), |value| results(metric, value)),
            ..Run::default()
        };
        let mut runs =
            [run("a", "accuracy", Some(0.5)), run("b", "accuracy", None), run("c", "accuracy", Some(0.9))];
        assert!(rank(&mut runs));
        assert_eq!(runs.each_ref().map(|run| run.id.as_str()), ["c", "a", "b"]);
        let text = render(&runs, true);
        let best = text.lines().find(|line| line.contains("best")).expect("a best one");
        assert!(best.contains("seed=c") && best.contains("0.9000") && !best.contains("epochs"), "{text}");
        let mut losses = [run("a", "mse", Some(0.5)), run("b", "mse", Some(0.1))];
        assert!(rank(&mut losses));
        assert_eq!(losses[0].id, "b");
        let mut none = [run("a", "mse", None)];
        assert!(!rank(&mut none));
    }
}
