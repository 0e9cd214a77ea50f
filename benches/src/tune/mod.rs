//! `muster tune`: finds ranks per node, tokens of a micro-batch and threads of a run by short measured trials.
//!
//! It begins with what the plan derives from caches and memory, tries the ranks first, then micro-batches around that
//! estimate, then a thread less; whatever fits the time. The best two are measured again, in turns, before one is
//! chosen: a lucky trial wins no run file.

mod edit;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use muster_trainer::topology::HostFacts;
use serde::Serialize;

use crate::Env;
use crate::scaling::{Plan, Trial, Workload, default_ranks, plan_run, trial};
use crate::stats::median;

pub use edit::{Choice, tuned};

/// Fewest and most counted steps of a trial.
const STEPS: (usize, usize) = (3, 20);
/// Shortest micro-batch that is tried, in tokens.
const LEAST_TOKENS: usize = 64;
/// A setting must be so much faster to be preferred to the plan's.
const WORTH_IT: f64 = 1.02;

/// Arguments of `muster tune`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Run file (docs/run-file.md)
    #[arg(value_name = "RUN.toml")]
    pub run: PathBuf,
    /// Replace a value of the run file for the trials: --set train.precision=f32
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Time for trials, as 90s or 5min
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = parse_time)]
    pub budget: Duration,
    /// The tuned run file, in the directory of RUN.toml; default: RUN.tuned.toml
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: f64 =
        digits.trim().parse().map_err(|_| format!("{text:?} is no time such as 90s or 5min"))?;
    let seconds = match &text[digits.len()..] {
        "" | "s" => number,
        "m" | "min" => 60.0 * number,
        unit => return Err(format!("there is no unit {unit:?}; use s or min")),
    };
    if (1.0..=86_400.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("a budget is 1 s to 1440 min".into())
    }
}

/// A setting and what it gave.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tried {
    /// What was set.
    pub choice: Choice,
    /// Rows per second of every step, trial by trial.
    pub rates: Vec<Vec<f64>>,
    /// Median rows per second.
    pub samples_per_s: f64,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

/// What tuning found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// What the plan derives: the rule of thumb.
    pub estimate: Choice,
    /// Why.
    pub reason: String,
    /// Everything that was tried, in this order.
    pub tried: Vec<Tried>,
    /// The best.
    pub best: Choice,
    /// Its rows per second, and those of the estimate.
    pub samples_per_s: (f64, f64),
    /// The new run file.
    pub output: PathBuf,
    /// Seconds that it took.
    pub took_s: f64,
}

/// Tunes a run and writes the new run file.
///
/// # Errors
/// A run that can't start, an output that can't be written, or a signal.
pub fn run(options: &Options, env: &Env<'_>) -> Result<Outcome> {
    let output = output_path(options)?;
    let original = std::fs::read_to_string(&options.run)
        .with_context(|| format!("can't read {}", options.run.display()))?;
    let dir = tempfile::Builder::new()
        .prefix("muster-tune-")
        .tempdir()
        .context("can't make a temporary directory")?;
    let workload = Workload::of_run(dir.path(), &options.run, &options.overrides)?;
    let host = HostFacts::detect();
    let plan = plan_run(env, dir.path(), &workload, &options.overrides, &[])?;
    let estimate = Choice { ranks: 1, micro_batch_tokens: plan.micro_batch_tokens, threads: None };
    let reason = plan.reason("micro-batch");
    let mut search = Search {
        env,
        dir: dir.path(),
        workload: &workload,
        overrides: &options.overrides,
        host: &host,
        begun: Instant::now(),
        budget: options.budget,
        longest: Duration::ZERO,
        steps: STEPS.0 + 1,
        tried: Vec::new(),
    };
    search.all(estimate, &plan)?;
    let best = search.best().context("no trial came to an end; `muster train` says what is wrong")?;
    let text = tuned(&original, &best.choice, best.samples_per_s).context("the run file can't be edited")?;
    std::fs::write(&output, text).with_context(|| format!("can't write {}", output.display()))?;
    let rate_of =
        |choice: &Choice| search.tried.iter().find(|t| t.choice == *choice).map_or(0.0, |t| t.samples_per_s);
    Ok(Outcome {
        samples_per_s: (best.samples_per_s, rate_of(&estimate)),
        best: best.choice,
        estimate,
        reason,
        took_s: search.begun.elapsed().as_secs_f64(),
        tried: search.tried,
        output,
    })
}

