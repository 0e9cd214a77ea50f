//! `report.html`: one page about a run that needs no other file and no network.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::chart::{Chart, Line};
use super::tables::{escape, numbers, ranks, table};
use crate::checkpoint::CheckpointError;
use crate::checkpoint::durable::replace_file;
use crate::train::{EvalRecord, Line as LogLine, Results, StepRecord};

/// Name of the page in the output directory.
pub const PAGE: &str = "report.html";

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The output directory has no log, or it can't be read.
    #[error("can't read {}: is this the output directory of a run?", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file of the run is not what a run writes.
    #[error("{} line {line} is not what a run writes", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The page can't be written.
    #[error("can't write the report")]
    Write(#[from] CheckpointError),
}

impl PageError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => Some(
                "name the output directory of a run (output_dir in its run file); it has metrics.jsonl"
                    .into(),
            ),
            Self::Foreign { .. } => None,
            Self::Write(error) => error.hint(),
        }
    }
}

/// What the files of a run say.
#[derive(Debug, Default)]
struct Story {
    steps: Vec<StepRecord>,
    evaluations: Vec<EvalRecord>,
    results: Option<Results>,
}

/// Writes the page of the run in `output_dir` from its log and, once it has ended, its results. Returns its path.
///
/// # Errors
/// Files that can't be read or are of something else, and a disk that refuses the page.
pub fn write_page(output_dir: &Path) -> Result<PathBuf, PageError> {
    let page = Story::read(output_dir)?.page();
    replace_file(output_dir, PAGE, page.as_bytes())?;
    Ok(output_dir.join(PAGE))
}

impl Story {
    fn read(dir: &Path) -> Result<Self, PageError> {
        let path = dir.join("metrics.jsonl");
        let text =
            fs::read_to_string(&path).map_err(|source| PageError::Read { path: path.clone(), source })?;
        let mut story = Self::default();
        // A last line without its end is one that is being written.
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        for (index, line) in whole.enumerate() {
            let foreign = |source| PageError::Foreign { path: path.clone(), line: index + 1, source };
            match serde_json::from_str(line).map_err(foreign)? {
                LogLine::Train(record) => story.steps.push(record),
                LogLine::Eval(record) => story.evaluations.push(record),
            }
        }
        let path = dir.join("results.json");
        story.results = match fs::read(&path) {
            Ok(bytes) => {
                let results = serde_json::from_slice(&bytes);
                Some(results.map_err(|source| PageError::Foreign { path, line: source.line(), source })?)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(source) => return Err(PageError::Read { path, source }),
        };
        Ok(story)
    }

    fn page(&self) -> String {
        let name = self.results.as_ref().map_or("run", |results| &results.name);
        let mut page = String::new();
        // Writing to a text does not fail.
        let _ = write!(
            page,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name} - Muster</title>\n\
             <style>{STYLE}</style></head><body>\n<h1>{name}</h1>\n",
            name = escape(name)
        );
        page.push_str(&self.summary());
        page.push_str("<div class=\"charts\">\n");
        for chart in self.charts() {
            if let Some(svg) = chart.svg() {
                let _ = writeln!(page, "<figure>{svg}</figure>");
            }
        }
        page.push_str("</div>\n");
        if let Some(results) = &self.results {
            for (title, report) in [("Test", &results.test), ("Evaluation", &results.eval)] {
                if let Some(report) = report {
                    page.push_str(&numbers(title, report));
                }
            }
        }
        if let Some(results) = self.results.as_ref().filter(|results| !results.ranks.is_empty()) {
            page.push_str(&ranks(&results.ranks));
        }
        page.push_str("</body></html>\n");
        page
    }

    fn summary(&self) -> String {
        let mut rows: Vec<(&str, String)> = Vec::new();
        let last = self.steps.last();
        match &self.results {
            Some(r) => {
                let end = if r.stopped_early {
                    "stopped early, as the metric no longer improved"
                } else {
                    "finished"
                };
                rows.push(("state", end.into()));
                rows.push(("steps", format!("{} of {}", r.steps, r.total_steps)));
                rows.push(("epochs", format!("{:.2}", r.epochs)));
                rows.push(("rows trained on", r.rows.to_string()));
                rows.push(("tokens trained on", r.tokens.to_string()));
                rows.push(("time", format!("{:.1} s", r.elapsed_s)));
                rows.push(("model", format!("after step {}, chosen by {}", r.model_step, r.metric)));
                rows.push(("weights", r.weights_digest.clone()));
                if r.skipped_steps > 0 {
                    rows.push(("skipped steps", r.skipped_steps.to_string()));
                }
            }
            None => {
                let step = last.map_or(0, |record| record.step);
                rows.push(("state", format!("not finished; the log ends at step {step}")));
            }
        }
        if let Some(rate) = median(self.steps.iter().map(|record| record.tokens_per_s)) {
            rows.push(("speed", format!("{rate:.0} tokens/s (median of the logged steps)")));
        }
        table(&[], rows.iter().map(|(key, value)| vec![(*key).to_owned(), value.clone()]))
    }

