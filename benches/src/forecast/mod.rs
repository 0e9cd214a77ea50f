//! Forecast: what more nodes and faster links would give, from a model fitted to measured points.
//!
//! The error bar is measured, not assumed: every point with a network is predicted from the others.

mod model;
mod solve;

use serde::{Deserialize, Serialize};

pub use model::{Fitted, LEAST_POINTS, Measured, Setting, moved_bytes};
use model::{fit_links, fit_steps, is_determined, steps};

use crate::schema::Point;

/// Bandwidths that are predicted, in 1e9 bit/s.
pub const GBITS: [f64; 3] = [10.0, 25.0, 100.0];
/// Most nodes that are predicted.
const MOST_NODES: u32 = 1024;

/// Model, error bar and predictions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// The fitted model.
    pub fitted: Fitted,
    /// The work that was fitted.
    pub work: Work,
    /// Each point with a network, predicted from the others.
    pub held_out: Vec<HeldOut>,
    /// The largest relative error of those: the error bar.
    pub error: f64,
    /// The predictions.
    pub predictions: Vec<Prediction>,
    /// What the predictions take for granted.
    pub assumptions: Vec<String>,
}

/// The work of a step, to carry the model over to another run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Compute threads of a rank.
    pub threads: f64,
    /// Rows of a rank in a step.
    pub rows: f64,
    /// Tokens of a rank in a step.
    pub tokens: f64,
    /// Bytes of f32 gradients outside the word table.
    pub summed_bytes: f64,
    /// Bytes of the word table's gradients.
    pub table_bytes: f64,
    /// Bytes of a row of the word table.
    pub row_bytes: f64,
    /// Floating-point operations per token.
    pub flops_per_token: f64,
}

/// A point that was predicted from the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Which.
    pub name: String,
    /// Median seconds of a step.
    pub measured_s: f64,
    /// Predicted seconds.
    pub predicted_s: f64,
    /// Predicted over measured, minus 1.
    pub error: f64,
}

/// A prediction.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Nodes.
    pub nodes: u32,
    /// Bandwidth of a node's link in 1e9 bit/s.
    pub gbit: f64,
    /// Whether sums hide behind backward.
    pub overlap: bool,
    /// Whether only touched rows of the word table are summed.
    pub sparse: bool,
    /// Whether gradients travel in bf16.
    pub bf16_wire: bool,
    /// Whether rows of a step grow with the nodes.
    pub weak: bool,
    /// Seconds of a step.
    pub step_s: f64,
    /// Rows per second of all nodes.
    pub samples_per_s: f64,
    /// Of nodes times one node's rate.
    pub efficiency: f64,
}

impl Prediction {
    /// The one that is what Muster does today: overlap, touched rows, f32 on the wire, rows that grow.
    pub fn is_default(&self) -> bool {
        self.overlap && self.sparse && !self.bf16_wire && self.weak
    }
}

/// Fits the model to measured points and predicts.
///
/// # Errors
/// Why the points don't determine a model.
pub fn forecast(points: &[Point], flops_per_token: f64) -> Result<Forecast, String> {
    let measured = steps(points);
    let linked = measured.iter().filter(|m| m.setting.nodes > 1.0).count();
    if !is_determined(&measured) {
        return Err(format!(
            "a forecast needs {LEAST_POINTS} points with a network of known bandwidth, this has {linked}: add --emulate \
             nodes=2,gbit=1 and the like, or --coordinator with --gbit"
        ));
    }
    let base = points
        .iter()
        .find(|point| point.dimension("ranks") == 1.0 && point.library == "muster" && point.series != "sum");
    let Some(base) = base else { return Err("a forecast needs a point of one rank".into()) };
    let work = Work {
        threads: base.dimension("threads"),
        rows: base.dimension("rows"),
        tokens: base.dimension("tokens"),
        summed_bytes: base.dimension("summed_bytes"),
        table_bytes: base.dimension("table_bytes"),
        row_bytes: base.dimension("row_bytes"),
        flops_per_token,
    };
    let links = fit_links(points);
    let Some(fitted) = fit_steps(&measured, links) else {
        return Err("the points don't determine a model".into());
    };
    let held_out = hold_out(&measured, links);
    let error = held_out.iter().map(|point| point.error.abs()).fold(0.0, f64::max);
    let assumptions = vec![
        format!("a node is what one rank was here: {} compute threads on cores of their own", work.threads),
        "every link has its full bandwidth at once: no oversubscribed switch".into(),
        format!("latency {:.0} us as measured here, {} us per message", fitted.alpha_us, model::OVERHEAD_US),
        "bf16 on the wire halves the bytes of gradients; it is a forecast, not a key of the run file".into(),
    ];
    Ok(Forecast { fitted, work, held_out, error, predictions: predict(&fitted, &work), assumptions })
}

