//! Which queued runs start now: a pure function of the queue and the free nodes.
//!
//! Runs go by priority, and by the order of submission inside a priority. A run gets whole nodes, all of them at once.
//! A smaller run may overtake a run that waits for more nodes, but only for a while: then free nodes are kept for the
//! one that waits.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_proto::limits::BACKFILL_WINDOW;
use muster_proto::run_spec::RanksSpec;
use muster_proto::v1::NodeReport;

use crate::placement::{NodeRanksError, ranks_on};

/// A run that waits for nodes.
#[derive(Debug, Clone)]
pub(super) struct Waiting {
    pub id: String,
    pub name: String,
    pub ranks: RanksSpec,
    pub waited: Duration,
    /// Whose run it is; empty: nobody's, without a limit.
    pub tenant: String,
}

/// Runs that have nodes, by tenant, and how many of them one tenant may have.
#[derive(Debug, Clone, Default)]
pub(super) struct Quota {
    pub running: BTreeMap<String, u32>,
    pub limit: Option<u32>,
}

impl Quota {
    /// Why a tenant gets no more at the moment.
    fn refusal(&self, tenant: &str) -> Option<String> {
        let running = self.running.get(tenant).copied().unwrap_or(0);
        let limit = self.limit.filter(|limit| !tenant.is_empty() && running >= *limit)?;
        Some(format!("{tenant} has {running} runs at work; a tenant may have {limit} at once"))
    }
}

/// What becomes of a waiting run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It starts on these nodes, with so many ranks on each.
    Start(Vec<(String, u32)>),
    /// It waits, for this reason.
    Wait(String),
    /// It can never start on such nodes.
    Refuse(NodeRanksError),
}

/// Decides about every waiting run; `queue` is in order, `free` are the nodes that no run has, of `connected` in all.
pub(super) fn plan(
    queue: &[Waiting],
    free: &[&NodeReport],
    connected: usize,
    mut quota: Quota,
) -> Vec<(String, Verdict)> {
    let mut free: Vec<&NodeReport> = free.to_vec();
    free.sort_by(|a, b| a.node.cmp(&b.node));
    let mut blocked: Option<&Waiting> = None;
    let mut verdicts = Vec::with_capacity(queue.len());
    for run in queue {
        // A run beyond its tenant's limit waits beside the queue: it keeps nobody else from nodes.
        if let Some(reason) = quota.refusal(&run.tenant) {
            verdicts.push((run.id.clone(), Verdict::Wait(reason)));
            continue;
        }
        let mut verdict = fit(run, &free, connected);
        if let (Verdict::Start(_), Some(head)) = (&verdict, blocked)
            && head.waited >= BACKFILL_WINDOW
        {
            verdict = Verdict::Wait(format!("free nodes are kept for {}, which waits for longer", head.name));
        }
        match &verdict {
            Verdict::Start(nodes) => {
                free.retain(|node| !nodes.iter().any(|(name, _)| *name == node.node));
                *quota.running.entry(run.tenant.clone()).or_default() += 1;
            }
            Verdict::Wait(_) => blocked = blocked.or(Some(run)),
            Verdict::Refuse(_) => {}
        }
        verdicts.push((run.id.clone(), verdict));
    }
    verdicts
}

/// Nodes that the queue could use, whether they are there or not. Runs beyond their tenant's limit use none.
pub(super) fn nodes_wanted(queue: &[Waiting], mut quota: Quota) -> u32 {
    let mut wanted = 0_u32;
    for run in queue.iter() {
        if quota.refusal(&run.tenant).is_none() {
            *quota.running.entry(run.tenant.clone()).or_default() += 1;
            wanted = wanted.saturating_add(run.ranks.nodes.unwrap_or(1));
        }
    }
    wanted
}

fn fit(run: &Waiting, free: &[&NodeReport], connected: usize) -> Verdict {
    let mut refusal = None;
    let mut taken: Vec<(String, u32)> = Vec::new();
    let mut ranks = 0;
    let most = run.ranks.max.unwrap_or(u32::MAX);
    for node in free {
        if run.ranks.nodes.is_some_and(|wanted| taken.len() >= wanted as usize) {
            break;
        }
        match ranks_on(node, run.ranks.per_node) {
            Ok(here) if ranks + here <= most => {
                ranks += here;
                taken.push((node.node.clone(), here));
            }
            Ok(_) => {}
            Err(error) => refusal = Some(error),
        }
    }
    if let (true, Some(error)) = (taken.is_empty(), refusal) {
        return Verdict::Refuse(error);
    }
    let wanted = run.ranks.nodes.unwrap_or(1) as usize;
    let least = run.ranks.min.unwrap_or(1);
    if taken.len() >= wanted && ranks >= least {
        return Verdict::Start(taken);
    }
    let nodes = |count: usize| if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") };
    let has = format!(
        "{} free of {} connected",
        nodes(free.len()).replace(" nodes", "").replace(" node", ""),
        connected
    );
    Verdict::Wait(match taken.len() < wanted {
        true => format!("needs {}; {has}", nodes(wanted)),
        false => format!("needs {least} ranks, free nodes carry {ranks}; {has}"),
    })
}

