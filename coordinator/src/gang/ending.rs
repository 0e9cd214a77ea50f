//! The end of a run: who is told to stop, who saves, who is killed in the end.

use super::live::LEASE_STEPS;
use super::types::{Action, Moment, Outcome, Save};
use super::{Gang, Member, Phase, State};

impl Gang {
    pub(super) fn ending_deadline(&self) -> Option<Moment> {
        let Phase::Ending { save, since, .. } = &self.phase else { return None };
        let time = if *save == Save::Yes { self.policy.save_timeout } else { self.policy.stop_timeout };
        // Ranks end at a step boundary.
        Some(*since + time + self.step_time * LEASE_STEPS)
    }

    pub(super) fn settle_ending(&mut self, now: Moment) {
        let Phase::Ending { outcome, save, .. } = &self.phase else { return };
        let save = *save;
        let succeeded = matches!(outcome, Outcome::Succeeded { .. });
        if self.ending_deadline().is_some_and(|deadline| now >= deadline) {
            let all: Vec<String> = self.members_iter().map(|(_, _, member)| member.id.clone()).collect();
            for id in all {
                self.kill(&id, "it did not end in time".into());
            }
            self.live = None;
        }
        let reason = self.ending_reason();
        self.stop_starting(now, &reason);
        // Ranks that have all steps behind them end by themselves, and those of a broken generation must first say
        // what they have.
        let sound = self.live.as_ref().is_some_and(|l| l.broken_since.is_none() && l.paused_since.is_none());
        if sound && !succeeded {
            let active = self.members_iter().filter(|(_, _, m)| m.is_active() && m.told.is_none());
            let ids: Vec<String> = active.map(|(_, _, member)| member.id.clone()).collect();
            for id in ids {
                self.tell_stop(now, &id, save, reason.clone());
            }
        }
        if self.live.is_none() {
            self.stop_waiting(now, save, &reason);
        }
        if self.members_iter().next().is_none() {
            self.finish();
        }
    }

    /// Processes that have nothing to save.
    fn stop_starting(&mut self, now: Moment, reason: &str) {
        let starting = self.members_iter().filter(|(_, _, m)| matches!(m.state, State::Starting));
        let ids: Vec<_> =
            starting.filter(|(_, _, m)| m.told.is_none()).map(|(_, _, m)| m.id.clone()).collect();
        for id in ids {
            self.tell_stop(now, &id, Save::No, reason.to_owned());
        }
    }

    /// Of the processes that wait, the one that is furthest saves; the others end when it is through, or at once if
    /// nothing is to be saved.
    fn stop_waiting(&mut self, now: Moment, save: Save, reason: &str) {
        let saving = |member: &Member| {
            member.told.is_some_and(|(save, _)| save == Save::Yes) && !matches!(member.state, State::Leaving)
        };
        if self.members_iter().any(|(_, _, member)| saving(member)) {
            return;
        }
        let untold = self.members_iter().filter(|(_, _, m)| m.is_waiting() && m.told.is_none());
        let untold: Vec<_> = untold.map(|(_, _, member)| (member.waits_with(), member.id.clone())).collect();
        let furthest = untold
            .iter()
            .filter_map(|(step, id)| Some(((*step)?, id.clone())))
            // Step 0 is the model as it was read.
            .filter(|(step, _)| *step > 0 && self.saved.is_none_or(|saved| saved < *step))
            .max_by_key(|(step, _)| *step);
        if let Some((_, id)) = furthest.filter(|_| save == Save::Yes) {
            return self.tell_stop(now, &id, Save::Yes, reason.to_owned());
        }
        for (_, id) in untold {
            self.tell_stop(now, &id, Save::No, reason.to_owned());
        }
    }

    fn ending_reason(&self) -> String {
        match &self.phase {
            Phase::Ending { outcome: Outcome::Failed(failure), .. } => failure.error.clone(),
            Phase::Ending { outcome: Outcome::Stopped { reason, .. }, .. } => reason.clone(),
            _ => "the run is over".into(),
        }
    }

    fn finish(&mut self) {
        let Phase::Ending { outcome, .. } = std::mem::replace(&mut self.phase, Phase::Ended) else { return };
        let outcome = match outcome {
            Outcome::Stopped { reason, then, .. } => Outcome::Stopped { saved: self.saved, reason, then },
            other => other,
        };
        let reason = match &outcome {
            Outcome::Succeeded { .. } => "all steps are done".to_owned(),
            Outcome::Failed(failure) => failure.error.clone(),
            Outcome::Stopped { reason, .. } => reason.clone(),
        };
        self.decide(Action::Ended(outcome), reason);
    }
}