/// Predicts every point with a network from all others.
fn hold_out(measured: &[Measured], links: (f64, f64)) -> Vec<HeldOut> {
    let mut found = Vec::new();
    for (index, out) in measured.iter().enumerate().filter(|(_, m)| m.setting.nodes > 1.0) {
        let others: Vec<Measured> =
            measured.iter().enumerate().filter(|&(i, _)| i != index).map(|(_, m)| m.clone()).collect();
        let Some(fitted) = fit_steps(&others, links) else { continue };
        let predicted_s = fitted.step_s(&out.setting);
        let error = predicted_s / out.step_s - 1.0;
        found.push(HeldOut { name: out.name.clone(), measured_s: out.step_s, predicted_s, error });
    }
    found
}

/// All predictions for a piece of work.
pub fn predict(fitted: &Fitted, work: &Work) -> Vec<Prediction> {
    let mut all = Vec::new();
    let nodes: Vec<u32> = (1..=MOST_NODES.ilog2()).map(|power| 1 << power).collect();
    for (gbit, choice) in GBITS.into_iter().flat_map(|gbit| (0..16_u32).map(move |choice| (gbit, choice))) {
        let flag = |bit: u32| choice >> bit & 1 == 0;
        let (overlap, sparse, bf16_wire, weak) = (flag(0), flag(1), !flag(2), flag(3));
        for &nodes in &nodes {
            let rows = if weak { work.rows } else { work.rows / f64::from(nodes) };
            // A rank without a row only waits: such a split is no use.
            if rows < 1.0 {
                continue;
            }
            all.push(one(
                fitted,
                work,
                Prediction {
                    nodes,
                    gbit,
                    overlap,
                    sparse,
                    bf16_wire,
                    weak,
                    step_s: 0.0,
                    samples_per_s: 0.0,
                    efficiency: 0.0,
                },
                rows,
            ));
        }
    }
    all
}

fn one(fitted: &Fitted, work: &Work, wanted: Prediction, rows: f64) -> Prediction {
    let nodes = f64::from(wanted.nodes);
    let tokens = work.tokens * rows / work.rows.max(1.0);
    let half = if wanted.bf16_wire { 0.5 } else { 1.0 };
    // As the runtime chooses in every step: rows, or the whole table if that is less.
    let table = 2.0 * (nodes - 1.0) / nodes * work.table_bytes;
    let by_rows = (nodes - 1.0) * tokens * work.row_bytes;
    let sends_rows = wanted.sparse && by_rows < table;
    let setting = Setting {
        nodes,
        gbit: wanted.gbit,
        crowd: 1.0,
        tokens,
        overlap: wanted.overlap,
        summed_bytes: half * (work.summed_bytes + if sends_rows { 0.0 } else { work.table_bytes }),
        row_bytes: if sends_rows { half * tokens * work.row_bytes } else { 0.0 },
    };
    let step_s = fitted.step_s(&setting);
    let alone = fitted.step_s(&Setting { nodes: 1.0, tokens: work.tokens, ..setting });
    let samples_per_s = nodes * rows / step_s.max(1e-12);
    let efficiency = samples_per_s / (nodes * work.rows / alone.max(1e-12));
    Prediction { step_s, samples_per_s, efficiency, ..wanted }
}