/// Beside the run file, since relative paths in it are relative to its directory.
fn output_path(options: &Options) -> Result<PathBuf> {
    let run = std::path::absolute(&options.run).context("can't use the path of the run file")?;
    let output = match &options.output {
        Some(output) => std::path::absolute(output).context("can't use the output path")?,
        None => run.with_extension("tuned.toml"),
    };
    ensure!(output != run, "--output {} is the run file itself; choose another name", output.display());
    ensure!(
        output.parent() == run.parent(),
        "--output {} is in another directory than the run file, where its relative paths would not hold",
        output.display()
    );
    Ok(output)
}

struct Search<'a> {
    env: &'a Env<'a>,
    dir: &'a Path,
    workload: &'a Workload,
    overrides: &'a [String],
    host: &'a HostFacts,
    begun: Instant,
    budget: Duration,
    /// The longest trial so far.
    longest: Duration,
    steps: usize,
    tried: Vec<Tried>,
}

impl Search<'_> {
    fn all(&mut self, estimate: Choice, plan: &Plan) -> Result<()> {
        self.measure(estimate)?;
        if let Some(failure) = self.tried.first().and_then(|tried| tried.failure.clone()) {
            bail!("the run can't be tried: {failure}");
        }
        self.set_steps();
        for ranks in default_ranks(self.host).into_iter().filter(|&ranks| ranks > 1) {
            self.measure(Choice { ranks, ..estimate })?;
        }
        let best = self.best().map_or(estimate, |tried| tried.choice);
        for tokens in sizes(plan.micro_batch_tokens, plan.tokens_per_step) {
            self.measure(Choice { micro_batch_tokens: tokens, ..best })?;
        }
        let best = self.best().map_or(estimate, |tried| tried.choice);
        let threads = self.host.cores.len() / best.ranks;
        if threads > 2 {
            // One core for communication, the loader and everybody else.
            self.measure(Choice { threads: Some(threads - 1), ..best })?;
        }
        for choice in self.leaders(2) {
            self.measure(choice)?;
        }
        Ok(())
    }

    /// So many steps that a dozen trials fit the budget.
    fn set_steps(&mut self) {
        let Some(first) = self.tried.first() else { return };
        let step_s = self.workload.global_batch as f64 / first.samples_per_s.max(1e-9);
        let slice = self.budget.as_secs_f64() / 12.0;
        self.steps = ((slice / step_s) as usize).clamp(STEPS.0, STEPS.1);
    }

    /// Tries a setting, if there is time for it.
    fn measure(&mut self, choice: Choice) -> Result<()> {
        if self.begun.elapsed() + self.longest > self.budget {
            return Ok(());
        }
        let begun = Instant::now();
        (self.env.say)(&format!("trying {choice}"));
        let mut overrides = self.overrides.to_vec();
        overrides.push(format!("train.micro_batch_tokens={}", choice.micro_batch_tokens));
        overrides.extend(choice.threads.map(|threads| format!("train.threads={threads}")));
        let wanted = Trial {
            dir: self.dir,
            workload: self.workload,
            overrides: &overrides,
            host: self.host,
            ranks: choice.ranks,
            steps: self.steps,
        };
        let result = trial(self.env, &wanted);
        ensure!(!self.env.stop.load(std::sync::atomic::Ordering::Relaxed), "stopped by a signal");
        self.longest = self.longest.max(begun.elapsed());
        let at = self.tried.iter().position(|tried| tried.choice == choice).unwrap_or_else(|| {
            self.tried.push(Tried { choice, rates: Vec::new(), samples_per_s: 0.0, failure: None });
            self.tried.len() - 1
        });
        let tried = &mut self.tried[at];
        match result {
            Ok(rates) => {
                tried.rates.push(rates);
                let all: Vec<f64> = tried.rates.iter().flatten().copied().collect();
                tried.samples_per_s = median(&all);
            }
            // A setting that does not fit is an answer too.
            Err(error) => tried.failure = Some(format!("{error:#}")),
        }
        Ok(())
    }

    /// The fastest settings, best first.
    fn leaders(&self, count: usize) -> Vec<Choice> {
        let mut sorted: Vec<&Tried> = self.tried.iter().filter(|tried| tried.failure.is_none()).collect();
        sorted.sort_by(|a, b| b.samples_per_s.total_cmp(&a.samples_per_s));
        sorted.iter().take(count).map(|tried| tried.choice).collect()
    }

    /// The fastest setting; the plan's where none is clearly faster.
    fn best(&self) -> Option<Tried> {
        let leader = self.leaders(1).first().copied()?;
        let of = |choice: &Choice| self.tried.iter().find(|tried| tried.choice == *choice).cloned();
        let (leader, first) = (of(&leader)?, self.tried.first().cloned()?);
        let keeps = first.failure.is_none() && leader.samples_per_s < WORTH_IT * first.samples_per_s;
        Some(if keeps { first } else { leader })
    }
}

