//! Dealing the cores of a node to the ranks that run on it.
//!
//! A pure function of [`HostFacts`]: NUMA nodes first, then physical cores, evenly or not at all. Nothing here binds.

use super::{Core, HostFacts, NumaNode};

/// A rank that keeps at least this many cores can spare one for communication and control.
const CORES_TO_SPARE_ONE: usize = 4;

/// The CPUs of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankCpus {
    /// Its CPUs, first threads of physical cores first; empty: where the process is.
    pub cpus: Vec<u32>,
    /// Physical cores among them.
    pub cores: usize,
    /// CPUs for its communication: those of the core that was left over, if that is on its NUMA node.
    pub spare: Vec<u32>,
}

/// The CPUs of every rank of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// One entry per local rank.
    pub ranks: Vec<RankCpus>,
    /// CPUs of the core that is left to communication and control; none where ranks have few.
    pub spare: Vec<u32>,
    /// Why it is so.
    pub reason: String,
}

/// A number of ranks that a node can't carry evenly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// Zero ranks.
    #[error("a node of a run has at least one rank")]
    NoRanks,
    /// Fewer ranks than NUMA nodes, and not a divisor.
    #[error("{ranks} ranks can't share {nodes} NUMA nodes evenly")]
    UnevenNodes {
        /// Ranks.
        ranks: usize,
        /// NUMA nodes with an allowed CPU.
        nodes: usize,
    },
    /// Cores that can't be dealt evenly.
    #[error("{ranks} ranks can't share the {cores} physical cores of NUMA node {node} evenly")]
    UnevenCores {
        /// Ranks on that NUMA node.
        ranks: usize,
        /// Its cores.
        cores: usize,
        /// The NUMA node.
        node: u32,
    },
}

impl SplitError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoRanks => None,
            Self::UnevenNodes { nodes, .. } => {
                Some(format!("ask for {nodes} ranks per node, one per NUMA node"))
            }
            Self::UnevenCores { cores, .. } => {
                let fit: Vec<String> =
                    (1..=*cores).filter(|n| cores % n == 0).map(|n| n.to_string()).collect();
                Some(format!("{cores} cores go evenly to {} ranks", fit.join(", ")))
            }
        }
    }
}

/// Deals the cores that this node allows to `local_ranks` ranks of a run that has `world_ranks` in all.
///
/// # Errors
/// A number of ranks that can't be dealt evenly.
pub fn split_cpus(facts: &HostFacts, local_ranks: usize, world_ranks: usize) -> Result<Split, SplitError> {
    if local_ranks == 0 {
        return Err(SplitError::NoRanks);
    }
    if world_ranks <= 1 {
        let rank = RankCpus { cpus: Vec::new(), cores: facts.cores.len(), spare: Vec::new() };
        let reason = "the only rank may use every allowed CPU".into();
        return Ok(Split { ranks: vec![rank], spare: Vec::new(), reason });
    }
    let domains = domains(facts);
    let mut shares = if local_ranks <= domains.len() {
        whole_domains(&domains, local_ranks)?
    } else {
        parts_of_domains(&domains, local_ranks)?
    };
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut reason = format!("{} on {}", count(local_ranks, "rank"), count(domains.len(), "NUMA node"));
    if let Some(quota) = &facts.quota {
        let most = ((quota.cpus.floor() as usize) / local_ranks).max(1);
        if shares.iter().any(|share| share.len() > most) {
            shares.iter_mut().for_each(|share| share.truncate(most));
            reason.push_str(&format!(", {most} cores each within the quota of {} CPUs", quota.cpus));
        }
    }
    // Rows are dealt in proportion to threads, so one rank may have a core less.
    let (least, most) = (shares.iter().map(Vec::len).min(), shares.iter().map(Vec::len).max());
    let largest = shares.iter_mut().rev().max_by_key(|share| share.len());
    let left = largest.filter(|share| share.len() > CORES_TO_SPARE_ONE).and_then(Vec::pop);
    if let Some((least, most)) = least.zip(most).filter(|(least, most)| least < most) {
        reason.push_str(&format!(", of {least} to {most} cores: rows are dealt in proportion"));
    }
    if left.is_some() {
        reason.push_str(", one core left to communication and control");
    }
    let spare = left.map_or_else(Vec::new, |core| core.cpus.clone());
    let spare_node = spare.first().and_then(|&cpu| node_of(facts, cpu));
    let ranks = shares.into_iter().map(|cores| {
        let cpus = physical_first(&cores);
        // Sums read and write the rank's memory: a core of another node would do so across the socket.
        let is_near = cpus.iter().any(|&cpu| node_of(facts, cpu) == spare_node);
        let spare = if is_near { spare.clone() } else { Vec::new() };
        RankCpus { cores: cores.len(), cpus, spare }
    });
    Ok(Split { ranks: ranks.collect(), spare, reason })
}

