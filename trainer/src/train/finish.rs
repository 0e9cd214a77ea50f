//! The end of a run: the chosen model is tested, exported and its numbers are written down.

use muster_kernels::Element;
use muster_proto::{Step, with_causes};
use serde::{Deserialize, Serialize};

use super::error::TrainError;
use super::evaluate::{Evaluators, Rows};
use super::event::Event;
use super::runner::Trainer;
use super::settings::Ending;
use crate::metrics::Report;
use crate::peers::Vote;
use crate::report::write_page;
use crate::topology::Place;

/// The numbers of a run, as `results.json` has them. Fields whose name ends in `_s` depend on the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Name of the run.
    pub name: String,
    /// Steps done.
    pub steps: u64,
    /// Steps planned; more than `steps` if training stopped early.
    pub total_steps: u64,
    /// Passes over the training rows.
    pub epochs: f64,
    /// Rows trained on.
    pub rows: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Steps left out because a loss or gradient was not finite.
    pub skipped_steps: u64,
    /// Whether training ended because the metric stopped improving.
    pub stopped_early: bool,
    /// Metric that chose the model.
    pub metric: String,
    /// Steps after which the chosen model was taken.
    pub model_step: u64,
    /// Digest of the chosen model's f32 weights.
    pub weights_digest: String,
    /// The chosen model on the evaluation rows.
    pub eval: Option<Report>,
    /// The chosen model on the test rows.
    pub test: Option<Report>,
    /// Directory of the model.
    pub model_dir: String,
    /// Seconds of training, evaluations included.
    pub elapsed_s: f64,
    /// What each rank had of its machine at the end, in rank order. Depends on the machine.
    #[serde(default)]
    pub ranks: Vec<RankPlace>,
}

/// What a rank had of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RankPlace {
    /// Its number in the last generation.
    pub rank: u32,
    /// Share of its own memory on the NUMA nodes of its CPUs; none if the system doesn't say.
    pub numa_local: Option<f64>,
    /// Share of the periods in which a CPU quota stopped it; none without a quota.
    pub throttled: Option<f64>,
    /// The numbers.
    #[serde(flatten)]
    pub place: Place,
}

/// How the end of a run went.
#[derive(Debug, Clone, PartialEq)]
pub enum Conclusion {
    /// Somebody wished to end before all was done; a resume does the rest.
    Interrupted,
    /// Everything is written; the rank that did it has the results.
    Done(Option<Box<Results>>),
}

impl Conclusion {
    /// The results, on the rank that wrote them.
    pub fn results(self) -> Option<Results> {
        match self {
            Self::Interrupted => None,
            Self::Done(results) => results.map(|results| *results),
        }
    }
}

impl<E: Element> Trainer<'_, E> {
    /// Tests and exports the best model, or the last one if none was evaluated.
    ///
    /// # Errors
    /// If the best checkpoint can't be read or the output can't be written.
    /// [`TrainError::Peers`] if the generation ended meanwhile: this rank still has the weights of the last step, unless
    /// it is the one that writes.
    pub fn finish(&mut self, name: &str, ending: Ending) -> Result<Conclusion, TrainError> {
        if matches!(ending, Ending::Interrupted | Ending::Regroup) {
            return Ok(Conclusion::Interrupted);
        }
        let last_step = self.state.step;
        let model_step = self.state.best.map_or(last_step, |best| best.step);
        if model_step != last_step && self.peers.is_writer() {
            self.has_state = false;
            self.store.restore(model_step, &mut self.engine)?;
        }
        let Some(eval) = self.eval_of_chosen(model_step)? else { return Ok(Conclusion::Interrupted) };
        let mut test = None;
        if let Some(rows) = self.rows.test.clone() {
            let Some(report) = self.measure_chosen(&rows, model_step)? else {
                return Ok(Conclusion::Interrupted);
            };
            self.tell(&Event::TestDone(report.clone()));
            test = Some(report);
        }
        let ranks = self.places()?;
        // From here on nobody needs the others.
        let writes = self.leave().is_writer();
        if !writes {
            return Ok(Conclusion::Done(None));
        }
        let path = self.store.export(&mut self.engine)?;
        let results = Results {
            name: name.to_owned(),
            steps: last_step,
            total_steps: self.settings.pace.total_steps,
            epochs: self.settings.pace.epoch(last_step),
            rows: self.state.rows,
            tokens: self.state.tokens,
            skipped_steps: self.state.skipped_steps,
            stopped_early: ending == Ending::StoppedEarly,
            metric: self.settings.best.name.clone(),
            model_step,
            weights_digest: format!("{:016x}", self.engine.digest()),
            eval,
            test,
            model_dir: path.display().to_string(),
            elapsed_s: self.state.train_ms as f64 / 1e3,
            ranks,
        };
        self.store.write_results(&results)?;
        // The run is done and its numbers are safe.
        if let Err(error) = write_page(self.store.dir()) {
            self.warn(format!("no report was written: {}", with_causes(&error)));
        }
        self.tell(&Event::Exported { step: model_step, path });
        Ok(Conclusion::Done(Some(Box::new(results))))
    }

    /// What every rank has of its machine; nothing where nobody watches.
    fn places(&self) -> Result<Vec<RankPlace>, TrainError> {
        if self.binder.is_none() {
            return Ok(Vec::new());
        }
        let places = self.peers.tell_places(self.place())?;
        let of_rank = |(rank, place): (u32, Place)| RankPlace {
            rank,
            numa_local: place.local_share(),
            throttled: place.throttled_share(),
            place,
        };
        Ok((0..).zip(places).map(of_rank).collect())
    }

    /// The evaluation of the chosen model: the one that all ranks remember, or the same one again. `None` if interrupted.
    fn eval_of_chosen(&mut self, model_step: u64) -> Result<Option<Option<Report>>, TrainError> {
        let Some(rows) = self.rows.eval.clone() else { return Ok(Some(None)) };
        let remembered = self.best_report.take().filter(|(step, _)| *step == model_step);
        // A rank that joined later remembers nothing; either nobody measures or everybody.
        let forgetful = Vote { tokens: u64::from(remembered.is_none()), ..Vote::default() };
        let tally = self.peers.vote(Step(self.state.step), forgetful)?;
        match remembered.filter(|_| tally.tokens == 0) {
            Some((_, report)) => Ok(Some(Some(report))),
            None => Ok(self.measure_chosen(&rows, model_step)?.map(Some)),
        }
    }

    /// Measures the chosen model. If that is not the present one, only the rank that writes has its weights.
    fn measure_chosen(&mut self, rows: &Rows, model_step: u64) -> Result<Option<Report>, TrainError> {
        if model_step == self.state.step {
            return self.measure(rows);
        }
        let peers = std::mem::take(&mut self.peers);
        let report = self.measure_by(rows, Evaluators::Writer(&peers));
        self.peers = peers;
        report
    }
}
