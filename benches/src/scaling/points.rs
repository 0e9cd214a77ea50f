//! From measurements to points: rates, efficiency with its interval, the split of a step, and doubts.

use super::case::{Case, Cores, Library, Place, Series};
use super::energy;
use super::take::{StepRow, Taken};
use crate::schema::{Better, MarkKind, Metric, Point};
use crate::stats::{self, Estimate, median};

/// CPU of others, or taken by the hypervisor, that makes a point doubtful: CPUs.
const DISTURBED_CPUS: f64 = 0.1;
/// Largest difference of losses that rounding explains, relative: f32 sums in another order, and bf16 activations.
const LOSS_TOLERANCE: [f64; 2] = [1e-4, 2e-2];

/// All rounds of one case.
pub struct Column {
    /// What was measured.
    pub case: Case,
    /// Round by round.
    pub rounds: Vec<Taken>,
}

/// What points are compared with and judged by.
pub struct Context<'a> {
    /// How the cores are dealt.
    pub cores: &'a Cores,
    /// Whether threads of a rank are bound.
    pub pinned: bool,
    /// Whether the model computes in bf16.
    pub bf16: bool,
    /// Losses of one rank for so many rows of a step.
    pub one_rank: &'a [(usize, Vec<f64>)],
    /// Bytes of gradients that every rank sums in a step.
    pub gradient_bytes: f64,
}

impl Column {
    fn samples(&self, pick: impl Fn(&StepRow) -> f64) -> Vec<Vec<f64>> {
        self.rounds.iter().map(|taken| taken.steps.iter().map(&pick).collect()).collect()
    }

    fn rate(&self) -> Vec<Vec<f64>> {
        self.samples(|row| row.rows / row.step_s().max(1e-9))
    }

    /// The point; `base` is the column of one rank of the same library and series.
    pub fn point(&self, context: &Context<'_>, base: Option<&Self>) -> Point {
        let Case { series, library, place, rows } = self.case;
        let ranks = place.ranks() as f64;
        let tokens: Vec<f64> =
            self.rounds.iter().flat_map(|taken| taken.steps.iter().map(|s| s.tokens)).collect();
        let mean_tokens = tokens.iter().sum::<f64>() / tokens.len().max(1) as f64;
        let mut point = Point::new(series.word(), &self.case.name(), library.word())
            .dim("ranks", ranks)
            .dim("nodes", place.nodes() as f64)
            .dim("rows", rows as f64)
            .dim("tokens", mean_tokens)
            .dim("threads", context.cores.threads as f64)
            .dim("crowd", context.cores.crowd(place))
            .dim("gradient_bytes", context.gradient_bytes);
        if let Place::Emulated(emulation) = place {
            point = point.dim("gbit", emulation.gbit).dim("delay_us", emulation.delay_us);
        }
        point = point
            .metric(Metric::new("samples_per_s", "1/s", Better::Higher, self.rate()))
            .metric(Metric::new(
                "tokens_per_s",
                "1/s",
                Better::Higher,
                self.samples(|row| row.tokens / row.step_s().max(1e-9)),
            ))
            .metric(Metric::new("step_s", "s", Better::Lower, self.samples(StepRow::step_s)));
        if library == Library::Muster {
            point = self.split(point);
        } else {
            point
                .missing
                .insert("compute_s".into(), "not measured: DDP does not tell the parts of a step".into());
        }
        if let Some(base) = base {
            point = self.compared(point, base, context.cores.ideal(place));
        }
        let energy: Vec<Vec<f64>> = self.rounds.iter().filter_map(|t| t.joules.map(|j| vec![j])).collect();
        match energy.is_empty() {
            false => point.metrics.push(Metric::new("joules_per_step", "J", Better::Lower, energy)),
            true => drop(point.missing.insert("joules_per_step".into(), energy::NOT_MEASURED.into())),
        }
        let memory: Vec<Vec<f64>> =
            self.rounds.iter().filter_map(|t| t.peak_bytes.map(|b| vec![b as f64])).collect();
        match memory.is_empty() {
            false => point.metrics.push(Metric::new("peak_bytes", "B", Better::Lower, memory)),
            true => drop(
                point.missing.insert("peak_bytes".into(), "not measured: ranks are on other machines".into()),
            ),
        }
        self.losses(&mut point, context);
        self.doubts(&mut point, context);
        point
    }

