//! Rules between and about values, checked after reading; every broken rule is noted.

use std::collections::HashMap;

use super::reader::Reader;
use super::{RunSpec, TaskType, metric_names};
use crate::{limits, nearest};

/// Notes every broken rule of a run file.
pub(super) fn check(spec: &RunSpec, r: &mut Reader<'_>) {
    check_name(spec, r);
    check_model(spec, r);
    // Rules that depend on the type would mislead while the type itself is wrong.
    if r.text_choice::<TaskType>("task.type").is_some() {
        check_task(spec, r);
        check_metric(spec, r);
    }
    check_data(spec, r);
    check_length(spec, r);
    check_optimizer(spec, r);
    if let (Some(min), Some(max)) = (spec.ranks.min, spec.ranks.max)
        && min > max
    {
        r.problem("ranks.min", format!("is {min}, more than `ranks.max`, which is {max}"));
    }
    if spec.eval.early_stopping_min_delta < 0.0 {
        r.problem("eval.early_stopping_min_delta", "must not be negative");
    }
    if !r.has("data.eval") && !r.has("data.eval_fraction") {
        for key in ["eval.early_stopping_patience", "eval.metric", "eval.every"] {
            if r.has(key) {
                r.problem(key, "needs evaluation data: give `data.eval` or `data.eval_fraction`");
            }
        }
    }
}

fn check_name(spec: &RunSpec, r: &mut Reader<'_>) {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
    if spec.name.len() > limits::MAX_NAME_BYTES {
        r.problem("name", format!("must have at most {} bytes", limits::MAX_NAME_BYTES));
    }
    if r.has("name") && (!spec.name.chars().all(plain) || spec.name.starts_with('.')) {
        r.problem("name", "is part of a file name: letters, digits, `-`, `_`, `.` and blanks, not `.` first");
    }
}

fn check_model(spec: &RunSpec, r: &mut Reader<'_>) {
    let rates = [
        ("model.hidden_dropout", spec.model.hidden_dropout),
        ("model.attention_dropout", spec.model.attention_dropout),
        ("model.classifier_dropout", spec.model.classifier_dropout),
    ];
    for (key, rate) in rates {
        if let Some(rate) = rate
            && !(0.0..1.0).contains(&rate)
        {
            r.problem(key, format!("must be at least 0 and below 1, not {rate}"));
        }
    }
}

fn check_task(spec: &RunSpec, r: &mut Reader<'_>) {
    let task = &spec.task;
    if task.kind == TaskType::Regression && r.has("task.labels") {
        r.problem("task.labels", "has no meaning for regression; name the target columns in `data.label`");
    }
    if task.kind != TaskType::MultiLabel {
        for key in ["task.threshold", "data.label_separator"] {
            if r.has(key) {
                r.problem(key, format!("belongs to multi-label tasks; task.type is \"{}\"", task.kind));
            }
        }
    }
    if !(task.threshold > 0.0 && task.threshold < 1.0) {
        r.problem("task.threshold", format!("must be above 0 and below 1, not {}", task.threshold));
    }
    if task.kind == TaskType::SingleLabel && spec.data.label.single().is_none() {
        r.problem("data.label", "names several columns; a single-label task has one");
    }
    if spec.data.label.single().is_none() && r.has("data.label_separator") {
        r.problem("data.label_separator", "has no meaning when labels are several columns");
    }
    if let Some(labels) = &task.labels {
        check_labels(labels, task.kind, r);
        let columns = spec.data.label.names();
        if task.kind == TaskType::MultiLabel && columns.len() > 1 && labels.len() != columns.len() {
            let message = format!("has {} labels for the {} label columns", labels.len(), columns.len());
            r.problem("task.labels", message);
        }
    }
}

fn check_labels(labels: &[String], kind: TaskType, r: &mut Reader<'_>) {
    let mut seen = HashMap::new();
    for (idx, label) in labels.iter().enumerate() {
        if let Some(first) = seen.insert(label.as_str(), idx + 1) {
            r.problem("task.labels", format!("has \"{label}\" twice: items {first} and {}", idx + 1));
        }
        if label.len() > limits::MAX_LABEL_BYTES {
            let most = limits::MAX_LABEL_BYTES;
            r.problem("task.labels", format!("item {} is longer than {most} bytes", idx + 1));
        }
    }
    if labels.len() > limits::MAX_LABELS {
        let (found, most) = (labels.len(), limits::MAX_LABELS);
        r.problem("task.labels", format!("must have at most {most} labels, not {found}"));
    }
    if kind == TaskType::SingleLabel && labels.len() < 2 {
        let hint = "one label can't be told from others; for yes/no give both, for numbers set task.type = \"regression\"";
        r.problem("task.labels", format!("must have at least 2 labels: {hint}"));
    }
}

