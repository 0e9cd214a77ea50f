//! The cost model of a step, and its fit to measured points.
//!
//! A step of n nodes, `crowd` ranks to a core, on links of g Gbit/s:
//!
//! ```text
//! bytes   F = 2 (n - 1) / n * summed bytes + rows of the word table
//! wire    W = buckets * latency(n) + F * wire_factor * 8 / g
//! compute C = crowd * (fixed + tokens of a rank * token + F * cpu)
//! step      = C + crowd * together + max(0, W - overlap * crowd * tokens * token * 2/3)
//! latency   = 2 (alpha + (n - 1) * overhead), beyond 32 nodes (a ring) 2 (n - 1) (alpha + overhead)
//! ```
//!
//! Sums hide behind backward, two thirds of the compute, as far as `overlap` says; `together` is there for more than one
//! rank. Source of the terms: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, as in `allreduce/src/plan/cost.rs`.
//!
//! Ranks log the parts of their steps, so each term is fitted to the part that it is: forward and backward, the
//! update, and for `overlap` what is left. Fitted to whole steps, one noisy point moved all of them.

use serde::{Deserialize, Serialize};

use super::solve::{Equation, least_squares};
use crate::schema::Point;

/// CPU time of a message at its sender: part of alpha in measurements, and apart where messages add up.
pub const OVERHEAD_US: f64 = 4.0;
/// Largest world that exchanges directly; beyond it sums go around a ring.
const DIRECT_MAX: f64 = 32.0;
/// Bytes of a bucket of gradients.
const BUCKET_BYTES: f64 = 26_214_400.0;
/// Backward's part of forward and backward.
const BACKWARD: f64 = 2.0 / 3.0;
/// Latency where no link was measured, in microseconds: Ethernet with a wake-up.
const ASSUMED_ALPHA_US: f64 = 30.0;
/// Fewest points with a network that determine the model and leave one to hold out.
pub const LEAST_POINTS: usize = 4;

/// A place and the work of a rank there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// Nodes, one rank each.
    pub nodes: f64,
    /// Bandwidth of each node's link in 1e9 bit/s; not used by one node.
    pub gbit: f64,
    /// Ranks that share a core.
    pub crowd: f64,
    /// Tokens of a rank in a step.
    pub tokens: f64,
    /// Whether sums hide behind backward.
    pub overlap: bool,
    /// Bytes that every rank sums as a whole.
    pub summed_bytes: f64,
    /// Bytes of the word table's rows that a rank sends; 0 if the table is summed as a whole.
    pub row_bytes: f64,
}

/// What was fitted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Fitted {
    /// Latency of a message with its wake-up, in microseconds.
    pub alpha_us: f64,
    /// Time on the wire over that of the nominal bandwidth.
    pub wire_factor: f64,
    /// CPU time of sending, receiving and adding a byte, in nanoseconds.
    pub cpu_ns_per_byte: f64,
    /// Seconds of a step that don't depend on its tokens: packing of weights, norm, AdamW.
    pub fixed_s: f64,
    /// Seconds that a step of several ranks has beyond those: the vote, and the proof that their weights are equal.
    /// Files written before it was told apart have none.
    #[serde(default)]
    pub together_s: f64,
    /// Seconds of forward and backward per token.
    pub token_s: f64,
    /// Share of backward that hides sums.
    pub overlap: f64,
}

impl Fitted {
    /// Predicts the seconds of a step.
    pub fn step_s(&self, at: &Setting) -> f64 {
        let compute = at.crowd * (self.fixed_s + at.tokens * self.token_s);
        if at.nodes <= 1.0 {
            return compute;
        }
        let wire = wire_s(self.alpha_us, self.wire_factor, at);
        let hidden =
            if at.overlap { self.overlap * BACKWARD * at.crowd * at.tokens * self.token_s } else { 0.0 };
        let sums = moved_bytes(at) * self.cpu_ns_per_byte * 1e-9;
        compute + at.crowd * (self.together_s + sums) + (wire - hidden).max(0.0)
    }
}

/// Bytes that a node sends in a step, and as many that it receives.
pub fn moved_bytes(at: &Setting) -> f64 {
    if at.nodes <= 1.0 {
        return 0.0;
    }
    2.0 * (at.nodes - 1.0) / at.nodes * at.summed_bytes + (at.nodes - 1.0) * at.row_bytes
}

fn latency_us(alpha_us: f64, nodes: f64) -> f64 {
    if nodes > DIRECT_MAX {
        2.0 * (nodes - 1.0) * (alpha_us + OVERHEAD_US)
    } else {
        2.0 * (alpha_us + (nodes - 1.0) * OVERHEAD_US)
    }
}

fn wire_s(alpha_us: f64, wire_factor: f64, at: &Setting) -> f64 {
    // The first bucket is small, and a step has one more exchange for rows and one for the vote.
    let exchanges = (at.summed_bytes / BUCKET_BYTES).ceil() + 3.0;
    exchanges * latency_us(alpha_us, at.nodes) * 1e-6 + moved_bytes(at) * wire_factor * 8.0 / (at.gbit * 1e9)
}