    /// Where the time of a step goes.
    fn split(&self, point: Point) -> Point {
        let seconds =
            |name, pick: fn(&StepRow) -> f64| Metric::new(name, "s", Better::Neither, self.samples(pick));
        point
            .metric(seconds("compute_s", |row| row.compute_s))
            .metric(seconds("communication_s", StepRow::comm_s))
            .metric(seconds("wait_s", |row| row.wait_s))
            .metric(seconds("data_s", |row| row.data_s))
            .metric(seconds("update_s", StepRow::update_s))
    }

    /// Speed-up over one rank, and its part of what the cores allow.
    fn compared(&self, point: Point, base: &Self, ideal: f64) -> Point {
        let (mine, theirs) = (self.rate(), base.rate());
        // One rank over itself is 1, however it wobbles.
        let is_base = std::ptr::eq(self, base);
        let ratio =
            if is_base { Estimate { value: 1.0, low: 1.0, high: 1.0 } } else { stats::ratio(&mine, &theirs) };
        let rounds = mine.iter().zip(&theirs).map(|(a, b)| vec![median(a) / median(b).max(1e-12)]);
        let rounds: Vec<Vec<f64>> = rounds.collect();
        let scaled = |name: &str, by: f64| Metric {
            name: name.into(),
            unit: "ratio".into(),
            better: Better::Higher,
            estimate: Estimate { value: ratio.value / by, low: ratio.low / by, high: ratio.high / by },
            samples: rounds.iter().map(|r| r.iter().map(|x| x / by).collect()).collect(),
        };
        point.dim("ideal", ideal).metric(scaled("speedup", 1.0)).metric(scaled("efficiency", ideal))
    }

    /// The largest relative difference from the losses of one rank.
    fn losses(&self, point: &mut Point, context: &Context<'_>) {
        if self.case.library != Library::Muster {
            return;
        }
        let Some((_, one)) = context.one_rank.iter().find(|(rows, _)| *rows == self.case.rows) else {
            let why = "not compared: one rank was not measured with as many rows";
            point.missing.insert("loss_difference".into(), why.into());
            return;
        };
        let differences: Vec<Vec<f64>> = self
            .rounds
            .iter()
            .map(|taken| {
                let pairs = taken.losses.iter().zip(one);
                vec![pairs.map(|(a, b)| (a - b).abs() / b.abs().max(1e-9)).fold(0.0, f64::max)]
            })
            .collect();
        let worst = differences.iter().flatten().copied().fold(0.0, f64::max);
        let tolerance = LOSS_TOLERANCE[usize::from(context.bf16)];
        if worst > tolerance {
            let text = format!(
                "a loss differs by {worst:.1e} from that of one rank; rounding explains {tolerance:.0e}"
            );
            point.mark(MarkKind::LossDiffers, text);
        }
        point.metrics.push(Metric::new("loss_difference", "ratio", Better::Neither, differences));
    }

