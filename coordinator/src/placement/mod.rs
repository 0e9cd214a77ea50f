//! Dealing ranks to NUMA domains.

use muster_proto::Rank;
use muster_proto::limits::{MAX_NODES, MAX_RANKS};

pub use node::{NodeRanksError, ranks_on};

mod node;

/// A machine or pod, as its agent reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Host name, unique in the run.
    pub name: String,
    /// Compute threads that each of its NUMA domains offers, in order of the domains; domains without any are left out.
    pub domain_threads: Vec<usize>,
}

/// How many ranks a run should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RanksWanted {
    /// Exactly so many.
    Exactly(u32),
    /// One per NUMA domain of every node.
    OnePerDomain,
}

/// Where a rank runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The rank.
    pub rank: Rank,
    /// Name of its node.
    pub node: String,
    /// Number of the rank on its node, from 0.
    pub local_rank: u32,
    /// NUMA domains of the node whose CPUs it uses, as indices; more than one only if ranks are fewer than domains.
    pub domains: Vec<usize>,
    /// Its compute threads.
    pub threads: usize,
}

/// Where every rank of a run goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// One entry per rank, in rank order.
    pub ranks: Vec<Assignment>,
    /// Why it is so, in words.
    pub reason: String,
}

/// Why a run can't be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// There is no node.
    #[error("no node to place ranks on")]
    NoNode,
    /// A node without a usable CPU.
    #[error("node {node} offers no compute thread")]
    NoThreads {
        /// The node.
        node: String,
    },
    /// Zero ranks.
    #[error("a run needs at least one rank")]
    NoRanks,
    /// More ranks than NUMA domains: two ranks in one domain would share its memory bandwidth.
    #[error("{wanted} ranks were asked for, but the {nodes} nodes have {domains} NUMA domains")]
    TooManyRanks {
        /// Ranks asked for.
        wanted: u32,
        /// Domains of all nodes.
        domains: usize,
        /// Nodes.
        nodes: usize,
    },
    /// Ranks that can't be dealt evenly.
    #[error("{wanted} ranks can't be dealt evenly to {nodes} nodes")]
    Uneven {
        /// Ranks asked for.
        wanted: u32,
        /// Nodes.
        nodes: usize,
    },
    /// Over a bound of the product.
    #[error("{found} {what} are more than the {most} that are supported")]
    OverLimit {
        /// Nodes or ranks.
        what: &'static str,
        /// How many.
        found: usize,
        /// The bound.
        most: usize,
    },
}

impl PlacementError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoThreads { .. } => {
                Some("check the affinity and the cpuset of the process on that node".into())
            }
            Self::TooManyRanks { domains, .. } => Some(format!("ask for at most {domains} ranks")),
            Self::Uneven { nodes, .. } => Some(format!("ask for a multiple of {nodes} ranks")),
            Self::NoNode | Self::NoRanks | Self::OverLimit { .. } => None,
        }
    }
}

/// Deals ranks to nodes and NUMA domains, in order of their names. Ranks of a node are neighbours.
///
/// # Errors
/// A node without threads, or a number of ranks that the nodes can't carry evenly.
pub fn place(nodes: &[NodeFacts], wanted: &RanksWanted) -> Result<Placement, PlacementError> {
    let domains = check(nodes)?;
    let mut nodes: Vec<&NodeFacts> = nodes.iter().collect();
    // Agents report in any order; the placement must not depend on it.
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    let wanted = match *wanted {
        RanksWanted::Exactly(0) => return Err(PlacementError::NoRanks),
        RanksWanted::Exactly(n) => Some(n),
        RanksWanted::OnePerDomain => None,
    };
    let count = wanted.map_or(domains, |n| n as usize);
    if count > MAX_RANKS as usize {
        return Err(PlacementError::OverLimit { what: "ranks", found: count, most: MAX_RANKS as usize });
    }
    if let Some(wanted) = wanted {
        let fit = |node: &&NodeFacts| node.domain_threads.len() >= count / nodes.len();
        if count > domains {
            return Err(PlacementError::TooManyRanks { wanted, domains, nodes: nodes.len() });
        }
        if !count.is_multiple_of(nodes.len()) || !nodes.iter().all(fit) {
            return Err(PlacementError::Uneven { wanted, nodes: nodes.len() });
        }
    }
    let mut ranks: Vec<Assignment> = Vec::with_capacity(count);
    for node in &nodes {
        let here = if wanted.is_some() { count / nodes.len() } else { node.domain_threads.len() };
        let first = ranks.len() as u32;
        ranks.extend((0..here).map(|local| assign(node, local, here, first)));
    }
    let reason = reason(&ranks, nodes.len(), domains);
    Ok(Placement { ranks, reason })
}

