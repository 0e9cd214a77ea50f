//! When a run logs, evaluates and saves: pure functions of the number of updates done.

use muster_proto::run_spec::EvalEvery;

/// The rhythm of a run. Steps are counted by updates done, so the first step is 1 and the last `total_steps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Updates of the whole run.
    pub total_steps: u64,
    /// Updates of one pass over the data, the partial one included.
    pub steps_per_epoch: u64,
    /// When to evaluate; the last step always does.
    pub evaluate: EvalEvery,
    /// Steps between checkpoints; `None`: at every evaluation.
    pub save_every: Option<u64>,
    /// Steps between two training lines of the log; the first and the last step always have one.
    pub log_every: u64,
}

impl Pace {
    /// Tells whether the step that made `done` updates is followed by an evaluation.
    pub fn evaluates(&self, done: u64) -> bool {
        done == self.total_steps
            || done > 0
                && match self.evaluate {
                    EvalEvery::Epoch => done.is_multiple_of(self.steps_per_epoch),
                    EvalEvery::Steps(steps) => done.is_multiple_of(steps),
                    EvalEvery::End => false,
                }
    }

    /// Tells whether the step that made `done` updates is followed by a checkpoint.
    pub fn saves(&self, done: u64) -> bool {
        done == self.total_steps
            || match self.save_every {
                Some(steps) => done > 0 && done.is_multiple_of(steps),
                None => self.evaluates(done),
            }
    }

    /// Tells whether the step that made `done` updates has a line in the log.
    pub fn logs(&self, done: u64) -> bool {
        done == 1 || done == self.total_steps || done.is_multiple_of(self.log_every.max(1))
    }

    /// Passes over the data after `done` updates; a partial last batch counts as a step.
    pub fn epoch(&self, done: u64) -> f64 {
        done as f64 / self.steps_per_epoch as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(total: u64, rule: impl Fn(u64) -> bool) -> Vec<u64> {
        (0..=total).filter(|&done| rule(done)).collect()
    }

    #[test]
    fn the_last_step_always_evaluates_and_saves() {
        let pace = Pace {
            total_steps: 10,
            steps_per_epoch: 4,
            evaluate: EvalEvery::Epoch,
            save_every: None,
            log_every: 3,
        };
        assert_eq!(steps(10, |s| pace.evaluates(s)), [4, 8, 10]);
        assert_eq!(steps(10, |s| pace.saves(s)), [4, 8, 10]);
        assert_eq!(steps(10, |s| s > 0 && pace.logs(s)), [1, 3, 6, 9, 10]);
        let often = Pace { evaluate: EvalEvery::Steps(5), save_every: Some(4), ..pace };
        assert_eq!(steps(10, |s| often.evaluates(s)), [5, 10]);
        assert_eq!(steps(10, |s| often.saves(s)), [4, 8, 10]);
        let end = Pace { evaluate: EvalEvery::End, ..pace };
        assert_eq!((steps(10, |s| end.evaluates(s)), end.epoch(6)), (vec![10], 1.5));
    }
}
