//! Reports and results as tables for people.

use muster_trainer::metrics::{LabelReport, Report, TargetReport};
use muster_trainer::train::{RankPlace, Results};

use crate::commands::table;
use crate::progress::clock;

/// Largest number of labels whose confusion matrix is printed.
const CONFUSION_LABELS: usize = 12;

/// The end of a training run.
pub fn results(results: &Results) -> String {
    let mut text = format!(
        "trained {}: {} steps, {:.1} epochs, {} rows, {} tokens in {}{}\n",
        results.name,
        results.steps,
        results.epochs,
        results.rows,
        results.tokens,
        clock(std::time::Duration::from_secs_f64(results.elapsed_s.max(0.0))),
        if results.stopped_early { " (stopped early)" } else { "" },
    );
    text.push_str(&format!("model of step {} in {}\n", results.model_step, results.model_dir));
    if results.skipped_steps > 0 {
        text.push_str(&format!("{} steps were skipped: something was not finite\n", results.skipped_steps));
    }
    if results.ranks.len() > 1 {
        text.push_str(&format!("\n{}", ranks(&results.ranks)));
    }
    let columns: Vec<(&str, &Report)> = [("eval", &results.eval), ("test", &results.test)]
        .into_iter()
        .filter_map(|(n, r)| Some((n, r.as_ref()?)))
        .collect();
    if let Some((name, report)) = columns.last() {
        text.push('\n');
        text.push_str(&summary(&columns));
        text.push_str(&details(name, report));
    }
    text
}

/// What ranks had of their machines.
fn ranks(ranks: &[RankPlace]) -> String {
    let row = |rank: &RankPlace| {
        let place = rank.place;
        vec![
            rank.rank.to_string(),
            place.cores.to_string(),
            format!("{}{}", place.threads, if place.is_pinned { " pinned" } else { "" }),
            percent(rank.numa_local),
            percent(rank.throttled),
            place.rebinds.to_string(),
        ]
    };
    let rows: Vec<_> = ranks.iter().map(row).collect();
    table(&["rank", "cores", "threads", "NUMA-local", "throttled", "rebinds"], &rows)
}

/// A share as people read it; nothing for an unknown one.
pub fn percent(share: Option<f64>) -> String {
    share.map_or(String::new(), |share| format!("{:.1} %", share * 100.0))
}

/// One evaluation.
pub fn report(name: &str, report: &Report) -> String {
    summary(&[(name, report)]) + &details(name, report)
}

fn summary(columns: &[(&str, &Report)]) -> String {
    let mut header = vec!["metric"];
    header.extend(columns.iter().map(|(name, _)| *name));
    let metrics = columns.first().map(|(_, report)| report.summary()).unwrap_or_default();
    let mut rows: Vec<Vec<String>> = metrics
        .into_iter()
        .map(|(metric, _)| {
            let values = columns.iter().map(|(_, report)| number(report.value(metric)));
            [metric.name(&[])].into_iter().chain(values).collect()
        })
        .collect();
    let counts = columns.iter().map(|(_, report)| report.rows().to_string());
    rows.push(["rows".to_owned()].into_iter().chain(counts).collect());
    table(&header, &rows)
}

fn details(name: &str, report: &Report) -> String {
    let mut text = String::new();
    if !report.labels().is_empty() {
        let row = |l: &LabelReport| {
            let counts = [l.support.to_string(), l.predicted.to_string()];
            let scores = [number(l.precision), number(l.recall), number(l.f1)];
            [l.label.clone()].into_iter().chain(scores).chain(counts).collect()
        };
        let header = [&format!("label ({name})"), "precision", "recall", "f1", "support", "predicted"];
        let rows: Vec<Vec<String>> = report.labels().iter().map(row).collect();
        text.push('\n');
        text.push_str(&table(&header, &rows));
    }
    if let Report::SingleLabel(single) = report
        && single.labels.len() <= CONFUSION_LABELS
    {
        let mut header = vec!["truth \\ predicted"];
        header.extend(single.labels.iter().map(|l| l.label.as_str()));
        let row = |(label, counts): (&LabelReport, &Vec<u64>)| {
            [label.label.clone()].into_iter().chain(counts.iter().map(u64::to_string)).collect()
        };
        let rows: Vec<Vec<String>> = single.labels.iter().zip(&single.confusion).map(row).collect();
        text.push('\n');
        text.push_str(&table(&header, &rows));
    }
    if let Report::Regression(regression) = report
        && regression.targets.len() > 1
    {
        let row = |t: &TargetReport| {
            vec![t.target.clone(), number(t.mse), number(t.mae), number(t.pearson), number(t.spearman)]
        };
        let rows: Vec<Vec<String>> = regression.targets.iter().map(row).collect();
        text.push('\n');
        text.push_str(&table(&["target", "mse", "mae", "pearson", "spearman"], &rows));
    }
    for notice in report.notices() {
        text.push_str(&format!("\nnotice ({name}): {notice}\n"));
    }
    text
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"))
}

#[cfg(test)]
mod tests {
    use muster_trainer::batch::Targets;
    use muster_trainer::metrics::Accumulator;

    #[test]
    fn a_label_that_never_occurs_is_a_dash_and_a_collapse_is_said() {
        let mut acc = Accumulator::classes(3);
        acc.add(&[1.0, 0.0, 0.0, 1.0, 0.0, 0.0], &Targets::Class(vec![0, 1]));
        let report = acc.report(&["down".into(), "flat".into(), "up".into()], 1.0);
        let text = super::report("eval", &report);
        assert!(text.contains("0.5000"), "{text}");
        let up = text.lines().find(|line| line.trim_start().starts_with("up")).expect("a line");
        assert_eq!(up.split_whitespace().collect::<Vec<_>>(), ["up", "-", "-", "-", "0", "0"]);
        assert!(text.contains("notice (eval): every row is predicted as \"down\""), "{text}");
    }
}
