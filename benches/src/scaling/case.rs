//! What is measured: where ranks are, how many rows they have, and on which cores.

use std::fmt;

use anyhow::{Result, ensure};
use muster_trainer::topology::{Core, HostFacts, split_cpus};
use serde::{Deserialize, Serialize};

use super::network::Emulation;

/// How the rows of a step grow with the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
pub enum Series {
    /// They don't: the same step, by more ranks.
    Strong,
    /// Each rank has as many as the one rank had.
    Weak,
}

impl Series {
    /// The word in files.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Strong => "strong",
            Self::Weak => "weak",
        }
    }
}

/// Who does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// This program.
    Muster,
    /// PyTorch DistributedDataParallel over Gloo.
    Torch,
}

impl Library {
    /// The word in files.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Muster => "muster",
            Self::Torch => "pytorch-gloo",
        }
    }
}

/// Where the ranks are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Place {
    /// Processes of this machine, on their share of its cores.
    Local {
        /// How many.
        ranks: usize,
    },
    /// Namespaces of this machine, a rank in each.
    Emulated(Emulation),
    /// Nodes of a coordinator.
    Cluster {
        /// How many.
        nodes: usize,
    },
}

impl Place {
    /// Machines or namespaces.
    pub fn nodes(self) -> usize {
        match self {
            Self::Local { .. } => 1,
            Self::Emulated(emulation) => emulation.nodes,
            Self::Cluster { nodes } => nodes,
        }
    }

    /// Ranks; of a cluster it is only known when they have run.
    pub fn ranks(self) -> usize {
        match self {
            Self::Local { ranks } => ranks,
            other => other.nodes(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { ranks: 1 } => f.write_str("1 rank"),
            Self::Local { ranks } => write!(f, "{ranks} ranks"),
            Self::Emulated(emulation) => write!(f, "{emulation}"),
            Self::Cluster { nodes: 1 } => f.write_str("1 node"),
            Self::Cluster { nodes } => write!(f, "{nodes} nodes"),
        }
    }
}

/// A point to measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Case {
    /// Which curve it is on.
    pub series: Series,
    /// Who does it.
    pub library: Library,
    /// Where.
    pub place: Place,
    /// Rows of a step.
    pub rows: usize,
}

impl Case {
    /// Its name in a series.
    pub fn name(&self) -> String {
        self.place.to_string()
    }
}

/// The cores of this machine, dealt so that a rank has as many wherever it is.
#[derive(Debug, Clone)]
pub struct Cores {
    /// CPUs of each share.
    shares: Vec<Vec<u32>>,
    /// Cores of a share: compute threads of a rank.
    pub threads: usize,
    /// All cores.
    pub cores: usize,
}

impl Cores {
    /// Deals the cores to so many ranks at most; more ranks than cores share them.
    ///
    /// # Errors
    /// A number of ranks that does not go evenly into the cores.
    pub fn deal(host: &HostFacts, most: usize) -> Result<Self> {
        let cores = host.cores.len().max(1);
        let ranks = most.clamp(1, cores);
        ensure!(
            cores.is_multiple_of(ranks),
            "{ranks} ranks can't share the {cores} cores of this machine evenly; {} can",
            (1..=cores)
                .filter(|n| cores.is_multiple_of(*n))
                .map(|n| n.to_string())
                .collect::<Vec<_>>()
                .join(", ")
        );
        // NUMA node by NUMA node, so that a share lies in one where it can.
        let node = |core: &Core| {
            host.nodes.iter().position(|node| core.cpus.iter().any(|cpu| node.cpus.contains(cpu)))
        };
        let mut sorted: Vec<&Core> = host.cores.iter().collect();
        sorted.sort_by_key(|core| node(core));
        let cpus = |share: &[&Core]| share.iter().flat_map(|core| core.cpus.iter().copied()).collect();
        let shares: Vec<Vec<u32>> = sorted.chunks(cores / ranks).map(cpus).collect();
        ensure!(
            !shares.is_empty() && shares.iter().all(|share| !share.is_empty()),
            "this machine names no CPU"
        );
        Ok(Self { shares, threads: cores / ranks, cores })
    }

    /// CPUs of the first `count` shares.
    pub fn first(&self, count: usize) -> Vec<u32> {
        self.shares.iter().take(count.max(1)).flatten().copied().collect()
    }

    /// CPUs of the share of a node; nodes beyond the shares begin from the front.
    pub fn of_node(&self, node: usize) -> Vec<u32> {
        self.shares[node % self.shares.len()].clone()
    }

    /// How many ranks compute at once on each core, at most; 1 is what a machine of its own has.
    pub fn crowd(&self, place: Place) -> f64 {
        match place {
            Place::Cluster { .. } => 1.0,
            place => place.ranks().div_ceil(self.shares.len()).max(1) as f64,
        }
    }

    /// The speed-up that the cores allow over one rank on its share.
    pub fn ideal(&self, place: Place) -> f64 {
        match place {
            Place::Cluster { nodes } => nodes as f64,
            place => place.ranks().min(self.shares.len()) as f64,
        }
    }
}

/// The numbers of ranks to measure where none are given: 1, 2, 4, ... that share the cores evenly, and all of them.
pub fn default_ranks(host: &HostFacts) -> Vec<usize> {
    let cores = host.cores.len().max(1);
    let fits = |&ranks: &usize| cores.is_multiple_of(ranks) && split_cpus(host, ranks, ranks.max(2)).is_ok();
    (0..=10).map(|power| 1 << power).take_while(|&ranks| ranks <= cores).filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_ranks_beyond_the_cores_crowd() {
        let host = HostFacts::detect();
        let cores = host.cores.len();
        let dealt = Cores::deal(&host, cores).expect("every core goes to a rank");
        assert_eq!((dealt.threads, dealt.cores), (1, cores));
        assert_eq!(dealt.first(cores).len(), dealt.shares.iter().map(Vec::len).sum::<usize>());
        let emulated = |nodes| Place::Emulated(Emulation { nodes, gbit: 1.0, delay_us: 0.0 });
        assert_eq!((dealt.crowd(emulated(2 * cores)), dealt.ideal(emulated(2 * cores))), (2.0, cores as f64));
        assert_eq!(dealt.of_node(cores), dealt.of_node(0));
        assert_eq!(default_ranks(&host)[0], 1);
    }
}