#[cfg(test)]
mod tests {
    use muster_proto::run_spec::PerNode;
    use muster_proto::v1::NumaNode;

    use super::*;

    fn node(name: &str) -> NodeReport {
        let numa = |index| NumaNode { index, physical_cores: 8, ..NumaNode::default() };
        NodeReport { node: name.into(), numa_nodes: vec![numa(0), numa(1)], ..NodeReport::default() }
    }

    fn run(id: &str, nodes: Option<u32>, waited_s: u64) -> Waiting {
        let ranks = RanksSpec { nodes, ..RanksSpec::default() };
        Waiting {
            id: id.into(),
            name: id.into(),
            ranks,
            waited: Duration::from_secs(waited_s),
            tenant: String::new(),
        }
    }

    fn words(queue: &[Waiting], count: usize) -> Vec<String> {
        let nodes: Vec<NodeReport> = (0..count).map(|n| node(&format!("n{n}"))).collect();
        let free: Vec<&NodeReport> = nodes.iter().collect();
        let word = |(_, verdict)| match verdict {
            Verdict::Start(nodes) => {
                nodes.iter().map(|(name, ranks)| format!("{name}x{ranks}")).collect::<Vec<_>>().join(" ")
            }
            Verdict::Wait(reason) => reason,
            Verdict::Refuse(error) => error.to_string(),
        };
        plan(queue, &free, count, Quota::default()).into_iter().map(word).collect()
    }

    #[test]
    fn runs_start_in_order_with_whole_nodes() {
        assert_eq!(words(&[run("a", Some(2), 0), run("b", Some(1), 0)], 3), ["n0x2 n1x2", "n2x2"]);
        assert_eq!(
            words(&[run("a", None, 0), run("b", None, 0)], 2),
            ["n0x2 n1x2", "needs 1 node; 0 free of 2 connected"]
        );
    }

    #[test]
    fn a_tenant_at_its_limit_waits_and_keeps_nobody_else() {
        let nodes: Vec<NodeReport> = (0..3).map(|n| node(&format!("n{n}"))).collect();
        let of = |id: &str, tenant: &str| Waiting { tenant: tenant.into(), ..run(id, Some(1), 0) };
        let queue = [of("a1", "a"), of("a2", "a"), of("b1", "b"), of("free", "")];
        let quota = Quota { running: BTreeMap::new(), limit: Some(1) };
        let verdicts = plan(&queue, &nodes.iter().collect::<Vec<_>>(), 3, quota);
        let started: Vec<&str> = verdicts
            .iter()
            .filter(|(_, verdict)| matches!(verdict, Verdict::Start(_)))
            .map(|(id, _)| id.as_str())
            .collect();
        assert_eq!(started, ["a1", "b1", "free"]);
        assert_eq!(nodes_wanted(&queue, Quota { running: BTreeMap::new(), limit: Some(1) }), 3);
        let reason = "a has 1 runs at work; a tenant may have 1 at once";
        assert_eq!(verdicts[1].1, Verdict::Wait(reason.into()));
    }

    #[test]
    fn a_smaller_run_overtakes_for_a_while_and_then_the_head_gets_its_nodes() {
        let queue = |waited| [run("head", Some(3), waited), run("small", Some(1), 0)];
        assert_eq!(words(&queue(5), 2), ["needs 3 nodes; 2 free of 2 connected", "n0x2"]);
        let window = BACKFILL_WINDOW.as_secs();
        let later = words(&queue(window), 2);
        assert_eq!(later[1], "free nodes are kept for head, which waits for longer");
        assert_eq!(words(&queue(window), 3)[0], "n0x2 n1x2 n2x2");
    }

    #[test]
    fn ranks_that_do_not_exist_are_waited_for_and_impossible_ones_refused() {
        let mut many = run("many", None, 0);
        many.ranks.min = Some(100);
        assert_eq!(words(&[many], 2), ["needs 100 ranks, free nodes carry 4; 2 free of 2 connected"]);
        let mut odd = run("odd", None, 0);
        odd.ranks.per_node = PerNode::Ranks(3);
        assert_eq!(
            words(std::slice::from_ref(&odd), 2),
            ["3 ranks can't be dealt evenly to the 2 NUMA nodes of node n1"]
        );
        assert_eq!(words(&[odd], 0), ["needs 1 node; 0 free of 0 connected"], "nobody knows yet");
        let mut few = run("few", None, 0);
        few.ranks.max = Some(3);
        assert_eq!(words(&[few], 2), ["n0x2"]);
    }
}
