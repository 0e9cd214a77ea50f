//! What a run remembers between steps beside weights and moments: its place, its evaluations, its best model.
//!
//! Best model and patience are pure functions of the evaluations so far, so a checkpoint stores those and a resumed
//! run replays them: nothing can be forgotten or disagree (case 41).

use crate::checkpoint::{self, Evaluation};
use crate::metrics::{Goal, Metric, Report};

/// What decides which model is the best, and when to give up.
#[derive(Debug, Clone, PartialEq)]
pub struct BestRule {
    /// The metric.
    pub metric: Metric,
    /// Its name, the key in stored evaluations.
    pub name: String,
    /// Evaluations without improvement after which training stops.
    pub patience: Option<u32>,
    /// Smallest change that counts as an improvement for `patience`.
    pub min_delta: f64,
}

/// The best evaluated model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Best {
    /// Steps done when it was evaluated.
    pub step: u64,
    /// Value of the chosen metric.
    pub value: f64,
}

/// The state of the loop.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopState {
    /// Steps done, skipped ones included.
    pub step: u64,
    /// Steps whose update was left out because a loss or gradient was not finite.
    pub skipped_steps: u64,
    /// Rows trained on.
    pub rows: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Milliseconds of training, over all processes of the run.
    pub train_ms: u64,
    /// Every evaluation, oldest first.
    pub evaluations: Vec<Evaluation>,
    /// The best evaluated model so far.
    pub best: Option<Best>,
    /// Value from which an improvement counts.
    reference: Option<f64>,
    /// Evaluations in a row without improvement.
    pub without_improvement: u32,
}

impl LoopState {
    /// Restores the state of a checkpoint by replaying its evaluations.
    pub fn restore(state: &checkpoint::State, rule: &BestRule) -> Self {
        let totals = &state.totals;
        let mut restored = Self {
            step: state.step,
            skipped_steps: totals.skipped_steps,
            rows: totals.rows,
            tokens: totals.tokens,
            train_ms: totals.train_ms,
            ..Self::default()
        };
        for evaluation in &state.evaluations {
            restored.record(evaluation.clone(), rule);
        }
        restored
    }

    /// Takes an evaluation; tells whether its model is the best so far.
    ///
    /// Of equal models the earlier one stays; a metric that does not exist never wins. For the patience an
    /// evaluation must beat the reference by more than `min_delta`, and the reference moves only then, so that many
    /// tiny improvements add up to one.
    pub fn record(&mut self, evaluation: Evaluation, rule: &BestRule) -> bool {
        let goal = rule.metric.goal();
        let value = evaluation.metrics.get(&rule.name).copied();
        let better = value.filter(|&new| self.best.is_none_or(|best| goal.improves(new, best.value)));
        if let Some(value) = better {
            self.best = Some(Best { step: evaluation.step, value });
        }
        let margin = match goal {
            Goal::Highest => rule.min_delta,
            Goal::Lowest => -rule.min_delta,
        };
        let improved =
            value.is_some_and(|new| self.reference.is_none_or(|old| goal.improves(new, old + margin)));
        if improved {
            self.reference = value;
            self.without_improvement = 0;
        } else {
            self.without_improvement += 1;
        }
        self.evaluations.push(evaluation);
        better.is_some()
    }

    /// Tells whether the evaluation after the current step, if one is due, is done.
    pub fn is_evaluated(&self) -> bool {
        self.evaluations.last().is_some_and(|last| last.step == self.step)
    }

    /// Tells whether too many evaluations in a row brought no improvement.
    pub fn is_exhausted(&self, rule: &BestRule) -> bool {
        rule.patience.is_some_and(|limit| self.without_improvement >= limit)
    }
}

/// The numbers of a report that a checkpoint keeps: those that exist, by name.
pub(super) fn evaluation(step: u64, report: &Report, rule: &BestRule) -> Evaluation {
    let summary = report.summary().into_iter().map(|(metric, value)| (metric.name(&[]), value));
    let chosen = (rule.name.clone(), report.value(rule.metric));
    let metrics = summary.chain([chosen]).filter_map(|(name, value)| Some((name, value?))).collect();
    Evaluation { step, metrics }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(metric: Metric, min_delta: f64) -> BestRule {
        BestRule { metric, name: metric.name(&[]), patience: Some(2), min_delta }
    }

    fn measured(step: u64, rule: &BestRule, value: Option<f64>) -> Evaluation {
        Evaluation { step, metrics: value.map(|v| (rule.name.clone(), v)).into_iter().collect() }
    }

    #[test]
    fn patience_counts_evaluations_since_an_improvement_above_the_delta() {
        let rule = rule(Metric::Accuracy, 0.1);
        let mut state = LoopState::default();
        let mut counts = Vec::new();
        for (step, value) in
            [Some(0.5), Some(0.55), Some(0.59), Some(0.62), None, Some(0.1)].into_iter().enumerate()
        {
            state.record(measured(step as u64, &rule, value), &rule);
            counts.push(state.without_improvement);
        }
        assert_eq!(counts, [0, 1, 2, 0, 1, 2], "0.62 beats 0.5 by more than 0.1");
        assert!(
            state.is_exhausted(&rule) && !state.is_exhausted(&BestRule { patience: None, ..rule.clone() })
        );
        assert_eq!(state.best, Some(Best { step: 3, value: 0.62 }));
    }

    #[test]
    fn lower_is_better_for_errors_and_the_earlier_of_equal_models_stays() {
        let rule = rule(Metric::Mse, 0.0);
        let mut state = LoopState::default();
        assert!(state.record(measured(5, &rule, Some(0.3)), &rule));
        assert!(!state.record(measured(10, &rule, Some(0.3)), &rule));
        assert!(!state.record(measured(15, &rule, None), &rule));
        assert!(state.record(measured(20, &rule, Some(0.2)), &rule));
        assert_eq!(state.best.map(|b| b.step), Some(20));
    }
}
