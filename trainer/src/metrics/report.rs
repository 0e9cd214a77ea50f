//! The numbers of one evaluation, as they are stored, compared and shown.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Metric;
use super::confusion::Confusion;
use super::counts::{LabelCounts, f1_macro, f1_micro, f1_weighted};
use super::multi_label::MultiLabelCounts;
use super::regression::ValuePairs;

/// All numbers of one evaluation; `None` (JSON `null`) where a number does not exist.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Report {
    /// One class per row.
    SingleLabel(SingleLabelReport),
    /// Any number of labels per row.
    MultiLabel(MultiLabelReport),
    /// Numbers.
    Regression(RegressionReport),
}

/// Numbers of a single-label task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SingleLabelReport {
    /// Evaluated rows.
    pub rows: u64,
    /// Mean loss of a row.
    pub loss: Option<f64>,
    /// Share of right rows.
    pub accuracy: Option<f64>,
    /// Mean F1 of the labels that occur.
    pub f1_macro: Option<f64>,
    /// F1 of all decisions together; equals accuracy.
    pub f1_micro: Option<f64>,
    /// Mean F1 weighted by support.
    pub f1_weighted: Option<f64>,
    /// Matthews correlation coefficient.
    pub mcc: Option<f64>,
    /// Rows whose logits were not finite; they count as wrong.
    pub unpredicted: u64,
    /// The label given to every row although the truth has several (a collapsed model).
    pub only_prediction: Option<String>,
    /// Every label, in the model's order.
    pub labels: Vec<LabelReport>,
    /// Rows by true label, then by predicted label.
    pub confusion: Vec<Vec<u64>>,
}

/// Numbers of a multi-label task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MultiLabelReport {
    /// Evaluated rows.
    pub rows: u64,
    /// Mean loss of a row.
    pub loss: Option<f64>,
    /// Share of rows with every label right.
    pub subset_accuracy: Option<f64>,
    /// Mean F1 of the labels that occur.
    pub f1_macro: Option<f64>,
    /// F1 of all decisions together.
    pub f1_micro: Option<f64>,
    /// Mean F1 weighted by support.
    pub f1_weighted: Option<f64>,
    /// Rows whose logits were not finite; they got no label.
    pub unpredicted: u64,
    /// Whether all rows got the same labels although the truth varies (a collapsed model).
    pub constant: bool,
    /// Every label, in the model's order.
    pub labels: Vec<LabelReport>,
}

/// Numbers of a regression task: errors are means over rows and targets, correlations means over targets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegressionReport {
    /// Evaluated rows.
    pub rows: u64,
    /// Mean loss of a row.
    pub loss: Option<f64>,
    /// Mean squared error.
    pub mse: Option<f64>,
    /// Root of the mean squared error.
    pub rmse: Option<f64>,
    /// Mean absolute error.
    pub mae: Option<f64>,
    /// Linear correlation.
    pub pearson: Option<f64>,
    /// Rank correlation, ties averaged.
    pub spearman: Option<f64>,
    /// Rows with a prediction that was not finite.
    pub unpredicted: u64,
    /// Whether all predictions are the same although the truth varies (a collapsed model).
    pub constant: bool,
    /// Every target, in column order.
    pub targets: Vec<TargetReport>,
}

/// Numbers of one label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabelReport {
    /// Its name.
    pub label: String,
    /// Right ones among the predicted ones.
    pub precision: Option<f64>,
    /// Found ones among the true ones.
    pub recall: Option<f64>,
    /// Harmonic mean of both.
    pub f1: Option<f64>,
    /// Rows that have the label.
    pub support: u64,
    /// Rows that got the label.
    pub predicted: u64,
}

/// Numbers of one regression target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetReport {
    /// Its name.
    pub target: String,
    /// Mean squared error.
    pub mse: Option<f64>,
    /// Mean absolute error.
    pub mae: Option<f64>,
    /// Linear correlation.
    pub pearson: Option<f64>,
    /// Rank correlation, ties averaged.
    pub spearman: Option<f64>,
}

impl Report {
    /// Evaluated rows.
    pub fn rows(&self) -> u64 {
        match self {
            Self::SingleLabel(r) => r.rows,
            Self::MultiLabel(r) => r.rows,
            Self::Regression(r) => r.rows,
        }
    }

