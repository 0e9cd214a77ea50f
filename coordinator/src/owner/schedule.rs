//! Giving free nodes to runs: first to those that lost some, then to the queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use muster_proto::limits::{MAX_REQUEUES, REQUEUE_PAUSE};
use muster_proto::v1::{FailureKind, NodeReport, RunState};

use super::queue::{self, Quota, Verdict, Waiting};
use super::runs::Entry;
use super::{Owner, wall_ms};
use crate::discovery::Demand;
use crate::gang::{AfterStop, Event, Moment, Outcome};
use crate::placement::ranks_on;

impl Owner {
    pub(super) fn schedule(&mut self) {
        self.grow();
        let now = self.now();
        let waits = |entry: &&Entry| entry.row.state == RunState::Queued && entry.not_before <= now;
        let mut order: Vec<&Entry> = self.runs.values().filter(waits).collect();
        order.sort_by_key(|entry| (Reverse(entry.row.priority), entry.row.seq));
        let queue: Vec<Waiting> = order
            .into_iter()
            .map(|entry| Waiting {
                id: entry.row.id.clone(),
                name: entry.row.name.clone(),
                ranks: entry.spec.clone(),
                waited: now.saturating_sub(entry.queued_at),
                tenant: entry.row.tenant.clone(),
            })
            .collect();
        self.tell_demand(&queue);
        if queue.is_empty() {
            return;
        }
        let free = self.free();
        let connected = self.nodes.usable().count();
        let refusals: Vec<String> = self.nodes.refusals().collect();
        for (id, verdict) in queue::plan(&queue, &free.iter().collect::<Vec<_>>(), connected, self.quota()) {
            match verdict {
                Verdict::Start(nodes) => self.begin(&id, nodes),
                Verdict::Wait(reason) => self.waits(&id, &reason, &refusals),
                Verdict::Refuse(error) => self.refuse(&id, &error),
            }
        }
    }

    fn quota(&self) -> Quota {
        let mut running = BTreeMap::new();
        for entry in self.runs.values().filter(|entry| entry.live.is_some()) {
            *running.entry(entry.row.tenant.clone()).or_default() += 1;
        }
        Quota { running, limit: self.options.tenant_limit }
    }

    /// Tells discovery and the care for pods what runs need.
    fn tell_demand(&self, queue: &[Waiting]) {
        let live = self.runs.values().filter_map(|entry| Some((entry, entry.live.as_ref()?)));
        let nodes = live.flat_map(|(entry, live)| {
            live.gang().nodes().into_keys().map(|node| (node.to_owned(), entry.row.name.clone()))
        });
        let demand = Demand {
            is_known: true,
            busy: nodes.collect(),
            wanted: queue::nodes_wanted(queue, self.quota()),
            connected: self.nodes.usable().map(|node| node.report.node.clone()).collect(),
        };
        self.options.demand.send_if_modified(|told| {
            let is_new = *told != demand;
            *told = demand;
            is_new
        });
    }

    /// Nodes that no run has.
    fn free(&self) -> Vec<NodeReport> {
        let taken: BTreeSet<&str> = self
            .runs
            .values()
            .filter_map(|entry| entry.live.as_ref())
            .flat_map(|live| live.gang().nodes().into_keys())
            .collect();
        let free = self.nodes.usable().filter(|node| !taken.contains(node.report.node.as_str()));
        free.map(|node| node.report.clone()).collect()
    }

    /// Runs that have fewer ranks than they may have get free nodes; lost nodes are given up for them.
    fn grow(&mut self) {
        let ids: Vec<String> = self
            .runs
            .values()
            .filter(|entry| entry.live.is_some())
            .map(|entry| entry.row.id.clone())
            .collect();
        for id in ids {
            for node in self.free() {
                self.grow_by(&id, &node);
            }
        }
    }

