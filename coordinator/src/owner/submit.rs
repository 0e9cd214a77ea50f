//! New runs, and the runs of an earlier coordinator.

use std::path::Path;

use muster_proto::RunSpec;
use muster_proto::limits::{MAX_NAME_BYTES, MAX_OPEN_RUNS, MAX_OVERRIDES, MAX_RUN_FILE_BYTES};
use muster_proto::v1::{self, FailureKind, RunState};

use super::request::Refusal;
use super::runs::Entry;
use super::{Owner, OwnerError, wall_ms};
use crate::gang::{AfterStop, Event, Gang, Save};
use crate::run::Run;
use crate::secret::{random_bytes, random_name};
use crate::store::{RunRow, StoreError};

/// Longest path of a run file, in bytes.
const MAX_PATH_BYTES: usize = 4_096;

impl Owner {
    pub(super) fn submit(
        &mut self,
        request: v1::SubmitRequest,
        submitter: String,
    ) -> Result<v1::Run, Refusal> {
        if let Some(run) = self.of_request(&request.request_id)? {
            return Ok(run);
        }
        check_sizes(&request)?;
        let open = self.runs.values().filter(|entry| !entry.row.is_over()).count();
        if open >= MAX_OPEN_RUNS {
            return Err(Refusal::Exhausted(format!(
                "{open} runs are queued or run; at most {MAX_OPEN_RUNS} may"
            )));
        }
        let path = Path::new(&request.run_file_path);
        let spec = RunSpec::parse_with(&request.run_file, path, &request.overrides);
        let spec = spec.map_err(|error| Refusal::Invalid(error.to_string()))?;
        let row = RunRow {
            seq: 0,
            id: random_name::<6>(),
            request_id: Some(request.request_id).filter(|id| !id.is_empty()),
            name: spec.name.clone(),
            run_file: request.run_file,
            run_file_path: request.run_file_path,
            overrides: request.overrides,
            priority: request.priority,
            resume: request.resume,
            state: RunState::Queued,
            reason: "in the queue".into(),
            submitted_ms: wall_ms(),
            started_ms: 0,
            ended_ms: 0,
            results: String::new(),
            failure: FailureKind::Unspecified,
            nodes: Vec::new(),
            ranks: 0,
            incarnation: 0,
            generation: 0,
            recoveries: 0,
            last_recovery_ms: 0,
            requeues: 0,
            progress: None,
            submitter,
            tenant: request.tenant,
            sweep: request.sweep,
            metric: spec.eval.metric_or_default(spec.task.kind).to_owned(),
        };
        // A run that could be lost must not be promised.
        let row = self.store.add_run(&row).map_err(|error| refuse(&error))?;
        let id = row.id.clone();
        tracing::info!(run = id, "{} is queued", row.name);
        let mut entry = Entry::new(row, spec.ranks);
        entry.queued_at = self.now();
        self.runs.insert(id.clone(), entry);
        self.forget_old();
        self.schedule();
        Ok(self.runs.get(&id).map(Entry::message).unwrap_or_default())
    }

    fn of_request(&self, request_id: &str) -> Result<Option<v1::Run>, Refusal> {
        if request_id.is_empty() {
            return Ok(None);
        }
        let same = |entry: &&Entry| entry.row.request_id.as_deref() == Some(request_id);
        if let Some(entry) = self.runs.values().find(same) {
            return Ok(Some(entry.message()));
        }
        let stored = self.store.run_of_request(request_id).map_err(|error| refuse(&error))?;
        Ok(stored.map(|row| row.to_message()))
    }

    /// The oldest runs that are over leave history.
    fn forget_old(&mut self) {
        let mut over: Vec<(i64, String)> = self
            .runs
            .values()
            .filter(|entry| entry.row.is_over())
            .map(|entry| (entry.row.seq, entry.row.id.clone()))
            .collect();
        let most = muster_proto::limits::MAX_RUNS_KEPT;
        if over.len() > most {
            over.sort_unstable();
            for (_, id) in over.drain(..over.len() - most) {
                self.runs.remove(&id);
            }
            let forgotten = self.store.forget_old_runs();
            self.stored(forgotten);
        }
    }

    /// Takes over what an earlier coordinator left: queued runs wait again, and gangs are taken to go on until their
    /// nodes report.
    pub(super) fn restore(&mut self) -> Result<(), OwnerError> {
        let now = self.now();
        for row in self.store.runs()? {
            let path = Path::new(&row.run_file_path);
            // It could be read when it was submitted; defaults are better than losing the run.
            let spec = RunSpec::parse_with(&row.run_file, path, &row.overrides).map(|spec| spec.ranks);
            let mut entry = Entry::new(row, spec.unwrap_or_default());
            entry.queued_at = now;
            entry.first_step = entry.row.progress.map_or(0, |progress| progress.step);
            if entry.row.is_over() {
                entry.row.run_file = String::new();
            }
            let has_nodes = !entry.row.is_over() && entry.row.state != RunState::Queued;
            let id = entry.row.id.clone();
            if has_nodes {
                let past = self.store.past(&entry.row)?;
                let origin = match (entry.row.requeues, entry.row.resume) {
                    (0, true) => v1::Origin::Resume,
                    (0, false) => v1::Origin::Fresh,
                    _ => v1::Origin::ResumeOrFresh,
                };
                let gang = Gang::new(self.policy(&entry), origin).restore(now, &entry.row.nodes, &past);
                let run = Run::new(entry.recipe(), gang, random_bytes::<32>);
                entry.live = Some(entry.with_course(run));
                tracing::info!(run = id, "{} is taken over, generation {}", entry.row.name, past.generation);
            }
            let stopping = has_nodes && entry.row.state == RunState::Stopping;
            self.runs.insert(id.clone(), entry);
            if stopping {
                let reason = "told to end before the coordinator started again".into();
                self.run_event(&id, Event::Stop { save: Save::Yes, reason, then: AfterStop::Over });
            }
        }
        Ok(())
    }
}

fn refuse(error: &StoreError) -> Refusal {
    let hint = error.hint().map(|hint| format!("; hint: {hint}")).unwrap_or_default();
    match error {
        StoreError::Full { .. } => Refusal::Exhausted(format!("{error}{hint}")),
        other => {
            use std::error::Error;
            let cause = other.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            Refusal::Broken(format!("{error}{cause}{hint}"))
        }
    }
}

fn check_sizes(request: &v1::SubmitRequest) -> Result<(), Refusal> {
    for (what, found, most) in [
        ("bytes of the run file", request.run_file.len(), MAX_RUN_FILE_BYTES as usize),
        ("bytes of its path", request.run_file_path.len(), MAX_PATH_BYTES),
        ("overrides", request.overrides.len(), MAX_OVERRIDES),
        (
            "bytes of an override",
            request.overrides.iter().map(String::len).max().unwrap_or(0),
            MAX_PATH_BYTES,
        ),
        ("bytes of the request id", request.request_id.len(), MAX_NAME_BYTES),
        ("bytes of the tenant's name", request.tenant.len(), MAX_NAME_BYTES),
        ("bytes of the sweep's name", request.sweep.len(), MAX_NAME_BYTES),
    ] {
        if found > most {
            return Err(Refusal::Invalid(format!("{found} {what}; at most {most} are allowed")));
        }
    }
    if !Path::new(&request.run_file_path).is_absolute() {
        let path = &request.run_file_path;
        return Err(Refusal::Invalid(format!(
            "the path of the run file is {path:?}; it must be absolute, because nodes look for data beside it"
        )));
    }
    Ok(())
}