    /// Value of a metric; `None` if it does not exist here.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::F1Label(label) => self.labels().get(label)?.f1,
            metric => self.summary().into_iter().find(|(m, _)| *m == metric)?.1,
        }
    }

    /// The metrics of the whole set, most telling first.
    pub fn summary(&self) -> Vec<(Metric, Option<f64>)> {
        match self {
            Self::SingleLabel(r) => vec![
                (Metric::Accuracy, r.accuracy),
                (Metric::F1Macro, r.f1_macro),
                (Metric::F1Micro, r.f1_micro),
                (Metric::F1Weighted, r.f1_weighted),
                (Metric::Mcc, r.mcc),
                (Metric::Loss, r.loss),
            ],
            Self::MultiLabel(r) => vec![
                (Metric::F1Macro, r.f1_macro),
                (Metric::F1Micro, r.f1_micro),
                (Metric::F1Weighted, r.f1_weighted),
                (Metric::SubsetAccuracy, r.subset_accuracy),
                (Metric::Loss, r.loss),
            ],
            Self::Regression(r) => vec![
                (Metric::Mse, r.mse),
                (Metric::Rmse, r.rmse),
                (Metric::Mae, r.mae),
                (Metric::Pearson, r.pearson),
                (Metric::Spearman, r.spearman),
                (Metric::Loss, r.loss),
            ],
        }
    }

    /// Every label of a classification; empty for regression.
    pub fn labels(&self) -> &[LabelReport] {
        match self {
            Self::SingleLabel(r) => &r.labels,
            Self::MultiLabel(r) => &r.labels,
            Self::Regression(_) => &[],
        }
    }

    /// What a person should know before trusting the numbers: collapsed predictions, rows that were not finite.
    pub fn notices(&self) -> Vec<String> {
        let (collapse, unpredicted) = match self {
            Self::SingleLabel(r) => (
                r.only_prediction.as_ref().map(|label| format!("every row is predicted as {label:?}")),
                r.unpredicted,
            ),
            Self::MultiLabel(r) => {
                (r.constant.then(|| "every row gets the same labels".to_owned()), r.unpredicted)
            }
            Self::Regression(r) => {
                (r.constant.then(|| "every row gets the same value".to_owned()), r.unpredicted)
            }
        };
        let lost = (unpredicted > 0)
            .then(|| format!("{unpredicted} of {} rows have an output that is not finite", self.rows()));
        collapse.into_iter().chain(lost).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (metric, value) in self.summary() {
            match value {
                Some(value) => write!(f, "{} {value:.4}, ", metric.name(&[]))?,
                None => write!(f, "{} -, ", metric.name(&[]))?,
            }
        }
        write!(f, "{} rows", self.rows())
    }
}

/// A mean that exists only over at least one row.
fn mean(loss_sum: f64, rows: u64) -> Option<f64> {
    (rows > 0).then(|| loss_sum / rows as f64).filter(|x| x.is_finite())
}

fn label_reports(names: &[String], counts: &[LabelCounts]) -> Vec<LabelReport> {
    let report = |(name, c): (&String, &LabelCounts)| LabelReport {
        label: name.clone(),
        precision: c.precision(),
        recall: c.recall(),
        f1: c.f1(),
        support: c.support(),
        predicted: c.predicted(),
    };
    names.iter().zip(counts).map(report).collect()
}

pub(super) fn single_label(names: &[String], counts: &Confusion, loss_sum: f64) -> Report {
    let labels = counts.labels();
    let rows = counts.rows();
    Report::SingleLabel(SingleLabelReport {
        rows,
        loss: mean(loss_sum, rows),
        accuracy: counts.accuracy(),
        f1_macro: f1_macro(&labels),
        f1_micro: f1_micro_of_rows(counts),
        f1_weighted: f1_weighted(&labels),
        mcc: counts.mcc(),
        unpredicted: counts.unpredicted(),
        only_prediction: counts.only_prediction().and_then(|c| names.get(c).cloned()),
        labels: label_reports(names, &labels),
        confusion: counts.matrix(),
    })
}

/// Micro F1 of rows that each have and get one label is accuracy, also where a row got none.
fn f1_micro_of_rows(counts: &Confusion) -> Option<f64> {
    if counts.unpredicted() == 0 { f1_micro(&counts.labels()) } else { counts.accuracy() }
}

pub(super) fn multi_label(names: &[String], counts: &MultiLabelCounts, loss_sum: f64) -> Report {
    let (labels, rows) = (counts.labels(), counts.rows());
    Report::MultiLabel(MultiLabelReport {
        rows,
        loss: mean(loss_sum, rows),
        subset_accuracy: counts.subset_accuracy(),
        f1_macro: f1_macro(labels),
        f1_micro: f1_micro(labels),
        f1_weighted: f1_weighted(labels),
        unpredicted: counts.unpredicted(),
        constant: counts.is_constant(),
        labels: label_reports(names, labels),
    })
}

pub(super) fn regression(names: &[String], pairs: &ValuePairs, loss_sum: f64) -> Report {
    let scores = pairs.scores();
    let rows = pairs.rows();
    // Every target has the same rows, so the mean over targets is the mean over all values.
    let over_targets = |f: fn(&super::regression::ValueScores) -> Option<f64>| {
        let values: Option<Vec<f64>> = scores.iter().map(f).collect();
        values.filter(|v| !v.is_empty()).map(|v| v.iter().sum::<f64>() / v.len() as f64)
    };
    let mse = over_targets(|s| s.mse);
    let target = |(name, s): (&String, &super::regression::ValueScores)| TargetReport {
        target: name.clone(),
        mse: s.mse,
        mae: s.mae,
        pearson: s.pearson,
        spearman: s.spearman,
    };
    Report::Regression(RegressionReport {
        rows,
        loss: mean(loss_sum, rows),
        mse,
        rmse: mse.map(f64::sqrt),
        mae: over_targets(|s| s.mae),
        pearson: over_targets(|s| s.pearson),
        spearman: over_targets(|s| s.spearman),
        unpredicted: pairs.unpredicted(),
        constant: pairs.is_constant(),
        targets: names.iter().zip(&scores).map(target).collect(),
    })
}