/// Micro-batches around the estimate, the nearest first, none larger than a step.
fn sizes(estimate: usize, step_tokens: f64) -> Vec<usize> {
    let most = (step_tokens.ceil() as usize).max(LEAST_TOKENS);
    let mut sizes: Vec<usize> = [estimate / 2, 2 * estimate, estimate / 4, 4 * estimate, estimate / 8]
        .into_iter()
        .map(|tokens| tokens.clamp(LEAST_TOKENS, most))
        .filter(|&tokens| tokens != estimate)
        .collect();
    let mut seen = Vec::new();
    sizes.retain(|size| {
        !seen.contains(size) && {
            seen.push(*size);
            true
        }
    });
    sizes
}

/// What was tried, for people.
pub fn text(outcome: &Outcome, run: &Path) -> String {
    let mut text = String::new();
    let mut line = |words: String| text.push_str(&(words + "\n"));
    for tried in &outcome.tried {
        let note = match (&tried.failure, tried.choice == outcome.best, tried.choice == outcome.estimate) {
            (Some(_), ..) => "  failed",
            (None, true, true) => "  best, and the rule of thumb",
            (None, true, false) => "  best",
            (None, false, true) => "  rule of thumb",
            (None, false, false) => "",
        };
        line(format!("{:>9.1} samples/s  {}{note}", tried.samples_per_s, tried.choice));
    }
    let (best, rule) = outcome.samples_per_s;
    line(String::new());
    line(format!("rule of thumb: {} ({}): {rule:.1} samples/s", outcome.estimate, outcome.reason));
    line(format!(
        "measured best: {}: {best:.1} samples/s, {:.2} times as fast",
        outcome.best,
        best / rule.max(1e-9)
    ));
    line(format!("wrote {}", outcome.output.display()));
    let ranks =
        if outcome.best.ranks > 1 { format!(" --ranks {}", outcome.best.ranks) } else { String::new() };
    let name = outcome.output.file_name().unwrap_or_default();
    let path = run.parent().unwrap_or(Path::new("")).join(name);
    line(format!("muster train {}{ranks}", path.display()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_times() {
        assert_eq!(parse_time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_time("30"), Ok(Duration::from_secs(30)));
        assert!(parse_time("2h").expect_err("no hours").contains("use s or min"));
        assert!(parse_time("x").is_err() && parse_time("0s").is_err());
    }

    #[test]
    fn micro_batches_lie_around_the_estimate_and_within_a_step() {
        assert_eq!(sizes(512, 4000.0), [256, 1024, 128, 2048, 64]);
        assert_eq!(sizes(512, 520.0), [256, 520, 128, 64]);
        assert_eq!(sizes(64, 30.0), [] as [usize; 0]);
    }
}