fn check(nodes: &[NodeFacts]) -> Result<usize, PlacementError> {
    if nodes.is_empty() {
        return Err(PlacementError::NoNode);
    }
    if nodes.len() > MAX_NODES {
        return Err(PlacementError::OverLimit { what: "nodes", found: nodes.len(), most: MAX_NODES });
    }
    let idle = |node: &&NodeFacts| node.domain_threads.iter().sum::<usize>() == 0;
    match nodes.iter().find(idle) {
        Some(node) => Err(PlacementError::NoThreads { node: node.name.clone() }),
        None => Ok(nodes.iter().map(|node| node.domain_threads.len()).sum()),
    }
}

/// The domains of a node are dealt to its ranks in blocks of nearly equal size.
fn assign(node: &NodeFacts, local: usize, ranks_here: usize, first: u32) -> Assignment {
    let domains = node.domain_threads.len();
    let block = (local * domains / ranks_here)..((local + 1) * domains / ranks_here);
    Assignment {
        rank: Rank(first + local as u32),
        node: node.name.clone(),
        local_rank: local as u32,
        threads: node.domain_threads[block.clone()].iter().sum(),
        domains: block.collect(),
    }
}

fn reason(ranks: &[Assignment], nodes: usize, domains: usize) -> String {
    let threads: usize = ranks.iter().map(|rank| rank.threads).sum();
    let plural = |n: usize, word: &str| if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") };
    let (what, spread) = (plural(ranks.len(), "rank"), plural(nodes, "node"));
    let (domains, threads) = (plural(domains, "NUMA domain"), plural(threads, "thread"));
    format!("{what} on {spread} with {domains}, {threads} in all")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, domain_threads: &[usize]) -> NodeFacts {
        NodeFacts { name: name.into(), domain_threads: domain_threads.to_vec() }
    }

    #[test]
    fn one_rank_on_the_local_machine_uses_all_its_domains() {
        let placement = place(&[node("local", &[2])], &RanksWanted::Exactly(1)).unwrap();
        assert_eq!(placement.reason, "1 rank on 1 node with 1 NUMA domain, 2 threads in all");
        let expected =
            Assignment { rank: Rank(0), node: "local".into(), local_rank: 0, domains: vec![0], threads: 2 };
        assert_eq!(placement.ranks, [expected]);
        let placement = place(&[node("local", &[28, 28])], &RanksWanted::Exactly(1)).unwrap();
        assert_eq!((placement.ranks[0].threads, placement.ranks[0].domains.clone()), (56, vec![0, 1]));
    }

    #[test]
    fn each_domain_of_every_node_gets_a_rank_in_order_of_names() {
        let nodes = [node("b", &[28, 28]), node("a", &[28, 27])];
        let placement = place(&nodes, &RanksWanted::OnePerDomain).unwrap();
        let ranks: Vec<_> =
            placement.ranks.iter().map(|r| (r.rank.0, r.node.as_str(), r.local_rank, r.threads)).collect();
        assert_eq!(ranks, [(0, "a", 0, 28), (1, "a", 1, 27), (2, "b", 0, 28), (3, "b", 1, 28)]);
        let turned = [nodes[1].clone(), nodes[0].clone()];
        assert_eq!(
            place(&turned, &RanksWanted::OnePerDomain).unwrap(),
            placement,
            "order of reports is nothing"
        );
    }

    #[test]
    fn what_can_not_be_placed_is_refused_with_numbers() {
        let nodes = [node("a", &[4, 4]), node("b", &[4, 4])];
        let error = |nodes: &[NodeFacts], wanted| place(nodes, &wanted).unwrap_err();
        let many = error(&nodes, RanksWanted::Exactly(5));
        assert_eq!(many.to_string(), "5 ranks were asked for, but the 2 nodes have 4 NUMA domains");
        assert_eq!(many.hint().unwrap(), "ask for at most 4 ranks");
        let uneven = error(&nodes, RanksWanted::Exactly(3));
        assert_eq!(uneven, PlacementError::Uneven { wanted: 3, nodes: 2 });
        let lopsided = [node("a", &[4]), node("b", &[4, 4, 4])];
        assert_eq!(error(&lopsided, RanksWanted::Exactly(4)), PlacementError::Uneven { wanted: 4, nodes: 2 });
        assert_eq!(error(&[], RanksWanted::OnePerDomain), PlacementError::NoNode);
        assert_eq!(error(&nodes, RanksWanted::Exactly(0)), PlacementError::NoRanks);
        let idle = error(&[node("a", &[])], RanksWanted::OnePerDomain);
        assert_eq!(idle.to_string(), "node a offers no compute thread");
        let crowd: Vec<_> = (0..=MAX_NODES).map(|i| node(&format!("n{i}"), &[1])).collect();
        assert!(matches!(
            error(&crowd, RanksWanted::OnePerDomain),
            PlacementError::OverLimit { what: "nodes", .. }
        ));
    }
}
