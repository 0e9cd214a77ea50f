//! Names of metrics, and which way is better.

use muster_proto::run_spec::TaskType;

/// A metric that can choose the best model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Mean loss of a row.
    Loss,
    /// Share of right rows.
    Accuracy,
    /// Share of rows with every label right.
    SubsetAccuracy,
    /// Mean F1 of the labels that occur.
    F1Macro,
    /// F1 of all decisions together.
    F1Micro,
    /// Mean F1 weighted by support.
    F1Weighted,
    /// F1 of the label with this index.
    F1Label(usize),
    /// Matthews correlation coefficient.
    Mcc,
    /// Mean squared error.
    Mse,
    /// Root of the mean squared error.
    Rmse,
    /// Mean absolute error.
    Mae,
    /// Linear correlation.
    Pearson,
    /// Rank correlation.
    Spearman,
}

/// Which of two values is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// The larger one.
    Highest,
    /// The smaller one.
    Lowest,
}

impl Goal {
    /// Tells whether `new` is better than `old`; equal is not better.
    pub fn improves(self, new: f64, old: f64) -> bool {
        match self {
            Self::Highest => new > old,
            Self::Lowest => new < old,
        }
    }
}

/// A metric name that means nothing for the task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown metric {name:?} for a {task} task; known are {}", known.join(", "))]
pub struct MetricError {
    /// The name as it was given.
    pub name: String,
    /// The task, as the run file spells it.
    pub task: &'static str,
    /// Every name that would do.
    pub known: Vec<String>,
}

impl MetricError {
    /// Says which name was probably meant.
    pub fn hint(&self) -> Option<String> {
        let meant = match self.name.as_str() {
            "f1" if self.task == "regression" => return None,
            "f1" => "plain \"f1\" is ambiguous: choose f1_macro, f1_micro, f1_weighted or f1_<label>",
            "accuracy" if self.task == "multi_label" => {
                "with several labels per row, subset_accuracy counts rows with every label right"
            }
            _ => return None,
        };
        Some(meant.to_owned())
    }
}

const SINGLE_LABEL: &[Metric] =
    &[Metric::Accuracy, Metric::F1Macro, Metric::F1Micro, Metric::F1Weighted, Metric::Mcc, Metric::Loss];
const MULTI_LABEL: &[Metric] =
    &[Metric::F1Macro, Metric::F1Micro, Metric::F1Weighted, Metric::SubsetAccuracy, Metric::Loss];
const REGRESSION: &[Metric] =
    &[Metric::Mse, Metric::Rmse, Metric::Mae, Metric::Pearson, Metric::Spearman, Metric::Loss];

impl Metric {
    /// Reads a name such as `f1_macro` or `f1_<label>`; the averages win over labels of the same name.
    ///
    /// # Errors
    /// If the task has no such metric; the error lists all it has.
    pub fn parse(name: &str, task: TaskType, labels: &[String]) -> Result<Self, MetricError> {
        let (task, plain) = match task {
            TaskType::SingleLabel => ("single_label", SINGLE_LABEL),
            TaskType::MultiLabel => ("multi_label", MULTI_LABEL),
            TaskType::Regression => ("regression", REGRESSION),
        };
        let per_label = (0..if task == "regression" { 0 } else { labels.len() }).map(Self::F1Label);
        let candidates: Vec<Self> = plain.iter().copied().chain(per_label).collect();
        let found = candidates.iter().copied().find(|metric| metric.name(labels) == name);
        found.ok_or_else(|| MetricError {
            name: name.to_owned(),
            task,
            known: candidates.iter().map(|metric| metric.name(labels)).collect(),
        })
    }

    /// Its name; `labels` name the labels in model order.
    pub fn name(self, labels: &[String]) -> String {
        match self {
            Self::Loss => "loss".into(),
            Self::Accuracy => "accuracy".into(),
            Self::SubsetAccuracy => "subset_accuracy".into(),
            Self::F1Macro => "f1_macro".into(),
            Self::F1Micro => "f1_micro".into(),
            Self::F1Weighted => "f1_weighted".into(),
            Self::F1Label(i) => labels.get(i).map_or_else(|| format!("f1_#{i}"), |l| format!("f1_{l}")),
            Self::Mcc => "mcc".into(),
            Self::Mse => "mse".into(),
            Self::Rmse => "rmse".into(),
            Self::Mae => "mae".into(),
            Self::Pearson => "pearson".into(),
            Self::Spearman => "spearman".into(),
        }
    }

    /// Which way is better.
    pub fn goal(self) -> Goal {
        match self {
            Self::Loss | Self::Mse | Self::Rmse | Self::Mae => Goal::Lowest,
            _ => Goal::Highest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_29_a_bare_f1_is_refused_with_the_names_that_say_which() {
        let labels = ["down".to_owned(), "up".to_owned()];
        let error = Metric::parse("f1", TaskType::SingleLabel, &labels).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown metric \"f1\" for a single_label task; known are accuracy, f1_macro, f1_micro, f1_weighted, \
             mcc, loss, f1_down, f1_up"
        );
        assert!(error.hint().unwrap().contains("f1_macro"));
        assert_eq!(Metric::parse("f1_up", TaskType::SingleLabel, &labels), Ok(Metric::F1Label(1)));
    }

    #[test]
    fn the_run_file_and_the_metrics_know_the_same_names() {
        for (kind, metrics) in [
            (TaskType::SingleLabel, SINGLE_LABEL),
            (TaskType::MultiLabel, MULTI_LABEL),
            (TaskType::Regression, REGRESSION),
        ] {
            let mut ours: Vec<String> = metrics.iter().map(|metric| metric.name(&[])).collect();
            let mut theirs = muster_proto::run_spec::metric_names(kind).to_vec();
            ours.sort();
            theirs.sort();
            assert_eq!(ours, theirs);
            assert!(theirs.contains(&kind.default_metric()));
        }
    }

    #[test]
    fn errors_are_better_when_low_and_scores_when_high() {
        assert!(Metric::Mse.goal().improves(1.0, 2.0));
        assert!(Metric::Mcc.goal().improves(0.2, 0.1));
        assert!(!Metric::Mcc.goal().improves(0.1, 0.1), "equal is not better: the earlier model is kept");
    }
}