/// A measured step in its setting.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Name for people.
    pub name: String,
    /// Where.
    pub setting: Setting,
    /// Median seconds.
    pub step_s: f64,
    /// Of it: forward and backward.
    pub compute_s: f64,
    /// Of it: norm, vote, AdamW.
    pub update_s: f64,
}

/// The training points that the model can explain: one rank alone, or nodes with a rank each and links of known
/// bandwidth.
pub fn steps(points: &[Point]) -> Vec<Measured> {
    let is_step = |point: &&Point| {
        let alone = point.dimension("ranks") == 1.0;
        let linked = point.dimension("gbit") > 0.0 && point.dimension("ranks") == point.dimension("nodes");
        point.library == "muster" && (point.series == "strong" || point.series == "weak") && (alone || linked)
    };
    let measured = |point: &Point| {
        let ranks = point.dimension("ranks").max(1.0);
        let tokens = point.dimension("tokens") / ranks;
        Some(Measured {
            name: format!("{}, {}", point.name, point.series),
            setting: Setting {
                nodes: ranks,
                gbit: point.dimension("gbit"),
                crowd: point.dimension("crowd").max(1.0),
                tokens,
                overlap: true,
                summed_bytes: point.dimension("summed_bytes"),
                row_bytes: point.dimension("row_bytes") * tokens,
            },
            step_s: point.value("step_s")?,
            compute_s: point.value("compute_s")?,
            update_s: point.value("update_s")?,
        })
    };
    points.iter().filter(is_step).filter_map(measured).collect()
}

/// Latency and wire factor from sums without training: `(alpha_us, wire_factor)`. Where no link was measured: Ethernet at
/// its nominal bandwidth.
pub fn fit_links(points: &[Point]) -> (f64, f64) {
    let sums = points.iter().filter(|point| point.series == "sum" && point.dimension("gbit") > 0.0);
    let equation = |point: &Point| {
        let nodes = point.dimension("ranks");
        let moved = 2.0 * (nodes - 1.0) / nodes * point.dimension("bytes");
        let time_us = point.value("time_us")?;
        Some(Equation {
            // alpha; the wire, in us; the CPU, which the ranks of a core share, in us for 1 ns per byte
            factors: [
                2.0,
                moved * 8.0 / (point.dimension("gbit") * 1e3),
                moved * point.dimension("crowd").max(1.0) * 1e-3,
            ],
            target: (time_us - 2.0 * (nodes - 1.0) * OVERHEAD_US).max(0.0),
            scale: time_us,
        })
    };
    let equations: Vec<Equation<3>> = sums.filter_map(equation).collect();
    match least_squares(&equations) {
        Some(solved) if solved.coefficients[1] > 0.0 => (solved.coefficients[0], solved.coefficients[1]),
        Some(solved) => (solved.coefficients[0], 1.0),
        None => (ASSUMED_ALPHA_US, 1.0),
    }
}

/// The model of these steps; `None` if they don't determine it.
pub fn fit_steps(measured: &[Measured], (alpha_us, wire_factor): (f64, f64)) -> Option<Fitted> {
    let several = |m: &Measured| f64::from(m.setting.nodes > 1.0);
    let sums = |m: &Measured| moved_bytes(&m.setting) * 1e-9;
    let compute = measured.iter().map(|m| part(m, [1.0, m.setting.tokens, sums(m)], m.compute_s));
    let [fixed, token_s, cpu_ns_per_byte] = least_squares(&compute.collect::<Vec<_>>())?.coefficients;
    let update = measured.iter().map(|m| part(m, [1.0, several(m)], m.update_s));
    let [moving, together_s] = least_squares(&update.collect::<Vec<_>>())?.coefficients;
    let with_overlap = |twentieth: u32| {
        let overlap = f64::from(twentieth) / 20.0;
        let fixed_s = fixed + moving;
        Fitted { alpha_us, wire_factor, cpu_ns_per_byte, fixed_s, together_s, token_s, overlap }
    };
    let residual = |fitted: &Fitted| {
        let errors = measured.iter().map(|m| (fitted.step_s(&m.setting) / m.step_s - 1.0).powi(2));
        errors.sum::<f64>()
    };
    (0..=20).map(with_overlap).min_by(|a, b| residual(a).total_cmp(&residual(b)))
}

/// The equation of a part of a step, which the ranks of a core do one after the other.
fn part<const K: usize>(m: &Measured, factors: [f64; K], seconds: f64) -> Equation<K> {
    let factors = factors.map(|factor| m.setting.crowd * factor);
    Equation { factors, target: seconds, scale: seconds.max(1e-9) }
}

/// Tells whether there are enough points to fit and to hold one out.
pub fn is_determined(measured: &[Measured]) -> bool {
    measured.iter().filter(|m| m.setting.nodes > 1.0).count() >= LEAST_POINTS
}
