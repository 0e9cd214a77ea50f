//! Case 29: every number against scikit-learn and SciPy (`tests/fixtures/metrics/make.py`).

use serde_json::Value;

use super::*;
use crate::batch::Targets;

/// f64 sums in another order; counts are exact.
const TOLERANCE: f64 = 1e-12;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../tests/fixtures/metrics/golden.json")).unwrap()
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("label{i}")).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(items) => items.iter().flat_map(floats).collect(),
        number => vec![number.as_f64().unwrap() as f32],
    }
}

fn close(case: &Value, name: &str, got: Option<f64>, expected: &Value) {
    match (got, expected.as_f64()) {
        (None, None) => {}
        (Some(a), Some(b)) if (a - b).abs() <= TOLERANCE * b.abs().max(1.0) => {}
        (a, b) => panic!("{}: {name} is {a:?}, expected {b:?}", case["name"]),
    }
}

/// Feeds rows in uneven pieces to two accumulators and merges them, last rows first.
fn in_pieces(
    new: impl Fn() -> Accumulator,
    width: usize,
    logits: &[f32],
    targets: impl Fn(usize, usize) -> Targets,
) -> Accumulator {
    let rows = logits.len() / width;
    let piece = |acc: &mut Accumulator, from: usize, to: usize| {
        acc.add(&logits[from * width..to * width], &targets(from, to));
    };
    let (mut head, mut tail, middle) = (new(), new(), rows / 3);
    for row in middle..rows {
        piece(&mut tail, row, row + 1);
    }
    piece(&mut head, 0, middle);
    tail.merge(&head);
    let mut whole = new();
    piece(&mut whole, 0, rows);
    let labels = names(width);
    assert_eq!(whole.report(&labels, 0.0), tail.report(&labels, 0.0), "merged parts equal the whole");
    whole
}

fn check_labels(case: &Value, labels: &[LabelReport]) {
    for (i, label) in labels.iter().enumerate() {
        close(case, "precision", label.precision, &case["precision"][i]);
        close(case, "recall", label.recall, &case["recall"][i]);
        close(case, "f1", label.f1, &case["f1"][i]);
        assert_eq!(Some(label.support), case["support"][i].as_u64(), "{}", case["name"]);
    }
}

fn check_summary(case: &Value, report: &Report) {
    for (metric, value) in report.summary() {
        if metric != Metric::Loss {
            close(case, &metric.name(&[]), value, &case[metric.name(&[])]);
        }
    }
}

#[test]
fn case_29_single_label_numbers_equal_scikit_learn() {
    for case in golden()["single"].as_array().unwrap() {
        let classes = case["classes"].as_u64().unwrap() as usize;
        let truth: Vec<u32> = floats(&case["truth"]).iter().map(|&x| x as u32).collect();
        let mut logits = vec![0.0; truth.len() * classes];
        for (row, p) in floats(&case["prediction"]).iter().enumerate() {
            logits[row * classes + *p as usize] = 1.0;
        }
        let targets = |a: usize, b: usize| Targets::Class(truth[a..b].to_vec());
        let report = in_pieces(|| Accumulator::classes(classes), classes, &logits, targets)
            .report(&names(classes), 0.0);
        check_summary(case, &report);
        check_labels(case, report.labels());
        let Report::SingleLabel(r) = report else { panic!("a single-label report") };
        assert_eq!(serde_json::json!(r.confusion), case["confusion"], "{}", case["name"]);
    }
}

#[test]
fn case_29_multi_label_numbers_equal_scikit_learn() {
    for case in golden()["multi"].as_array().unwrap() {
        let width = case["truth"][0].as_array().unwrap().len();
        let (truth, logits) = (floats(&case["truth"]), floats(&case["logits"]));
        let targets =
            |a: usize, b: usize| Targets::Multi { width, values: truth[a * width..b * width].to_vec() };
        let report =
            in_pieces(|| Accumulator::labels(width, 0.5), width, &logits, targets).report(&names(width), 0.0);
        check_summary(case, &report);
        check_labels(case, report.labels());
    }
}

#[test]
fn regression_numbers_equal_scipy_and_undefined_ones_are_null() {
    for case in golden()["regression"].as_array().unwrap() {
        let (truth, prediction) = (floats(&case["truth"]), floats(&case["prediction"]));
        let targets = |a: usize, b: usize| Targets::Value { width: 1, values: truth[a..b].to_vec() };
        let report = in_pieces(|| Accumulator::values(1), 1, &prediction, targets).report(&names(1), 0.0);
        check_summary(case, &report);
        let text = serde_json::to_string(&report).unwrap();
        assert!(!text.contains("NaN") && serde_json::from_str::<Report>(&text).is_ok(), "{text}");
    }
}

#[test]
fn case_29_a_label_without_truth_and_prediction_is_listed_as_null() {
    let mut acc = Accumulator::classes(3);
    acc.add(&[1.0, 0.0, 0.0, 0.0, 1.0, 0.0], &Targets::Class(vec![0, 1]));
    let json = serde_json::to_value(acc.report(&names(3), 0.5)).unwrap();
    assert_eq!(json["labels"][2]["label"], "label2");
    assert!(json["labels"][2]["f1"].is_null() && json["labels"][2]["support"] == 0);
    assert_eq!((&json["f1_macro"], &json["loss"]), (&serde_json::json!(1.0), &serde_json::json!(0.25)));
}

#[test]
fn case_28_a_collapsed_model_is_named_in_the_notices() {
    let mut acc = Accumulator::classes(2);
    acc.add(&[0.0, 1.0, 0.0, 1.0], &Targets::Class(vec![0, 1]));
    assert_eq!(acc.report(&names(2), 0.0).notices(), ["every row is predicted as \"label1\""]);
}
