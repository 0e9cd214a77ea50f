//! Answers to people and programs, and what those who watch are sent.

use muster_proto::limits::{MAX_RUN_LOG_LINES, MAX_WATCHERS, WATCH_QUEUE};
use muster_proto::v1::{self, RunState};
use tokio::sync::mpsc;

use super::Owner;
use super::request::{LogStream, Refusal, Request, RunStream};
use super::runs::Entry;
use crate::gang::{AfterStop, Outcome};

/// Most runs of one answer.
const MAX_LISTED: usize = 1_000;
/// Log lines of one message.
const LINES_PER_MESSAGE: usize = 256;

impl Owner {
    pub(super) fn request(&mut self, request: Request) {
        // Who asked may be gone; then the answer is for nobody.
        match request {
            Request::Submit(submit, by, reply) => drop(reply.send(self.submit(submit, by))),
            Request::Get(run, reply) => {
                drop(reply.send(self.find(&run).map(|id| self.message(&id))));
            }
            Request::List(list, reply) => drop(reply.send(Ok(self.list(&list)))),
            Request::Watch(run, reply) => drop(reply.send(self.watch(&run))),
            Request::Cancel(run, by, reply) => drop(reply.send(self.cancel(&run, &by))),
            Request::Logs(logs, reply) => drop(reply.send(self.logs(&logs))),
            Request::Metrics(reply) => drop(reply.send(self.metrics())),
            Request::Nodes(reply) => {
                drop(reply.send(self.list_nodes()));
            }
        }
    }

    fn message(&self, id: &str) -> v1::Run {
        let mut run = self.runs.get(id).map(Entry::message).unwrap_or_default();
        if matches!(run.state(), RunState::Queued | RunState::Forming | RunState::Waiting) {
            run.waits_for = self.waits_for();
        }
        run
    }

    /// The run of an id, of the unambiguous beginning of one, or the newest of a name.
    fn find(&self, run: &str) -> Result<String, Refusal> {
        if self.runs.contains_key(run) {
            return Ok(run.to_owned());
        }
        let of_name = self.runs.values().filter(|entry| entry.row.name == run);
        if let Some(newest) = of_name.max_by_key(|entry| entry.row.seq) {
            return Ok(newest.row.id.clone());
        }
        let mut beginning = self.runs.keys().filter(|id| !run.is_empty() && id.starts_with(run));
        match (beginning.next(), beginning.next()) {
            (Some(id), None) => Ok(id.clone()),
            (Some(_), Some(_)) => {
                Err(Refusal::Invalid(format!("several runs begin with {run:?}; give more of it")))
            }
            (None, _) => Err(Refusal::NotFound(format!("no run has the id or name {run:?}"))),
        }
    }