    fn doubts(&self, point: &mut Point, context: &Context<'_>) {
        let most = |pick: fn(&Taken) -> f64| self.rounds.iter().map(pick).fold(0.0, f64::max);
        let (others, stolen) = (most(|t| t.others_cpus), most(|t| t.stolen_cpus));
        let throttled: u64 = self.rounds.iter().map(|taken| taken.throttled).sum();
        if throttled > 0 {
            point.mark(
                MarkKind::Throttled,
                format!("a quota or the temperature stopped CPUs {throttled} times"),
            );
        }
        if stolen > DISTURBED_CPUS {
            point.mark(MarkKind::Stolen, format!("the hypervisor gave {stolen:.2} CPUs to others"));
        }
        if others > DISTURBED_CPUS {
            point.mark(MarkKind::Busy, format!("other programs used up to {others:.2} CPUs"));
        }
        let place = self.case.place;
        if matches!(place, Place::Cluster { .. }) {
            return;
        }
        if !context.pinned {
            point.mark(MarkKind::Unpinned, "threads were not bound to CPUs".into());
        }
        let crowd = context.cores.crowd(place);
        if crowd > 1.0 {
            let (ranks, threads, cores) = (place.ranks(), context.cores.threads, context.cores.cores);
            let text = format!(
                "{ranks} ranks of {threads} threads share {cores} cores: compute is time-shared {crowd} to a core, so the \
                 most to expect is a speed-up of {}; look at communication apart",
                context.cores.ideal(place)
            );
            point.mark(MarkKind::Oversubscribed, text);
        }
    }
}

/// The points of all columns, each compared with its base.
pub fn all(columns: &[Column], context: &Context<'_>) -> Vec<Point> {
    let is_base = |column: &&Column, of: &Case| {
        let Case { series, library, place, .. } = column.case;
        series == of.series
            && library == of.library
            && matches!(place, Place::Local { ranks: 1 } | Place::Cluster { nodes: 1 })
    };
    let base = |case: &Case| columns.iter().find(|column| is_base(column, case));
    let mut points = Vec::new();
    for column in columns.iter().filter(|column| !column.rounds.is_empty()) {
        // One rank has the same work in both series: it is measured once.
        let strong = Case { series: Series::Strong, ..column.case };
        points.push(column.point(context, base(&column.case).or_else(|| base(&strong))));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_trainer::topology::HostFacts;

    fn taken(step_s: f64, loss: f64) -> Taken {
        let row = |step: u64| {
            let json = format!(
                "{{\"step\":{step},\"loss\":{loss},\"rows\":32,\"tokens\":500,\"tokens_per_s\":{},\"compute_s\":{},\"exposed_s\":0.2,\"wait_s\":0.1}}",
                500.0 / step_s,
                step_s - 0.3
            );
            serde_json::from_str::<StepRow>(&json).expect("a row")
        };
        Taken {
            steps: (1..=4).map(row).collect(),
            losses: vec![loss; 4],
            others_cpus: 0.5,
            ..Taken::default()
        }
    }

    #[test]
    fn a_point_has_efficiency_split_parity_and_doubts() {
        let cores = Cores::deal(&HostFacts::detect(), 1).expect("one share");
        let one_rank = [(32, vec![0.5; 4])];
        let context =
            Context { cores: &cores, pinned: true, bf16: false, one_rank: &one_rank, gradient_bytes: 8e7 };
        let column = |ranks, rounds| Column {
            case: Case {
                series: Series::Strong,
                library: Library::Muster,
                place: Place::Local { ranks },
                rows: 32,
            },
            rounds,
        };
        let columns = [
            column(1, vec![taken(2.0, 0.5), taken(4.0, 0.5)]),
            column(2, vec![taken(1.0, 0.5), taken(2.0, 0.6)]),
        ];
        let points = all(&columns, &context);
        let two = &points[1];
        let speedup = two.get("speedup").expect("compared").estimate;
        assert!(
            (speedup.low - 2.0).abs() < 1e-9 && (speedup.high - 2.0).abs() < 1e-9,
            "rounds are paired: {speedup:?}"
        );
        assert_eq!(two.value("efficiency"), Some(2.0), "one share allows a speed-up of 1");
        assert!((two.value("communication_s").expect("split") - 0.1).abs() < 1e-9);
        assert!(
            two.has(MarkKind::LossDiffers) && two.has(MarkKind::Busy) && two.has(MarkKind::Oversubscribed)
        );
        assert!(!points[0].has(MarkKind::LossDiffers) && !two.has(MarkKind::Unpinned));
        assert!(two.missing.contains_key("joules_per_step") && two.missing.contains_key("peak_bytes"));
    }
}
