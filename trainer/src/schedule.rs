//! The learning rate of every step.
//!
//! The shapes are those of Hugging Face `get_{linear,cosine,constant}_schedule_with_warmup`, with one difference: there
//! the first of `W` warm-up steps has rate 0 and changes nothing. Here warm-up climbs in `W + 1` equal parts starting at
//! the first, `base * (s + 1) / (W + 1)` for the step index `s < W`, so no step is wasted; from `s = W` on, which has
//! the full rate, both are equal.
//!
//! The rate is a pure function of the step index: there is no scheduler state to save or to lose (case 41), and the
//! rate that is logged for a step is the one that step used (case 38).

use muster_proto::Step;
use muster_proto::run_spec::Schedule;

/// Warm-up, then a shape, over a known number of steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    schedule: Schedule,
    base: f64,
    warmup_steps: u64,
    total_steps: u64,
}

impl LearningRate {
    /// Plans the rates of `total_steps` steps, the first `warmup_steps` of which climb to `base`.
    pub fn new(schedule: Schedule, base: f64, warmup_steps: u64, total_steps: u64) -> Self {
        Self { schedule, base, warmup_steps, total_steps }
    }

    /// Rate of the step with this index, counted from 0; 0 from `total_steps` on unless constant.
    pub fn at(&self, step: Step) -> f64 {
        if step.0 < self.warmup_steps {
            return self.base * (step.0 + 1) as f64 / (self.warmup_steps + 1) as f64;
        }
        let decay_steps = self.total_steps.saturating_sub(self.warmup_steps).max(1);
        let done = (step.0 - self.warmup_steps).min(decay_steps) as f64 / decay_steps as f64;
        match self.schedule {
            Schedule::Constant => self.base,
            Schedule::Linear => self.base * (1.0 - done),
            Schedule::Cosine => self.base * 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
        }
    }
}

/// Steps of the warm-up: a number of steps wins over a share of all steps, which rounds up as in HF Trainer.
pub fn warmup_steps(steps: Option<u64>, ratio: Option<f64>, total_steps: u64) -> u64 {
    match (steps, ratio) {
        (Some(steps), _) => steps,
        (None, Some(ratio)) => (ratio * total_steps as f64).ceil() as u64,
        (None, None) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by `tests/fixtures/schedule/make.py` with transformers.
    fn golden() -> Vec<serde_json::Value> {
        serde_json::from_str(include_str!("../../tests/fixtures/schedule/golden.json")).unwrap()
    }

    fn close(a: f64, b: f64) -> bool {
        // Both are a handful of f64 operations, in another order.
        (a - b).abs() <= 1e-15
    }

    #[test]
    fn decay_equals_hugging_face_and_warm_up_is_theirs_without_the_wasted_step() {
        for case in golden() {
            let schedule = match case["schedule"].as_str().unwrap() {
                "linear" => Schedule::Linear,
                "cosine" => Schedule::Cosine,
                _ => Schedule::Constant,
            };
            let number = |name: &str| case[name].as_u64().unwrap();
            let (warmup, total) = (number("warmup"), number("total"));
            let ours = LearningRate::new(schedule, case["base"].as_f64().unwrap(), warmup, total);
            let rates = |name: &str| -> Vec<f64> {
                case[name].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
            };
            let (theirs, climbing) = (rates("rates"), rates("rates_with_one_more_warmup_step"));
            for s in 0..total {
                let expected = if s < warmup { climbing[s as usize + 1] } else { theirs[s as usize] };
                let got = ours.at(Step(s));
                assert!(close(got, expected), "{case:?}, step {s}: {got} against {expected}");
            }
        }
    }

    #[test]
    fn case_38_no_step_of_a_run_has_rate_zero() {
        for (warmup, total) in [(0, 1), (0, 10), (1, 10), (3, 10), (9, 10), (10, 10)] {
            for schedule in [Schedule::Linear, Schedule::Cosine, Schedule::Constant] {
                let lr = LearningRate::new(schedule, 1e-3, warmup, total);
                assert!((0..total).all(|s| lr.at(Step(s)) > 0.0), "{schedule:?}, {warmup} of {total}");
            }
        }
    }

    #[test]
    fn a_warm_up_longer_than_the_run_only_climbs() {
        let lr = LearningRate::new(Schedule::Linear, 1.0, 9, 4);
        assert_eq!((0..4).map(|s| lr.at(Step(s))).collect::<Vec<_>>(), [0.1, 0.2, 0.3, 0.4]);
        assert_eq!(LearningRate::new(Schedule::Linear, 1.0, 0, 4).at(Step(4)), 0.0);
    }

    #[test]
    fn a_share_of_the_steps_rounds_up() {
        assert_eq!(warmup_steps(None, Some(0.06), 100), 6);
        assert_eq!(warmup_steps(None, Some(0.1), 11), 2);
        assert_eq!((warmup_steps(Some(3), Some(0.5), 100), warmup_steps(None, None, 9)), (3, 0));
    }
}