fn node_of(facts: &HostFacts, cpu: u32) -> Option<u32> {
    facts.nodes.iter().find(|node| node.cpus.contains(&cpu)).map(|node| node.node)
}

/// The cores of each NUMA node, in order.
fn domains(facts: &HostFacts) -> Vec<(u32, Vec<&Core>)> {
    let of = |node: &NumaNode| {
        let inside = |core: &&Core| core.cpus.iter().any(|cpu| node.cpus.contains(cpu));
        facts.cores.iter().filter(inside).collect()
    };
    let domains: Vec<_> = facts.nodes.iter().map(|node| (node.node, of(node))).collect();
    match domains.iter().all(|(_, cores): &(u32, Vec<&Core>)| cores.is_empty()) {
        true => vec![(0, facts.cores.iter().collect())],
        false => domains,
    }
}

fn whole_domains<'a>(
    domains: &[(u32, Vec<&'a Core>)],
    ranks: usize,
) -> Result<Vec<Vec<&'a Core>>, SplitError> {
    if !domains.len().is_multiple_of(ranks) {
        return Err(SplitError::UnevenNodes { ranks, nodes: domains.len() });
    }
    let each = domains.len() / ranks;
    Ok(domains.chunks(each).map(|part| part.iter().flat_map(|(_, cores)| cores.clone()).collect()).collect())
}

fn parts_of_domains<'a>(
    domains: &[(u32, Vec<&'a Core>)],
    ranks: usize,
) -> Result<Vec<Vec<&'a Core>>, SplitError> {
    if !ranks.is_multiple_of(domains.len()) {
        return Err(SplitError::UnevenNodes { ranks, nodes: domains.len() });
    }
    let each = ranks / domains.len();
    let mut shares = Vec::with_capacity(ranks);
    for (node, cores) in domains {
        if cores.len().is_multiple_of(each) {
            shares.extend(cores.chunks(cores.len() / each).map(<[&Core]>::to_vec));
        } else if each.is_multiple_of(cores.len()) {
            // More ranks than cores is slow, but somebody asked for it, and it is even.
            shares.extend((0..each).map(|rank| vec![cores[rank % cores.len()]]));
        } else {
            return Err(SplitError::UnevenCores { ranks: each, cores: cores.len(), node: *node });
        }
    }
    Ok(shares)
}

/// The first thread of every core, then the second of every core that has one, and so on.
fn physical_first(cores: &[&Core]) -> Vec<u32> {
    let most = cores.iter().map(|core| core.cpus.len()).max().unwrap_or(0);
    (0..most).flat_map(|nth| cores.iter().filter_map(move |core| core.cpus.get(nth).copied())).collect()
}

#[cfg(test)]
mod tests {
    use hwlocality::Topology;
    use hwlocality::object::types::ObjectType;
    use hwlocality::topology::builder::TopologyBuilder;

    use super::*;
    use crate::topology::{HugePages, MemoryFacts, NodesFrom, Quota, hwloc_nodes};

    /// Facts of a machine as hwloc describes it in its synthetic notation.
    fn machine(synthetic: &str) -> HostFacts {
        let topology = TopologyBuilder::new().from_synthetic(synthetic).unwrap().build().unwrap();
        let cores = cores(&topology);
        let allowed: Vec<u32> = cores.iter().flat_map(|core| core.cpus.clone()).collect();
        HostFacts {
            nodes: hwloc_nodes(&topology, &allowed),
            allowed,
            cores,
            quota: None,
            throttling: None,
            memory: MemoryFacts::default(),
            huge_pages: HugePages::Unknown,
            nodes_from: NodesFrom::Hwloc,
            l2_bytes: None,
            l3: None,
            warnings: Vec::new(),
        }
    }

    fn cores(topology: &Topology) -> Vec<Core> {
        let cores = topology.objects_with_type(ObjectType::Core);
        let cpus = |object: &hwlocality::object::TopologyObject| {
            object.cpuset().unwrap().iter_set().map(|idx| usize::from(idx) as u32).collect::<Vec<u32>>()
        };
        cores.map(|object| Core { package: 0, cpus: cpus(object) }).collect()
    }

