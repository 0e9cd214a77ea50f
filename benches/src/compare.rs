//! Compares two benchmark files: a verdict for each metric, with the noise of both taken into account.
//!
//! A change counts when it is at least the threshold, the 95 % interval of the ratio of medians excludes 1, and, where both
//! have four samples or more, a rank test agrees. Absolute numbers of different machines are not compared.

use std::fmt::Write as _;

use serde::Serialize;

use crate::schema::{BenchFile, Better, Metric, Point};
use crate::stats::{self, Estimate};

/// Probability below which the rank test calls two samples different.
const SIGNIFICANT: f64 = 0.05;
/// Samples from which on the rank test is asked.
const ENOUGH: usize = 4;

/// How to compare.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Relative change that counts: 0.05 is 5 %.
    pub threshold: f64,
    /// Compare only metrics that are ratios.
    pub ratios: bool,
    /// Compare absolute numbers although the machines differ.
    pub across: bool,
}

/// What became of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It got better.
    Better,
    /// It got worse.
    Worse,
    /// The change is smaller than the threshold.
    Same,
    /// The change is larger, but not than the noise.
    Noise,
}

/// One metric in both files.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// Series, name and library of the point.
    pub point: String,
    /// Name of the metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// In the first file.
    pub before: Estimate,
    /// In the second file.
    pub after: Estimate,
    /// After over before, with its interval.
    pub ratio: Estimate,
    /// Probability of such a difference without a change; none with too few samples.
    pub probability: Option<f64>,
    /// What it means.
    pub verdict: Verdict,
}

/// Two files compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Metric by metric.
    pub compared: Vec<Compared>,
    /// What could not be compared, and why.
    pub notes: Vec<String>,
}

impl Comparison {
    /// How many metrics have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.compared.iter().filter(|c| c.verdict == verdict).count()
    }

    /// The table for people: what changed, then how many did not.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for c in self.compared.iter().filter(|c| c.verdict != Verdict::Same) {
            let word = match c.verdict {
                Verdict::Better => "better",
                Verdict::Worse => "WORSE",
                Verdict::Noise => "noise",
                Verdict::Same => "same",
            };
            let percent = |x: f64| 100.0 * (x - 1.0);
            // Writing to a string can't fail.
            let _ = writeln!(
                text,
                "{word:6} {}: {} {} -> {} {} ({:+.1} %, {:+.1} to {:+.1} %)",
                c.point,
                c.metric,
                number(c.before.value),
                number(c.after.value),
                c.unit,
                percent(c.ratio.value),
                percent(c.ratio.low),
                percent(c.ratio.high)
            );
        }
        for note in &self.notes {
            let _ = writeln!(text, "note   {note}");
        }
        let count = |verdict| self.count(verdict);
        let _ = writeln!(
            text,
            "{} metrics: {} worse, {} better, {} the same, {} within noise",
            self.compared.len(),
            count(Verdict::Worse),
            count(Verdict::Better),
            count(Verdict::Same),
            count(Verdict::Noise)
        );
        text
    }
}

/// A number with three digits that count.
pub fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        1e6.. => format!("{x:.2e}"),
        100.0.. => format!("{x:.0}"),
        10.0.. => format!("{x:.1}"),
        1.0.. => format!("{x:.2}"),
        0.001.. => format!("{x:.3}"),
        _ => format!("{x:.1e}"),
    }
}

/// Compares the second file with the first.
pub fn compare(before: &BenchFile, after: &BenchFile, rules: &Rules) -> Comparison {
    let mut notes = Vec::new();
    let differences = before.machine.differences(&after.machine);
    let same_work = before.settings.workload == after.settings.workload
        && before.settings.precision == after.settings.precision
        && before.settings.threads == after.settings.threads;
    if !same_work {
        let show = |file: &BenchFile| {
            let settings = &file.settings;
            format!("{} in {} on {} threads", settings.workload, settings.precision, settings.threads)
        };
        notes.push(format!("settings differ: {}; {}", show(before), show(after)));
    }
    let absolute = rules.across || differences.is_empty();
    if !absolute {
        notes.push(format!("machines differ, so only ratios are compared: {}", differences.join("; ")));
    }
    let mut compared = Vec::new();
    for old in &before.points {
        let same =
            |new: &&Point| (&new.series, &new.name, &new.library) == (&old.series, &old.name, &old.library);
        let Some(new) = after.points.iter().find(same) else {
            notes.push(format!("{} is only in the first file", title(old)));
            continue;
        };
        let marks: Vec<&str> = old.marks.iter().chain(&new.marks).map(|mark| mark.kind.word()).collect();
        if !marks.is_empty() && compared.len() < 200 {
            let mut marks = marks;
            marks.sort_unstable();
            marks.dedup();
            notes.push(format!("{} is doubtful: {}", title(old), marks.join(", ")));
        }
        for metric in old.metrics.iter().filter(|m| m.better != Better::Neither) {
            let is_ratio = metric.unit == "ratio";
            if (rules.ratios || !absolute) && !is_ratio {
                continue;
            }
            if let Some(other) = new.get(&metric.name) {
                compared.push(one(old, metric, other, rules));
            }
        }
    }
    Comparison { compared, notes }
}

fn title(point: &Point) -> String {
    match point.library.as_str() {
        "muster" => format!("{}, {}", point.series, point.name),
        other => format!("{}, {} ({other})", point.series, point.name),
    }
}

