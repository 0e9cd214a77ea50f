//! From what an agent says to what a run must know.

use muster_proto::v1::{AgentEvent, agent_event};

use super::said;
use crate::gang::{Event, Exit};

/// An event for one run.
#[derive(Debug, Clone)]
pub struct ForRun {
    /// The run.
    pub run_id: String,
    /// The event.
    pub event: Event,
}

/// Finds the run that an agent's event is for; reports, farewells and log lines are for nobody or for all.
pub fn route(event: &AgentEvent) -> Option<ForRun> {
    let (run_id, event) = match event.event.clone()? {
        agent_event::Event::FromRank(from) => {
            (from.run_id, Event::Said { member: from.member_id, said: said(from.event)? })
        }
        agent_event::Event::Exited(exited) => {
            let exit = Exit { code: exited.code, signal: exited.signal, out_of_memory: exited.out_of_memory };
            (exited.run_id, Event::Exited { member: exited.member_id, exit })
        }
        agent_event::Event::StartFailed(failed) => {
            (failed.run_id, Event::StartFailed { member: failed.member_id, error: failed.error })
        }
        agent_event::Event::Report(_) | agent_event::Event::Leaving(_) | agent_event::Event::Log(_) => {
            return None;
        }
    };
    Some(ForRun { run_id, event })
}