    fn counts(split: &Split) -> Vec<usize> {
        split.ranks.iter().map(|rank| rank.cores).collect()
    }

    #[test]
    fn one_rank_per_numa_node_leaves_one_core_of_the_machine_to_communication() {
        let split = split_cpus(&machine("pack:2 numa:1 core:28 pu:2"), 2, 8).unwrap();
        assert_eq!(counts(&split), [27, 28]);
        assert_eq!(split.ranks[0].cpus[..3], [0, 2, 4], "first threads of cores first");
        assert_eq!(split.ranks[0].cpus.len(), 54);
        assert_eq!(split.ranks[1].cpus[0], 56);
        assert!(split.reason.ends_with("one core left to communication and control"), "{}", split.reason);
        assert_eq!(split.spare, [54, 55]);
        assert_eq!(split.ranks[0].spare, [54, 55]);
        assert_eq!(split.ranks[1].spare, [0u32; 0], "sums stay on the node of their memory");
    }

    #[test]
    fn a_cpuset_that_gives_nodes_unevenly_makes_ranks_of_different_weight() {
        let mut facts = machine("pack:2 numa:1 core:8 pu:1");
        // kubernetes/kubernetes#139430: 8 CPUs of one node and 4 of the other.
        facts.cores.truncate(12);
        facts.allowed.truncate(12);
        facts.nodes[1].cpus.truncate(4);
        let split = split_cpus(&facts, 2, 2).unwrap();
        assert_eq!(counts(&split), [7, 4]);
        assert!(split.reason.contains("of 4 to 8 cores: rows are dealt in proportion"), "{}", split.reason);
        assert_eq!(split_cpus(&facts, 3, 3).unwrap_err(), SplitError::UnevenNodes { ranks: 3, nodes: 2 });
    }

    #[test]
    fn more_ranks_than_numa_nodes_share_cores_evenly_or_are_refused_with_numbers() {
        let facts = machine("pack:1 numa:1 core:8 pu:1");
        assert_eq!(counts(&split_cpus(&facts, 2, 2).unwrap()), [4, 4], "a rank keeps four cores");
        assert_eq!(counts(&split_cpus(&facts, 8, 8).unwrap()), [1; 8]);
        let error = split_cpus(&facts, 3, 3).unwrap_err();
        assert_eq!(error.to_string(), "3 ranks can't share the 8 physical cores of NUMA node 0 evenly");
        assert_eq!(error.hint().unwrap(), "8 cores go evenly to 1, 2, 4, 8 ranks");
        let two = machine("pack:2 numa:1 core:4 pu:1");
        assert_eq!(split_cpus(&two, 3, 3).unwrap_err(), SplitError::UnevenNodes { ranks: 3, nodes: 2 });
        assert_eq!(counts(&split_cpus(&two, 4, 4).unwrap()), [2; 4]);
    }

    #[test]
    fn fewer_ranks_than_numa_nodes_take_whole_ones() {
        let facts = machine("pack:4 numa:1 core:2 pu:1");
        let split = split_cpus(&facts, 2, 2).unwrap();
        assert_eq!(split.ranks[1].cpus, [4, 5, 6, 7]);
        assert_eq!(counts(&split_cpus(&facts, 1, 2).unwrap()), [7]);
        assert_eq!(split_cpus(&facts, 3, 3).unwrap_err(), SplitError::UnevenNodes { ranks: 3, nodes: 4 });
    }

    #[test]
    fn more_ranks_than_cores_share_them_if_it_is_even() {
        let facts = machine("pack:1 numa:1 core:2 pu:1");
        let split = split_cpus(&facts, 4, 4).unwrap();
        let cpus: Vec<u32> = split.ranks.iter().flat_map(|rank| rank.cpus.clone()).collect();
        assert_eq!(cpus, [0, 1, 0, 1]);
        assert!(split_cpus(&facts, 3, 3).is_err());
    }

    #[test]
    fn a_quota_is_shared_and_a_single_rank_is_left_alone() {
        let mut facts = machine("pack:2 numa:1 core:8 pu:1");
        facts.quota = Some(Quota { cpus: 6.5, place: "cpu.max".into() });
        assert_eq!(counts(&split_cpus(&facts, 2, 2).unwrap()), [3, 3]);
        assert_eq!(split_cpus(&facts, 1, 1).unwrap().ranks[0].cpus, Vec::<u32>::new());
        assert_eq!(split_cpus(&facts, 0, 1).unwrap_err(), SplitError::NoRanks);
    }
}
