//! `muster plan --measured`: what a scaling benchmark says about this run on more nodes.

use std::path::Path;

use anyhow::{Context, ensure};
use muster_bench::forecast::{Fitted, Forecast, Prediction, Work, carry};
use muster_bench::report::{forecast_table, markdown_table};
use muster_bench::schema::{BenchFile, Kind};
use muster_proto::RunSpec;
use serde::Serialize;

use super::Printed;

/// A forecast carried over to the planned run.
#[derive(Debug, Serialize)]
pub struct Carried {
    /// The file.
    measured: String,
    /// What was measured there.
    of: String,
    /// The model for this run.
    fitted: Fitted,
    /// Largest error on held-out points of the file.
    error: f64,
    predictions: Vec<Prediction>,
    assumptions: Vec<String>,
}

/// Reads a scaling benchmark and carries its model over to the run.
///
/// # Errors
/// A file that can't be read or has no forecast.
pub(super) fn carried(path: &Path, spec: &RunSpec, plan: &Printed<'_>) -> anyhow::Result<Carried> {
    let file = BenchFile::read(path)?;
    let name = path.display();
    ensure!(
        file.kind == Kind::Scaling,
        "{name} is no scaling benchmark: make one with muster bench scaling --output"
    );
    let forecast = file.forecast.with_context(|| {
        let why = file.settings.more.get("no forecast").cloned().unwrap_or_default();
        format!("{name} has no forecast: {why}")
    })?;
    let work = Work {
        rows: spec.train.global_batch as f64,
        tokens: plan.tokens_per_step,
        summed_bytes: plan.gradient_bytes.saturating_sub(plan.embedding_bytes) as f64,
        table_bytes: plan.embedding_bytes as f64,
        row_bytes: plan.embedding_row_bytes as f64,
        flops_per_token: plan.flops / plan.tokens_per_step.max(1.0),
        ..forecast.work
    };
    let (fitted, predictions) = carry(&forecast, &work);
    let mut assumptions = forecast.assumptions;
    assumptions
        .push(format!("each node takes {} rows of a step: a global batch of {0} times the nodes", work.rows));
    let precision = &file.settings.precision;
    if precision != plan.precision {
        assumptions.push(format!(
            "measured in {precision}, planned in {}: the rates are off by their ratio",
            plan.precision
        ));
    }
    Ok(Carried {
        measured: name.to_string(),
        of: file.settings.workload,
        fitted,
        error: forecast.error,
        predictions,
        assumptions,
    })
}

impl Carried {
    /// The table with what it takes for granted.
    pub(super) fn text(&self) -> String {
        let forecast = Forecast {
            fitted: self.fitted,
            work: Work {
                threads: 0.0,
                rows: 0.0,
                tokens: 0.0,
                summed_bytes: 0.0,
                table_bytes: 0.0,
                row_bytes: 0.0,
                flops_per_token: 0.0,
            },
            held_out: Vec::new(),
            error: self.error,
            predictions: self.predictions.clone(),
            assumptions: Vec::new(),
        };
        let table = forecast_table(&forecast);
        let mut text = format!(
            "\n{}, from {} ({})\n\n{}\n",
            table.title,
            self.measured,
            self.of,
            markdown_table(&table)
        );
        self.assumptions.iter().for_each(|assumption| text.push_str(&format!("* {assumption}\n")));
        text
    }
}