fn one(point: &Point, before: &Metric, after: &Metric, rules: &Rules) -> Compared {
    let ratio = stats::ratio_apart(&after.samples, &before.samples);
    let flat = |metric: &Metric| metric.samples.iter().flatten().copied().collect::<Vec<_>>();
    let (old, new) = (flat(before), flat(after));
    let probability = (old.len() >= ENOUGH && new.len() >= ENOUGH).then(|| stats::mann_whitney(&new, &old));
    // 10 % slower and 10 % faster are equally far from 1 where they are factors.
    let change = if ratio.value > 0.0 { ratio.value.max(1.0 / ratio.value) - 1.0 } else { f64::INFINITY };
    // One sample each has an interval of no width, which says nothing of the noise.
    let beyond_noise = old.len() + new.len() > 2
        && (ratio.low > 1.0 || ratio.high < 1.0)
        && probability.is_none_or(|p| p < SIGNIFICANT);
    let improved = (ratio.value > 1.0) == (before.better == Better::Higher);
    let verdict = match (change >= rules.threshold && old != new, beyond_noise, improved) {
        (false, _, _) => Verdict::Same,
        (true, false, _) => Verdict::Noise,
        (true, true, true) => Verdict::Better,
        (true, true, false) => Verdict::Worse,
    };
    Compared {
        point: title(point),
        metric: before.name.clone(),
        unit: before.unit.clone(),
        before: before.estimate,
        after: after.estimate,
        ratio,
        probability,
        verdict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::{Machine, Settings};
    use crate::schema::{Kind, SCHEMA, VERSION};

    fn file(rates: &[f64], share: f64) -> BenchFile {
        let rounds = rates.chunks(4).map(<[f64]>::to_vec).collect();
        let point = Point::new("strong", "2 ranks", "muster")
            .metric(Metric::new("samples_per_s", "1/s", Better::Higher, rounds))
            .metric(Metric::new("efficiency", "ratio", Better::Higher, vec![vec![share], vec![share * 1.01]]))
            .metric(Metric::new("compute_s", "s", Better::Neither, vec![vec![1.0]]));
        BenchFile {
            schema: SCHEMA.into(),
            version: VERSION,
            kind: Kind::Scaling,
            started_unix_s: 0,
            took_s: 1.0,
            command: String::new(),
            machine: Machine::detect(),
            settings: Settings::default(),
            points: vec![point],
            forecast: None,
        }
    }

    fn wobble(mean: f64, noise: f64) -> Vec<f64> {
        (0..12).map(|i| mean * (1.0 + noise * f64::sin(2.4 * f64::from(i)))).collect()
    }

    const RULES: Rules = Rules { threshold: 0.05, ratios: false, across: false };

    fn verdicts(before: &BenchFile, after: &BenchFile, rules: &Rules) -> Vec<Verdict> {
        compare(before, after, rules).compared.iter().map(|c| c.verdict).collect()
    }

    #[test]
    fn changes_beyond_noise_count_and_others_do_not() {
        let before = file(&wobble(100.0, 0.01), 0.9);
        assert_eq!(verdicts(&before, &before, &RULES), [Verdict::Same, Verdict::Same]);
        assert_eq!(verdicts(&before, &file(&wobble(88.0, 0.01), 0.9), &RULES)[0], Verdict::Worse);
        assert_eq!(verdicts(&before, &file(&wobble(115.0, 0.01), 0.9), &RULES)[0], Verdict::Better);
        assert_eq!(verdicts(&before, &file(&wobble(98.0, 0.01), 0.9), &RULES)[0], Verdict::Same);
        assert_eq!(
            verdicts(&file(&wobble(100.0, 0.3), 0.9), &file(&wobble(92.0, 0.3), 0.9), &RULES)[0],
            Verdict::Noise
        );
        // Few samples: the interval alone decides.
        assert_eq!(verdicts(&before, &file(&wobble(100.0, 0.01), 0.4), &RULES)[1], Verdict::Worse);
        let single = |rate: f64| file(&[rate], 0.9);
        assert_eq!(verdicts(&single(100.0), &single(50.0), &RULES)[0], Verdict::Noise, "one sample each");
        assert_eq!(verdicts(&single(100.0), &file(&wobble(50.0, 0.01), 0.9), &RULES)[0], Verdict::Worse);
        let text = compare(&before, &file(&wobble(88.0, 0.01), 0.9), &RULES).text();
        assert!(text.contains("WORSE") && text.contains("strong, 2 ranks: samples_per_s"), "{text}");
        assert!(text.contains("2 metrics: 1 worse, 0 better, 1 the same"), "{text}");
    }

    #[test]
    fn machines_that_differ_are_compared_by_ratios_only() {
        let before = file(&wobble(100.0, 0.01), 0.9);
        let mut after = file(&wobble(50.0, 0.01), 0.9);
        after.machine.cpu = "another".into();
        let compared = compare(&before, &after, &RULES);
        assert_eq!((compared.compared.len(), compared.count(Verdict::Worse)), (1, 0), "{compared:?}");
        assert!(compared.notes[0].contains("machines differ"), "{:?}", compared.notes);
        assert_eq!(
            verdicts(&before, &after, &Rules { across: true, ..RULES }),
            [Verdict::Worse, Verdict::Same]
        );
        assert_eq!(verdicts(&before, &before, &Rules { ratios: true, ..RULES }).len(), 1);
    }
}
