//! Reports: one HTML page that needs nothing else, Markdown for a README, and the charts as SVG files.

mod charts;
mod pictures;
mod tables;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

pub use pictures::{Picture, pictures};
pub use tables::{Table, forecast_table, tables};

use crate::schema::BenchFile;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;color:#222;max-width:1100px;margin:2em auto;padding:0 1em}\
table{border-collapse:collapse;margin:.6em 0 1.6em;font-variant-numeric:tabular-nums}\
td,th{border:1px solid #ddd;padding:.25em .6em;text-align:left}th{background:#f4f4f4}\
figure{margin:1em 0 2em}figcaption{color:#555}svg{max-width:100%;height:auto}code{background:#f4f4f4;padding:.1em .3em}";

/// The report as one HTML page.
///
/// # Errors
/// A chart that can't be drawn.
pub fn html(file: &BenchFile) -> Result<String> {
    let title = format!("muster bench {}", kind(file));
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\n\
         <body><h1>{title}</h1>\n"
    );
    let mut add = |text: String| page.push_str(&(text + "\n"));
    for line in about(file) {
        add(format!("<p>{}</p>", escape(&line)));
    }
    add(format!("<p><code>{}</code></p>", escape(&file.command)));
    for picture in pictures(file)? {
        add(format!("<figure>{}<figcaption>{}</figcaption></figure>", picture.svg, escape(&picture.about)));
    }
    for table in tables(file) {
        add(format!("<h2>{}</h2><table><tr>", escape(&table.title)));
        add(table.head.iter().map(|cell| format!("<th>{}</th>", escape(cell))).collect::<String>() + "</tr>");
        for row in &table.rows {
            add("<tr>".to_owned()
                + &row.iter().map(|c| format!("<td>{}</td>", escape(c))).collect::<String>()
                + "</tr>");
        }
        add("</table>".into());
    }
    let notes = notes(file);
    if !notes.is_empty() {
        add("<h2>Doubts and limits</h2><ul>".into());
        notes.iter().for_each(|note| add(format!("<li>{}</li>", escape(note))));
        add("</ul>".into());
    }
    add("</body></html>".into());
    Ok(page)
}

/// The report as Markdown; charts are links to the files of [`write_charts`] in `charts`, where given.
///
/// # Errors
/// A chart that can't be drawn.
pub fn markdown(file: &BenchFile, charts: Option<&str>) -> Result<String> {
    let mut text = String::new();
    let mut add = |line: &str| text.push_str(&format!("{line}\n"));
    for line in about(file) {
        add(&line);
        add("");
    }
    add(&format!("    {}", file.command));
    add("");
    if let Some(folder) = charts {
        for picture in pictures(file)? {
            add(&format!("![{}]({folder}/{}.svg)", picture.about, picture.name));
            add("");
        }
    }
    for table in tables(file) {
        add(&format!("{}:", table.title));
        add("");
        add(&markdown_table(&table));
    }
    notes(file).iter().for_each(|note| add(&format!("* {note}")));
    Ok(text)
}

/// One table in Markdown.
pub fn markdown_table(table: &Table) -> String {
    let line = |cells: &[String]| {
        format!("| {} |\n", cells.iter().map(|c| c.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
    };
    let mut text = line(&table.head);
    // Writing to a string can't fail.
    let _ = writeln!(text, "|{}", "---|".repeat(table.head.len()));
    table.rows.iter().for_each(|row| text.push_str(&line(row)));
    text
}

/// Writes every chart of a file as SVG.
///
/// # Errors
/// A disk that refuses.
pub fn write_charts(file: &BenchFile, folder: &Path) -> Result<Vec<String>> {
    std::fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
    let mut names = Vec::new();
    for picture in pictures(file)? {
        let path = folder.join(format!("{}.svg", picture.name));
        std::fs::write(&path, &picture.svg).with_context(|| format!("can't write {}", path.display()))?;
        names.push(path.display().to_string());
    }
    Ok(names)
}

fn kind(file: &BenchFile) -> String {
    let value = serde_json::to_value(file.kind).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// Machine and settings in sentences.
fn about(file: &BenchFile) -> Vec<String> {
    let settings = &file.settings;
    let pinned = if settings.pinned { "bound to CPUs" } else { "not bound" };
    let mut lines = vec![
        format!("{}.", file.machine.describe()),
        format!(
            "{}; {} compute threads a rank, {pinned}{}; load average {:.1} at the start; it took {:.0} s.",
            settings.workload,
            settings.threads,
            if settings.precision.is_empty() { String::new() } else { format!(", {}", settings.precision) },
            settings.load,
            file.took_s
        ),
    ];
    if let Some(forecast) = &file.forecast {
        let f = &forecast.fitted;
        lines.push(format!(
            "Model: {:.0} ms a step ({:.0} more where ranks are several) and {:.3} ms a token, latency {:.0} us, {:.2} of the nominal wire time, {:.2} ns of CPU a byte, {:.0} % of \
             backward hides sums.",
            1e3 * f.fixed_s,
            1e3 * f.together_s,
            1e3 * f.token_s,
            f.alpha_us,
            f.wire_factor,
            f.cpu_ns_per_byte,
            100.0 * f.overlap
        ));
    }
    lines
}

/// Doubts of the points, what is missing, and what the forecast assumes; each once.
fn notes(file: &BenchFile) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    let mut add = |text: String| {
        if !notes.contains(&text) {
            notes.push(text);
        }
    };
    for point in &file.points {
        for mark in &point.marks {
            add(format!(
                "{} ({}, {}) {}: {}",
                point.name,
                point.series,
                point.library,
                mark.kind.word(),
                mark.text
            ));
        }
    }
    for (name, why) in file.points.iter().flat_map(|point| &point.missing) {
        add(format!("{name}: {why}"));
    }
    if let Some(forecast) = &file.forecast {
        forecast.assumptions.iter().for_each(|text| add(format!("forecast: {text}")));
    }
    notes
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::{Machine, Settings};
    use crate::schema::{Better, Kind, MarkKind, Metric, Point, SCHEMA, VERSION};

    fn file() -> BenchFile {
        let point = |ranks: f64, rate: f64| {
            Point::new("strong", &format!("{ranks} ranks"), "muster")
                .dim("ranks", ranks)
                .dim("nodes", 1.0)
                .dim("rows", 32.0)
                .dim("ideal", ranks)
                .metric(Metric::new("samples_per_s", "1/s", Better::Higher, vec![vec![rate, rate * 1.1]]))
                .metric(Metric::new("speedup", "ratio", Better::Higher, vec![vec![rate / 10.0]]))
                .metric(Metric::new("compute_s", "s", Better::Neither, vec![vec![32.0 / rate]]))
        };
        let mut two = point(2.0, 18.0);
        two.mark(MarkKind::Busy, "other programs used <1.2 CPUs".into());
        BenchFile {
            schema: SCHEMA.into(),
            version: VERSION,
            kind: Kind::Scaling,
            started_unix_s: 0,
            took_s: 3.0,
            command: "muster bench scaling --ranks 1,2".into(),
            machine: Machine::detect(),
            settings: Settings { threads: 1, workload: "tiny".into(), ..Settings::default() },
            points: vec![point(1.0, 10.0), two],
            forecast: None,
        }
    }

    #[test]
    fn a_page_stands_alone_and_escapes() {
        let page = html(&file()).expect("a page");
        assert!(
            page.matches("<svg").count() == 3 && page.contains("muster bench scaling --ranks 1,2"),
            "{page}"
        );
        assert!(page.contains("used &lt;1.2 CPUs") && !page.contains("used <1.2"));
        let outside =
            ["http://", "https://"].map(|word| page.replace("http://www.w3.org", "").matches(word).count());
        assert_eq!(outside, [0, 0], "nothing is fetched");
    }

    #[test]
    fn markdown_has_the_command_tables_and_links() {
        let text = markdown(&file(), Some("charts")).expect("text");
        assert!(text.contains("    muster bench scaling --ranks 1,2\n"), "{text}");
        assert!(
            text.contains("| 2 ranks | strong | muster | 32 |")
                && text.contains("](charts/strong-speedup.svg)"),
            "{text}"
        );
        let dir = tempfile::tempdir().expect("a directory");
        let names = write_charts(&file(), dir.path()).expect("written");
        assert_eq!(names.len(), 3, "{names:?}");
    }
}
