//! What a run remembers between steps beside weights and moments: its place, its best model, its patience.
//!
//! Everything here is in a checkpoint; with the weights and moments it is all a resumed run needs (case 41). Numbers
//! that decide anything are stored as their bits, because a decimal round trip may move the last one.

use serde::{Deserialize, Serialize};

use crate::metrics::{Goal, Report};

/// The state of the loop.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoopState {
    /// Steps done, skipped ones included.
    pub step: u64,
    /// Steps whose update was left out because a loss or gradient was not finite.
    pub skipped_steps: u64,
    /// The step of the last evaluation; a run that was stopped before an evaluation that was due makes up for it.
    pub evaluated_step: Option<u64>,
    /// The best evaluated model so far.
    pub best: Option<Best>,
    /// How long no evaluation has improved.
    pub patience: Patience,
    /// Seconds of training so far, over all its processes.
    pub elapsed_s: f64,
}

/// The best evaluated model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Steps done when it was evaluated.
    pub step: u64,
    /// Value of the chosen metric.
    #[serde(with = "bits")]
    pub value: f64,
    /// Everything the evaluation said.
    pub report: Report,
}

/// Counts evaluations without improvement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Patience {
    /// Value from which an improvement counts.
    #[serde(with = "optional_bits")]
    reference: Option<f64>,
    /// Evaluations since.
    pub without_improvement: u32,
}

impl Patience {
    /// Takes an evaluation; it counts as an improvement if it beats the reference by more than `min_delta`.
    ///
    /// The reference moves only then, so many tiny improvements add up to one.
    pub fn update(&mut self, goal: Goal, value: Option<f64>, min_delta: f64) {
        let margin = match goal {
            Goal::Highest => min_delta,
            Goal::Lowest => -min_delta,
        };
        let improved = match (value, self.reference) {
            (Some(new), Some(old)) => goal.improves(new, old + margin),
            (Some(_), None) => true,
            (None, _) => false,
        };
        if improved {
            self.reference = value;
            self.without_improvement = 0;
        } else {
            self.without_improvement += 1;
        }
    }

    /// Tells whether `limit` evaluations in a row brought no improvement.
    pub fn is_exhausted(&self, limit: Option<u32>) -> bool {
        limit.is_some_and(|limit| self.without_improvement >= limit)
    }
}

impl LoopState {
    /// Takes the evaluation after the current step; tells whether the model is the best so far.
    ///
    /// Of equal models the earlier one stays. A metric that does not exist never wins.
    pub fn record(&mut self, goal: Goal, value: Option<f64>, report: &Report) -> bool {
        self.evaluated_step = Some(self.step);
        let better = value.filter(|&new| self.best.as_ref().is_none_or(|best| goal.improves(new, best.value)));
        if let Some(value) = better {
            self.best = Some(Best { step: self.step, value, report: report.clone() });
        }
        better.is_some()
    }
}

mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &f64, s: S) -> Result<S::Ok, S::Error> {
        value.to_bits().serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        u64::deserialize(d).map(f64::from_bits)
    }
}

mod optional_bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &Option<f64>, s: S) -> Result<S::Ok, S::Error> {
        value.map(f64::to_bits).serialize(s)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<u64>::deserialize(d)?.map(f64::from_bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Targets;
    use crate::metrics::Accumulator;

    fn report() -> Report {
        let mut acc = Accumulator::classes(2);
        acc.add(&[0.0, 1.0], &Targets::Class(vec![1]));
        acc.report(&["a".into(), "b".into()], 0.1)
    }

    #[test]
    fn patience_counts_evaluations_since_an_improvement_above_the_delta() {
        let mut patience = Patience::default();
        let mut counts = Vec::new();
        for value in [Some(0.5), Some(0.55), Some(0.59), Some(0.62), None, Some(0.1)] {
            patience.update(Goal::Highest, value, 0.1);
            counts.push(patience.without_improvement);
        }
        assert_eq!(counts, [0, 1, 2, 0, 1, 2], "0.62 beats 0.5 by more than 0.1");
        assert!(patience.is_exhausted(Some(2)) && !patience.is_exhausted(Some(3)) && !patience.is_exhausted(None));
    }

    #[test]
    fn lower_is_better_for_errors_and_the_earlier_of_equal_models_stays() {
        let mut state = LoopState { step: 5, ..LoopState::default() };
        assert!(state.record(Goal::Lowest, Some(0.3), &report()));
        state.step = 10;
        assert!(!state.record(Goal::Lowest, Some(0.3), &report()));
        assert!(!state.record(Goal::Lowest, None, &report()));
        assert_eq!((state.best.as_ref().unwrap().step, state.evaluated_step), (5, Some(10)));
    }

    #[test]
    fn case_41_the_stored_state_decides_as_the_one_in_memory() {
        let mut state = LoopState { step: 3, ..LoopState::default() };
        // This value comes back one unit lower when read as a decimal by a fast parser.
        state.record(Goal::Highest, Some(0.9415901590159016), &report());
        state.patience.update(Goal::Highest, Some(0.1 + 0.2), 0.0);
        let text = serde_json::to_string(&state).unwrap();
        let back: LoopState = serde_json::from_str(&text).unwrap();
        assert_eq!(back.best.unwrap().value.to_bits(), state.best.unwrap().value.to_bits());
        assert_eq!(back.patience, state.patience);
    }
}
