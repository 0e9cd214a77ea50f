//! How many ranks of a run one node carries. The agent deals its cores by the same rules
//! (`muster_trainer::topology::split_cpus`); here they are checked before anything is started.

use std::collections::BTreeSet;

use muster_proto::run_spec::PerNode;
use muster_proto::v1::NodeReport;

/// Why a node can't carry the ranks that a run wants per node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeRanksError {
    /// The agent reports no CPU.
    #[error("node {node} offers no compute thread")]
    NoThreads {
        /// The node.
        node: String,
    },
    /// Neither whole NUMA nodes for each rank, nor equally many ranks for each NUMA node.
    #[error("{ranks} ranks can't be dealt evenly to the {domains} NUMA nodes of node {node}")]
    UnevenDomains {
        /// The node.
        node: String,
        /// Ranks per node.
        ranks: u32,
        /// Its NUMA nodes.
        domains: u32,
    },
    /// Cores that can't be dealt evenly.
    #[error(
        "{ranks} ranks can't share the {cores} physical cores of NUMA node {domain} of node {node} evenly"
    )]
    UnevenCores {
        /// The node.
        node: String,
        /// Ranks on the NUMA node.
        ranks: u32,
        /// Its cores.
        cores: u32,
        /// The NUMA node.
        domain: u32,
    },
}

impl NodeRanksError {
    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::NoThreads { .. } => "check the affinity and the cpuset of the agent on that node".into(),
            Self::UnevenDomains { domains, .. } => {
                format!("set ranks.per_node to \"numa\", or to a multiple or divisor of {domains}")
            }
            Self::UnevenCores { cores, .. } => {
                format!("set ranks.per_node to \"numa\", or so that {cores} cores go evenly to the ranks")
            }
        }
    }
}

/// The number of ranks that a node carries.
///
/// # Errors
/// A number that can't be dealt evenly to its NUMA nodes and cores.
pub fn ranks_on(node: &NodeReport, per_node: PerNode) -> Result<u32, NodeRanksError> {
    let domains = node.numa_nodes.len() as u32;
    if domains == 0 {
        return Err(NodeRanksError::NoThreads { node: node.node.clone() });
    }
    let ranks = match per_node {
        PerNode::Numa => return Ok(domains),
        PerNode::Package => {
            node.numa_nodes.iter().map(|numa| numa.package).collect::<BTreeSet<_>>().len() as u32
        }
        PerNode::Ranks(ranks) => ranks,
    };
    if ranks <= domains && domains.is_multiple_of(ranks) {
        return Ok(ranks);
    }
    if !ranks.is_multiple_of(domains) {
        return Err(NodeRanksError::UnevenDomains { node: node.node.clone(), ranks, domains });
    }
    let each = ranks / domains;
    for numa in &node.numa_nodes {
        let cores = numa.physical_cores.max(1);
        if !cores.is_multiple_of(each) && !each.is_multiple_of(cores) {
            let (node, domain) = (node.node.clone(), numa.index);
            return Err(NodeRanksError::UnevenCores { node, ranks: each, cores, domain });
        }
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::NumaNode;

    use super::*;

    #[test]
    fn whole_domains_even_shares_or_a_refusal_with_numbers() {
        let numa =
            |index, cores, package| NumaNode { index, physical_cores: cores, package, ..NumaNode::default() };
        let numa_nodes = vec![numa(0, 8, 0), numa(1, 8, 0), numa(2, 8, 1), numa(3, 8, 1)];
        let node = NodeReport { node: "n".into(), numa_nodes, ..NodeReport::default() };
        let ranks = |per_node| ranks_on(&node, per_node).map_err(|error| error.to_string());
        assert_eq!(ranks(PerNode::Numa), Ok(4));
        assert_eq!(ranks(PerNode::Package), Ok(2));
        assert_eq!(ranks(PerNode::Ranks(1)), Ok(1));
        assert_eq!(ranks(PerNode::Ranks(8)), Ok(8));
        assert_eq!(ranks(PerNode::Ranks(64)), Ok(64), "more ranks than cores, but even");
        assert_eq!(
            ranks(PerNode::Ranks(3)).unwrap_err(),
            "3 ranks can't be dealt evenly to the 4 NUMA nodes of node n"
        );
        let odd = ranks(PerNode::Ranks(12)).unwrap_err();
        assert_eq!(odd, "3 ranks can't share the 8 physical cores of NUMA node 0 of node n evenly");
        assert!(ranks_on(&NodeReport::default(), PerNode::Numa).is_err());
    }
}
