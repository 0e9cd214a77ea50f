//! What an evaluation says about a model: exact, streaming, mergeable.
//!
//! An [`Accumulator`] takes logits and targets batch by batch, in any order and any split; its [`Report`] is a
//! function of the set of rows alone. Classification keeps integer counts, so nothing is rounded before the last
//! division; regression keeps the pairs, because ranks need them.
//!
//! Names are unambiguous: `f1_macro`, `f1_micro`, `f1_weighted` and `f1_<label>`, never a bare `f1`. A label that
//! occurs neither in the truth nor in the predictions has no precision, recall or F1 (`null`) and takes no part in
//! averages; it is still listed with its support of 0. A correlation that does not exist is `null`, never NaN.

mod accumulator;
mod confusion;
mod counts;
mod multi_label;
mod name;
mod regression;
mod report;

#[cfg(test)]
mod golden;

pub use accumulator::Accumulator;
pub use confusion::{Confusion, argmax};
pub use counts::LabelCounts;
pub use multi_label::{MultiLabelCounts, logit_of};
pub use name::{Goal, Metric, MetricError};
pub use regression::ValuePairs;
pub use report::{LabelReport, MultiLabelReport, RegressionReport, Report, SingleLabelReport, TargetReport};