    fn charts(&self) -> Vec<Chart<'_>> {
        let of_steps = |get: &dyn Fn(&StepRecord) -> Option<f64>| -> Vec<(f64, f64)> {
            let points = self.steps.iter().filter_map(|record| Some((record.step as f64, get(record)?)));
            points.filter(|point| point.1.is_finite()).collect()
        };
        let of_evaluations = |name: &str| -> Vec<(f64, f64)> {
            let value = |record: &EvalRecord| {
                record.report.summary().into_iter().find(|(metric, _)| metric.name(&[]) == name)?.1
            };
            self.evaluations.iter().filter_map(|r| Some((r.step as f64, value(r)?))).collect()
        };
        let line = |name, points| Line { name, points, is_marked: false };
        let marked = |name, points| Line { name, points, is_marked: true };
        let chart =
            |title, y, from_zero, lines: Vec<Line<'static>>| Chart { title, x: "step", y, from_zero, lines };
        let scores = ["accuracy", "f1_macro", "mcc", "subset_accuracy", "pearson", "spearman"];
        let scores = scores.map(|name| marked(name, of_evaluations(name)));
        vec![
            chart(
                "Loss",
                "mean loss of a row",
                false,
                vec![line("training", of_steps(&|r| r.loss)), marked("evaluation", of_evaluations("loss"))],
            ),
            chart(
                "Evaluation",
                "score",
                false,
                scores.into_iter().filter(|line| !line.points.is_empty()).collect(),
            ),
            chart(
                "Learning rate",
                "learning rate",
                true,
                vec![line("rate", of_steps(&|r| Some(r.learning_rate)))],
            ),
            chart(
                "Gradient norm",
                "norm before clipping",
                true,
                vec![line("norm", of_steps(&|r| r.grad_norm))],
            ),
            chart(
                "Time of a step",
                "milliseconds",
                true,
                vec![
                    line("compute", of_steps(&|r| Some(r.compute_s * 1e3))),
                    line("exposed communication", of_steps(&|r| Some(r.exposed_s * 1e3))),
                    line("waiting for data", of_steps(&|r| Some(r.data_s * 1e3))),
                ],
            ),
            chart(
                "Speed",
                "tokens per second",
                true,
                vec![line("speed", of_steps(&|r| Some(r.tokens_per_s)))],
            ),
        ]
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

const STYLE: &str = "body{font:15px sans-serif;max-width:1340px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:left}\
td{font-variant-numeric:tabular-nums}.charts{display:flex;flex-wrap:wrap;gap:1em}figure{margin:0}";

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: Option<f64>) -> String {
        format!(
            "{{\"kind\":\"train\",\"step\":{step},\"epoch\":0.1,\"loss\":{},\"learning_rate\":1e-5,\"grad_norm\":1.5,\
             \"rows\":32,\"tokens\":400,\"skipped_steps\":0,\"elapsed_s\":1.0,\"tokens_per_s\":4000.0,\"data_s\":0.0,\
             \"compute_s\":0.09,\"exposed_s\":0.001}}\n",
            loss.map_or("null".into(), |loss| loss.to_string())
        )
    }

    #[test]
    fn a_log_becomes_a_page_that_needs_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let log = step(10, Some(2.0)) + &step(20, None) + &step(30, Some(1.0)) + "{\"kind\":\"tr";
        fs::write(dir.path().join("metrics.jsonl"), log).unwrap();
        let page = fs::read_to_string(write_page(dir.path()).unwrap()).unwrap();
        assert!(page.contains("the log ends at step 30") && page.contains("4000 tokens/s"), "{page}");
        assert_eq!(page.matches("<svg").count(), 5, "no chart of evaluations that are not there");
        for outside in ["http:", "https:", "src="] {
            let page = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn what_is_no_run_is_told_with_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let error = write_page(dir.path()).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl: is this the output directory of a run?"), "{error}");
        fs::write(dir.path().join("metrics.jsonl"), step(1, None) + "{\"kind\":\"train\"}\n").unwrap();
        let error = write_page(dir.path()).unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl line 2"), "{error}");
    }
}