    fn list(&self, list: &v1::ListRunsRequest) -> Vec<v1::Run> {
        let wanted = |entry: &&Entry| match list.sweep.is_empty() {
            true => list.all || !entry.row.is_over(),
            false => entry.row.sweep == list.sweep,
        };
        let mut entries: Vec<&Entry> = self.runs.values().filter(wanted).collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.row.seq));
        let limit = if list.limit == 0 { MAX_LISTED } else { (list.limit as usize).min(MAX_LISTED) };
        entries.into_iter().take(limit).map(Entry::message).collect()
    }

    fn watch(&mut self, run: &str) -> Result<RunStream, Refusal> {
        let id = self.find(run)?;
        let message = self.message(&id);
        let Some(entry) = self.runs.get_mut(&id) else { return Err(Refusal::NotFound(run.into())) };
        room(entry.watchers.len())?;
        let (sender, stream) = mpsc::channel(WATCH_QUEUE);
        let first = v1::WatchRunResponse { run: Some(message), notes: Vec::new() };
        if sender.try_send(first).is_ok() && !entry.row.is_over() {
            entry.watchers.push(sender);
        }
        Ok(stream)
    }

    fn cancel(&mut self, run: &str, by: &str) -> Result<v1::Run, Refusal> {
        let id = self.find(run)?;
        let Some(entry) = self.runs.get(&id) else { return Err(Refusal::NotFound(run.into())) };
        let reason = if by.is_empty() { "cancelled".to_owned() } else { format!("cancelled by {by}") };
        match (entry.row.is_over(), entry.live.is_some()) {
            (true, _) => {
                let state = entry.row.state.as_str_name().trim_start_matches("RUN_STATE_").to_lowercase();
                return Err(Refusal::State(format!("the run is over already: {state}")));
            }
            (false, true) => self.stop(&id, &reason),
            (false, false) => {
                let outcome = Outcome::Stopped { saved: None, reason, then: AfterStop::Over };
                self.end_without_nodes(&id, outcome);
            }
        }
        Ok(self.message(&id))
    }

    fn logs(&mut self, logs: &v1::LogsRequest) -> Result<LogStream, Refusal> {
        let id = self.find(&logs.run)?;
        self.flush();
        let tail = if logs.tail == 0 { MAX_RUN_LOG_LINES } else { logs.tail as usize };
        let stored = self.store.logs(&id, tail).map_err(|error| Refusal::Broken(error.to_string()))?;
        let Some(entry) = self.runs.get_mut(&id) else { return Err(Refusal::NotFound(logs.run.clone())) };
        room(entry.log_watchers.len())?;
        // What the disk did not take is still here.
        let rest = entry.lines.iter().cloned();
        let messages = messages(stored.into_iter().chain(rest));
        let (sender, stream) = mpsc::channel(WATCH_QUEUE.max(messages.len()));
        let sent = messages.into_iter().all(|message| sender.try_send(message).is_ok());
        if sent && logs.follow && !entry.row.is_over() {
            entry.log_watchers.push(sender);
        }
        Ok(stream)
    }

    /// Tells those who watch a run that it is in another state.
    pub(super) fn show(&mut self, id: &str) {
        let Some(entry) = self.runs.get_mut(id) else { return };
        let now = match &entry.live {
            Some(live) => {
                let (state, reason) = live.state();
                (state, reason, live.gang().last_generation())
            }
            None => (entry.row.state, entry.row.reason.clone(), entry.row.generation),
        };
        // Most events are steps, which change none of it.
        let (state, reason, generation) = now;
        let same = |shown: &v1::Run| {
            (shown.state(), &shown.reason, shown.generation) == (state, &reason, generation)
        };
        if entry.shown.as_ref().is_some_and(same) {
            return;
        }
        // Only what a person asked for is stored as "stopping": a run that fails finds that out again.
        if ![entry.row.state, state].contains(&RunState::Stopping) {
            (entry.row.state, entry.row.reason) = (state, reason);
            entry.unsaved = true;
        }
        // Counts of recoveries outlive a coordinator that dies right after one.
        entry.note_course();
        let message = entry.message();
        entry.tell(message);
        if entry.row.is_over() {
            entry.watchers.clear();
            entry.log_watchers.clear();
        }
    }

    /// Tells those who watch how far runs are.
    pub(super) fn show_progress(&mut self) {
        for entry in self.runs.values_mut().filter(|entry| entry.live.is_some()) {
            entry.watchers.retain(|watcher| !watcher.is_closed());
            if entry.watchers.is_empty() {
                continue;
            }
            let message = entry.message();
            if !entry.notes.is_empty() || entry.shown.as_ref() != Some(&message) {
                entry.tell(message);
            }
        }
    }
}

impl Entry {
    fn tell(&mut self, message: v1::Run) {
        // Notes wait for somebody who watches, up to a bound.
        let notes = if self.watchers.is_empty() { Vec::new() } else { self.notes.drain(..).collect() };
        let response = v1::WatchRunResponse { run: Some(message.clone()), notes };
        // Who is too slow is sent away rather than waited for.
        self.watchers.retain(|watcher| watcher.try_send(response.clone()).is_ok());
        self.shown = Some(message);
    }
}

fn room(watchers: usize) -> Result<(), Refusal> {
    if watchers < MAX_WATCHERS {
        return Ok(());
    }
    Err(Refusal::Exhausted(format!("{watchers} others watch this run; at most {MAX_WATCHERS} may")))
}

/// Neighbouring lines of one rank share a message.
fn messages(lines: impl Iterator<Item = crate::store::LogLine>) -> Vec<v1::LogsResponse> {
    let mut messages: Vec<v1::LogsResponse> = Vec::new();
    for line in lines {
        match messages.last_mut() {
            Some(last) if last.member_id == line.member && last.lines.len() < LINES_PER_MESSAGE => {
                last.lines.push(line.line);
            }
            _ => messages.push(v1::LogsResponse { member_id: line.member, lines: vec![line.line] }),
        }
    }
    messages
}