/// The model carried over to another run: compute goes by floating-point operations, the fixed part by parameters.
pub fn carry(forecast: &Forecast, to: &Work) -> (Fitted, Vec<Prediction>) {
    let from = &forecast.work;
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 1.0 };
    let size = ratio(to.summed_bytes + to.table_bytes, from.summed_bytes + from.table_bytes);
    let fitted = Fitted {
        fixed_s: forecast.fitted.fixed_s * size,
        together_s: forecast.fitted.together_s * size,
        token_s: forecast.fitted.token_s * ratio(to.flops_per_token, from.flops_per_token),
        ..forecast.fitted
    };
    (fitted, predict(&fitted, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Better, Metric};

    const TRUTH: Fitted = Fitted {
        alpha_us: 40.0,
        wire_factor: 1.05,
        cpu_ns_per_byte: 0.8,
        fixed_s: 0.2,
        together_s: 0.01,
        token_s: 1.5e-3,
        overlap: 0.6,
    };

    /// Points of a machine that behaves as the model says, within `noise`.
    fn points(noise: f64) -> Vec<Point> {
        let mut points = Vec::new();
        let mut wiggle = 0.0;
        let mut add = |series: &str, ranks: f64, gbit: f64, tokens: f64| {
            let crowd = (ranks / 2.0).ceil().max(1.0);
            let setting = Setting {
                nodes: ranks,
                gbit,
                crowd,
                tokens: tokens / ranks,
                overlap: true,
                summed_bytes: 8.8e7,
                row_bytes: 1540.0 * tokens / ranks,
            };
            wiggle += 1.0;
            let noise = 1.0 + noise * f64::sin(7.0 * wiggle);
            let seconds = TRUTH.step_s(&setting) * noise;
            let sums = moved_bytes(&setting) * TRUTH.cpu_ns_per_byte * 1e-9;
            let together = if ranks > 1.0 { TRUTH.together_s } else { 0.0 };
            let update = crowd * (0.4 * TRUTH.fixed_s + together) * noise;
            let compute = crowd * (0.6 * TRUTH.fixed_s + setting.tokens * TRUTH.token_s + sums) * noise;
            points.push(
                Point::new(series, &format!("{ranks} at {gbit}"), "muster")
                    .dim("ranks", ranks)
                    .dim("nodes", ranks)
                    .dim("gbit", gbit)
                    .dim("tokens", tokens)
                    .dim("crowd", crowd)
                    .dim("rows", 32.0)
                    .dim("threads", 1.0)
                    .dim("summed_bytes", 8.8e7)
                    .dim("table_bytes", 1.97e8)
                    .dim("row_bytes", 1540.0)
                    .metric(Metric::new("step_s", "s", Better::Lower, vec![vec![seconds]]))
                    .metric(Metric::new("compute_s", "s", Better::Neither, vec![vec![compute]]))
                    .metric(Metric::new("update_s", "s", Better::Neither, vec![vec![update]])),
            );
        };
        add("strong", 1.0, 0.0, 520.0);
        for (ranks, gbit) in [(2.0, 1.0), (2.0, 10.0), (4.0, 1.0), (4.0, 10.0)] {
            add("strong", ranks, gbit, 520.0);
            add("weak", ranks, gbit, 520.0 * ranks);
        }
        points.extend(all_sums());
        points
    }

    fn all_sums() -> Vec<Point> {
        let mut found = Vec::new();
        for (ranks, gbit) in [(2.0, 1.0), (2.0, 10.0), (4.0, 1.0), (4.0, 10.0)] {
            for bytes in [1024.0, 1_048_576.0, 26_214_400.0] {
                let moved = 2.0 * (ranks - 1.0) / ranks * bytes;
                let crowd = (ranks / 2.0_f64).ceil();
                let us = 2.0 * (TRUTH.alpha_us + (ranks - 1.0) * 4.0)
                    + moved * (TRUTH.wire_factor * 8.0 / gbit + crowd * 1.1) / 1e3;
                push_sum(&mut found, ranks, gbit, bytes, us);
            }
        }
        found
    }

    fn push_sum(into: &mut Vec<Point>, ranks: f64, gbit: f64, bytes: f64, us: f64) {
        into.push(
            Point::new("sum", &format!("{bytes} {ranks} {gbit}"), "muster")
                .dim("ranks", ranks)
                .dim("gbit", gbit)
                .dim("bytes", bytes)
                .dim("crowd", (ranks / 2.0_f64).ceil())
                .metric(Metric::new("time_us", "us", Better::Lower, vec![vec![us]])),
        );
    }

    #[test]
    fn exact_points_give_back_the_model() {
        let found = forecast(&points(0.0), 1.4e8).expect("determined");
        let close = |a: f64, b: f64, tolerance: f64| (a / b - 1.0).abs() < tolerance;
        let fitted = found.fitted;
        assert!(
            close(fitted.alpha_us, TRUTH.alpha_us, 0.01)
                && close(fitted.wire_factor, TRUTH.wire_factor, 0.01),
            "{fitted:?}"
        );
        assert!(
            close(fitted.token_s, TRUTH.token_s, 0.02) && close(fitted.fixed_s, TRUTH.fixed_s, 0.02),
            "{fitted:?}"
        );
        assert!(found.error < 0.01, "{:?}", found.held_out);
        assert_eq!(found.held_out.len(), 8);
    }

    #[test]
    fn noise_of_three_percent_stays_within_the_promised_error() {
        let found = forecast(&points(0.03), 1.4e8).expect("determined");
        assert!(found.error < 0.15, "{:?}", found.held_out);
    }

    #[test]
    fn predictions_go_the_right_way() {
        let found = forecast(&points(0.0), 1.4e8).expect("determined");
        let at = |nodes, gbit, pick: &dyn Fn(&Prediction) -> bool| {
            *found
                .predictions
                .iter()
                .find(|p| p.nodes == nodes && p.gbit == gbit && pick(p))
                .expect("predicted")
        };
        let default = |p: &Prediction| p.is_default();
        let plain = at(16, 10.0, &default);
        let bare = |p: &Prediction| !p.overlap && p.sparse && !p.bf16_wire && p.weak;
        assert!(at(16, 25.0, &bare).step_s < at(16, 10.0, &bare).step_s && plain.efficiency < 1.0);
        assert!(at(16, 25.0, &default).step_s <= plain.step_s, "both links may be hidden");
        assert!(at(16, 10.0, &|p| !p.overlap && p.sparse && !p.bf16_wire && p.weak).step_s > plain.step_s);
        assert!(at(16, 10.0, &|p| p.overlap && !p.sparse && !p.bf16_wire && p.weak).step_s > plain.step_s);
        assert!(at(16, 10.0, &|p| p.overlap && p.sparse && p.bf16_wire && p.weak).step_s < plain.step_s);
        assert_eq!(found.predictions.iter().map(|p| p.nodes).max(), Some(1024));
        // Strong scaling ends where a rank has no row left.
        assert_eq!(found.predictions.iter().filter(|p| !p.weak).map(|p| p.nodes).max(), Some(32));
    }

    #[test]
    fn another_run_is_scaled_by_its_work_and_too_few_points_are_refused() {
        let found = forecast(&points(0.0), 1.4e8).expect("determined");
        let double = Work { flops_per_token: 2.8e8, ..found.work };
        let (fitted, _) = carry(&found, &double);
        assert!(
            (fitted.token_s / found.fitted.token_s - 2.0).abs() < 1e-9
                && fitted.fixed_s == found.fitted.fixed_s
        );
        let refusal = forecast(&points(0.0)[..4], 1.0).expect_err("three points with a network");
        assert!(refusal.contains("needs 4 points") && refusal.contains("--emulate"), "{refusal}");
    }
}
