//! Tables of numbers as HTML.

use std::fmt::Write;

use crate::metrics::{LabelReport, Report};
use crate::train::RankPlace;

/// Most classes of which the confusion matrix is shown.
const CONFUSION_MAX: usize = 24;

/// The numbers of one set of rows.
pub(super) fn numbers(title: &str, report: &Report) -> String {
    let mut text = format!("<h2>{title}: {} rows</h2>\n", report.rows());
    let summary = report.summary();
    text.push_str(&table(&[], summary.iter().map(|(metric, value)| vec![metric.name(&[]), score(*value)])));
    let labels: &[LabelReport] = match report {
        Report::SingleLabel(r) => &r.labels,
        Report::MultiLabel(r) => &r.labels,
        Report::Regression(_) => &[],
    };
    if !labels.is_empty() {
        let cells = labels.iter().map(|l| {
            let counts = [l.support.to_string(), l.predicted.to_string()];
            let scores = [l.precision, l.recall, l.f1].map(score);
            std::iter::once(l.label.clone()).chain(scores).chain(counts).collect()
        });
        text.push_str(&table(&["label", "precision", "recall", "F1", "rows", "predicted"], cells));
    }
    if let Report::SingleLabel(r) = report
        && (2..=CONFUSION_MAX).contains(&r.confusion.len())
    {
        text.push_str(&confusion(labels, &r.confusion));
    }
    text
}

/// What ranks had of their machines.
pub(super) fn ranks(ranks: &[RankPlace]) -> String {
    let percent = |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.1} %", share * 100.0));
    let row = |rank: &RankPlace| {
        let place = rank.place;
        let threads = format!("{}{}", place.threads, if place.is_pinned { " pinned" } else { "" });
        let shares = [percent(rank.numa_local), percent(rank.throttled)];
        let numbers = [rank.rank.to_string(), place.cores.to_string(), threads];
        numbers.into_iter().chain(shares).chain([place.rebinds.to_string()]).collect()
    };
    let head = ["rank", "cores", "threads", "NUMA-local memory", "periods throttled", "bound anew"];
    format!("<h2>Ranks</h2>\n{}", table(&head, ranks.iter().map(row)))
}

fn confusion(labels: &[LabelReport], counts: &[Vec<u64>]) -> String {
    let mut text = String::from("<h3>True label by row, predicted by column</h3>\n<table><tr><th></th>");
    let names = || labels.iter().map(|label| escape(&label.label));
    names().for_each(|name| {
        let _ = write!(text, "<th>{name}</th>");
    });
    text.push_str("</tr>\n");
    for (name, row) in names().zip(counts) {
        let all = row.iter().sum::<u64>().max(1) as f64;
        let _ = write!(text, "<tr><th>{name}</th>");
        for &count in row {
            let share = count as f64 / all;
            let _ = write!(text, "<td style=\"background:rgba(31,90,166,{share:.2})\">{count}</td>");
        }
        text.push_str("</tr>\n");
    }
    text + "</table>\n"
}

/// A table; the first cell of a row is its head.
pub(super) fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut text = String::from("<table>");
    if !head.is_empty() {
        text.push_str("<tr>");
        head.iter().for_each(|cell| {
            let _ = write!(text, "<th>{}</th>", escape(cell));
        });
        text.push_str("</tr>\n");
    }
    for row in rows {
        text.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let kind = if index == 0 { "th" } else { "td" };
            let _ = write!(text, "<{kind}>{}</{kind}>", escape(cell));
        }
        text.push_str("</tr>\n");
    }
    text + "</table>\n"
}

fn score(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.4}"))
}

/// Text as HTML shows it; labels come from data.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_the_data_are_text() {
        let label = |name: &str| LabelReport {
            label: name.into(),
            precision: Some(1.0),
            recall: None,
            f1: Some(0.5),
            support: 1,
            predicted: 1,
        };
        let text = confusion(&[label("<script>"), label("b")], &[vec![1, 0], vec![3, 1]]);
        assert!(text.contains("&lt;script&gt;") && !text.contains("<script>"), "{text}");
        assert!(text.contains("rgba(31,90,166,0.75)"), "{text}");
    }
}