    fn grow_by(&mut self, id: &str, node: &NodeReport) {
        let Some(entry) = self.runs.get(id).filter(|entry| entry.row.state != RunState::Stopping) else {
            return;
        };
        let Some(live) = &entry.live else { return };
        let Ok(more) = ranks_on(node, entry.spec.per_node) else { return };
        let nodes = live.gang().nodes();
        let have: u32 = nodes.values().sum();
        let most = entry.spec.max.unwrap_or(entry.row.ranks);
        let mut lost = Vec::new();
        let mut gain = have;
        for name in live.gang().lost_nodes() {
            if gain + more <= most {
                break;
            }
            gain -= nodes.get(name.as_str()).copied().unwrap_or(0);
            lost.push(name);
        }
        if gain + more > most {
            return;
        }
        for name in lost {
            self.run_event(id, Event::NodeRemoved { node: name });
        }
        self.run_event(id, Event::NodeAdded { node: node.node.clone(), local_ranks: more });
        if let Some(entry) = self.runs.get_mut(id)
            && let Some(live) = &entry.live
        {
            entry.row.nodes = live.gang().nodes().into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
            self.save_row(id);
        }
    }

    fn waits(&mut self, id: &str, reason: &str, refusals: &[String]) {
        let Some(entry) = self.runs.get_mut(id) else { return };
        let reason =
            [reason].into_iter().chain(refusals.iter().map(String::as_str)).collect::<Vec<_>>().join("; ");
        if entry.row.reason != reason {
            entry.row.reason = reason;
            self.show(id);
        }
    }

    fn refuse(&mut self, id: &str, error: &crate::placement::NodeRanksError) {
        let failure = crate::gang::Failure {
            kind: FailureKind::Input,
            error: error.to_string(),
            hints: vec![error.hint()],
            exit_code: 2,
        };
        self.end_without_nodes(id, Outcome::Failed(failure));
    }

    /// Ends a run that has no nodes.
    pub(super) fn end_without_nodes(&mut self, id: &str, outcome: Outcome) {
        let now = self.now();
        let Some(entry) = self.runs.get_mut(id) else { return };
        entry.end(outcome, now);
        self.save_row(id);
        self.show(id);
    }
}

impl Entry {
    /// Notes how a run ended, or that it goes back to the queue.
    pub(super) fn end(&mut self, outcome: Outcome, now: Moment) {
        let row = &mut self.row;
        row.ended_ms = wall_ms();
        if !matches!(outcome, Outcome::Stopped { then: AfterStop::Requeue, .. }) {
            // It stays on disk; history in memory is small.
            row.run_file = String::new();
        }
        match outcome {
            Outcome::Succeeded { results } => {
                (row.state, row.reason, row.results) =
                    (RunState::Succeeded, "all steps are done".into(), results);
            }
            Outcome::Failed(failure) => {
                row.state = RunState::Failed;
                row.failure = failure.kind;
                row.reason =
                    [failure.error].into_iter().chain(failure.hints).collect::<Vec<_>>().join("; hint: ");
            }
            Outcome::Stopped { saved, reason, then: AfterStop::Over } => {
                row.state = RunState::Cancelled;
                row.reason = match saved {
                    Some(step) => format!("{reason}; a checkpoint of step {step} was saved"),
                    None => reason,
                };
            }
            Outcome::Stopped { reason, then: AfterStop::Requeue, .. } => self.requeue(&reason, now),
        }
    }

    fn requeue(&mut self, reason: &str, now: Moment) {
        let row = &mut self.row;
        let moved = row.progress.is_some_and(|progress| progress.step > self.first_step);
        row.requeues = if moved { 1 } else { row.requeues + 1 };
        if row.requeues > MAX_REQUEUES {
            row.state = RunState::Failed;
            row.failure = FailureKind::Other;
            row.reason = format!("given up after {MAX_REQUEUES} starts without a step; the last: {reason}");
            return;
        }
        let (shortest, longest) = REQUEUE_PAUSE;
        let pause = shortest.saturating_mul(1 << (row.requeues - 1).min(16)).min(longest);
        (self.not_before, self.queued_at) = (now + pause, now);
        (row.state, row.resume, row.ended_ms) = (RunState::Queued, true, 0);
        row.reason = format!("back in the queue, not before {} s: {reason}", pause.as_secs());
    }
}
