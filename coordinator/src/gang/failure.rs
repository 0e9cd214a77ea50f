//! What a failed process means for the run: start it again, later and later, or give the run up with the reason.

use muster_proto::v1::FailureKind;

use super::types::{Action, Exit, Failure, Moment, Outcome, Save, SlotKey};
use super::{Gang, Phase};

impl Failure {
    /// What the exit of a process that said nothing tells.
    pub(super) fn of_exit(id: &str, exit: Exit) -> Self {
        let failure = |kind, error: String, exit_code| Self { kind, error, hints: Vec::new(), exit_code };
        if exit.out_of_memory {
            let error = format!("{id} was ended by the kernel for lack of memory");
            return failure(FailureKind::Resources, error, 5);
        }
        // docs/exit-codes.md
        let (kind, code) = match exit.code {
            Some(code @ (2 | 3)) => (FailureKind::Input, code as u32),
            Some(4) => (FailureKind::Diverged, 4),
            Some(5) => (FailureKind::Resources, 5),
            _ => (FailureKind::Other, 1),
        };
        let how = match (exit.signal, exit.code) {
            (Some(signal), _) => format!("was ended by signal {signal}"),
            (None, Some(code)) => format!("ended with exit code {code}"),
            (None, None) => "is gone".into(),
        };
        failure(kind, format!("{id} {how}"), code)
    }
}

impl Gang {
    /// Deals with the failure of the process of a slot.
    pub(super) fn failed(&mut self, now: Moment, key: &SlotKey, failure: Failure) {
        if !matches!(self.phase, Phase::Open) {
            return self.decide(Action::Note, failure.error);
        }
        match failure.kind {
            FailureKind::Input | FailureKind::Diverged => {
                // One node may lack a file that the others have: no reason to end what trains.
                if self.trains_without(key) {
                    return self.restart_later(now, key, &failure);
                }
                let reason = format!("the run can't go on: {}", failure.error);
                self.decide(Action::Note, reason);
                self.end(now, Outcome::Failed(failure), Save::No);
            }
            FailureKind::Resources => {
                self.resource_failures += 1;
                if self.resource_failures >= self.policy.resource_failures_max {
                    return self.fail_for_resources(now, failure);
                }
                self.restart_later(now, key, &failure);
            }
            FailureKind::Other | FailureKind::Unspecified => {
                if self.count_failure(now) {
                    return self.fail_for_failures(now, failure);
                }
                self.restart_later(now, key, &failure);
            }
        }
    }

    /// Whether a generation trains that the slot's process was no member of.
    fn trains_without(&self, key: &SlotKey) -> bool {
        let of_slot = |id: &String| SlotKey::of_member(id).is_some_and(|(slot, _)| slot == *key);
        let trains = self.members_iter().any(|(_, _, member)| member.is_running());
        trains && self.live.as_ref().is_some_and(|live| !live.members.iter().any(of_slot))
    }

    /// Counts a failure without a step since the last one; true if they are too many.
    pub(super) fn count_failure(&mut self, now: Moment) -> bool {
        let oldest = now.saturating_sub(self.policy.failure_window);
        while self.failures.front().is_some_and(|&at| at < oldest) {
            self.failures.pop_front();
        }
        self.failures.push_back(now);
        self.failures.len() > self.policy.failures_max
    }

    fn restart_later(&mut self, now: Moment, key: &SlotKey, failure: &Failure) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let delay = slot.cool(now, &self.policy);
        let error = &failure.error;
        self.decide(Action::Note, format!("{error}; {key} starts again in {} s", delay.as_secs_f64()));
    }

    fn fail_for_resources(&mut self, now: Moment, mut failure: Failure) {
        let tries = self.resource_failures;
        if failure.hints.is_empty() {
            let hint = "lower train.micro_batch_tokens or data.max_length, set train.recompute = \"layers\", or give \
                        the nodes more memory";
            failure.hints.push(hint.into());
        }
        let reason = format!("given up after {tries} tries: {}", failure.error);
        self.decide(Action::Note, reason);
        self.end(now, Outcome::Failed(failure), Save::Yes);
    }

    pub(super) fn fail_for_failures(&mut self, now: Moment, mut failure: Failure) {
        let (count, minutes) = (self.failures.len(), self.policy.failure_window.as_secs() / 60);
        let reason = format!("given up after {count} failures within {minutes} minutes without a step");
        failure.error = format!("{reason}; the last: {}", failure.error);
        self.decide(Action::Note, reason);
        self.end(now, Outcome::Failed(failure), Save::Yes);
    }
}