fn check_metric(spec: &RunSpec, r: &mut Reader<'_>) {
    let Some(metric) = spec.eval.metric.as_deref() else { return };
    let kind = spec.task.kind;
    let names = metric_names(kind);
    let of_label = metric.strip_prefix("f1_").filter(|_| kind != TaskType::Regression);
    // Without a list of labels the data decides whether the label exists.
    let label_known = |label: &str| match &spec.task.labels {
        Some(labels) => labels.iter().any(|l| l == label),
        None => !label.is_empty(),
    };
    if names.contains(&metric) || of_label.is_some_and(label_known) {
        return;
    }
    let near = nearest(metric, names.iter().copied());
    let near = near.map(|n| format!("; did you mean \"{n}\"?")).unwrap_or_default();
    let also = if kind == TaskType::Regression { "" } else { " and f1_<label>" };
    r.problem(
        "eval.metric",
        format!("\"{metric}\" is not a metric of a {kind} task: {}{also}{near}", names.join(", ")),
    );
}

fn check_data(spec: &RunSpec, r: &mut Reader<'_>) {
    let data = &spec.data;
    if r.has("data.eval") && r.has("data.eval_fraction") {
        r.problem("data.eval_fraction", "excludes `data.eval`: remove one of them");
    }
    if let Some(share) = data.eval_fraction
        && !(share > 0.0 && share < 1.0)
    {
        r.problem("data.eval_fraction", format!("must be above 0 and below 1, not {share}"));
    }
    let mut columns: Vec<(&str, &str)> = vec![("data.text", &data.text)];
    columns.extend(data.text_pair.as_deref().map(|pair| ("data.text_pair", pair)));
    columns.extend(data.label.names().iter().map(|label| ("data.label", label.as_str())));
    for (idx, (key, column)) in columns.iter().enumerate() {
        if let Some((first, _)) = columns[..idx].iter().find(|(_, earlier)| earlier == column) {
            r.problem(key, format!("names the column \"{column}\", and so does `{first}`"));
        }
    }
    if data.text_pair.is_none() && r.has("data.truncation") {
        r.problem("data.truncation", "is a rule for pairs; give `data.text_pair` or remove it");
    }
    let lists = [("data.eval", data.eval.as_deref()), ("data.test", data.test.as_deref())];
    for (key, list) in lists {
        if let Some(file) = list.unwrap_or(&[]).iter().find(|file| data.train.contains(file)) {
            r.problem(key, format!("has {}, which is also in `data.train`", file.display()));
        }
    }
}

fn check_length(spec: &RunSpec, r: &mut Reader<'_>) {
    match (r.has("train.epochs"), r.has("train.max_steps")) {
        (true, true) => r.problem("train.max_steps", "excludes `train.epochs`: remove one of them"),
        (false, false) => r.problem("train.epochs", "or `train.max_steps` is required: how long to train"),
        _ => {}
    }
    if let Some(epochs) = spec.train.epochs
        && !(epochs > 0.0 && epochs <= limits::MAX_EPOCHS)
    {
        r.problem(
            "train.epochs",
            format!("must be above 0 and at most {}, not {epochs}", limits::MAX_EPOCHS),
        );
    }
    if r.has("train.warmup_steps") && r.has("train.warmup_ratio") {
        r.problem("train.warmup_ratio", "excludes `train.warmup_steps`: remove one of them");
    }
    if let Some(ratio) = spec.train.warmup_ratio
        && !(0.0..1.0).contains(&ratio)
    {
        r.problem("train.warmup_ratio", format!("must be at least 0 and below 1, not {ratio}"));
    }
    if let (Some(warmup), Some(steps)) = (spec.train.warmup_steps, spec.train.max_steps)
        && warmup > steps
    {
        r.problem("train.warmup_steps", format!("is {warmup}, more than the {steps} steps of the run"));
    }
}

fn check_optimizer(spec: &RunSpec, r: &mut Reader<'_>) {
    let train = &spec.train;
    for (key, value) in [("train.learning_rate", train.learning_rate), ("train.epsilon", train.epsilon)] {
        if value <= 0.0 {
            r.problem(key, format!("must be above 0, not {value}"));
        }
    }
    if train.learning_rate > 1.0 {
        r.problem("train.learning_rate", format!("must be at most 1, not {}", train.learning_rate));
    }
    for (key, value) in [("train.beta1", train.beta1), ("train.beta2", train.beta2)] {
        if !(0.0..1.0).contains(&value) {
            r.problem(key, format!("must be at least 0 and below 1, not {value}"));
        }
    }
    let norm = train.max_grad_norm.unwrap_or(0.0);
    for (key, value) in [("train.weight_decay", train.weight_decay), ("train.max_grad_norm", norm)] {
        if value < 0.0 {
            r.problem(key, format!("must be at least 0, not {value}"));
        }
    }
}
