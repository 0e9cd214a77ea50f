//! How long each algorithm should take, from the measured costs.
//!
//! Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
//! 19(1), 2005, with one term for the messages that one rank sends in a step.

use crate::membership::{CostModel, LinkCost};
use crate::plan::{Algorithm, Group};

/// The numbers that an estimate needs.
pub(super) struct Job<'a> {
    pub group: &'a Group,
    pub costs: &'a CostModel,
    /// Bytes of the whole buffer, as elements and as partial sums.
    pub bytes: f64,
    pub partial_bytes: f64,
    pub segment_bytes: f64,
}

impl Job<'_> {
    /// Microseconds of an all-reduce, or why the algorithm can't be used.
    pub fn all_reduce(&self, algorithm: Algorithm) -> Result<f64, &'static str> {
        let n = self.group.len();
        let steps = (n as f64 - 1.0).max(0.0);
        let rounds = f64::from(n.ilog2()) + if n.is_power_of_two() { 0.0 } else { 2.0 };
        let link = self.flat_link();
        let each_way = self.bytes * steps / n as f64;
        let partial = self.partial_bytes * steps / n as f64;
        match algorithm {
            Algorithm::OneShot if n > self.costs.fan_in_max => Err("too many senders at one receiver"),
            Algorithm::OneShot => Ok(link.alpha_us + steps * (self.step(&link, self.bytes))),
            Algorithm::Doubling if self.group.equal_nodes().is_none() => Err("nodes have different sizes"),
            Algorithm::Doubling => Ok(rounds * (link.alpha_us + self.step(&link, self.partial_bytes))),
            Algorithm::Direct if n > self.costs.fan_in_max => Err("too many senders at one receiver"),
            Algorithm::Direct => {
                Ok(2.0 * (link.alpha_us + steps * link.overhead_us) + 2.0 * self.transfer(&link, each_way))
            }
            Algorithm::Ring if n <= self.costs.fan_in_max => Err("its order of summation is not canonical"),
            Algorithm::Ring => Ok(2.0 * steps * (link.alpha_us + link.overhead_us)
                + self.transfer(&link, each_way)
                + self.transfer(&link, partial)),
            Algorithm::Hierarchical => self.hierarchical(),
        }
    }

    fn hierarchical(&self) -> Result<f64, &'static str> {
        let locals = self.group.equal_nodes().ok_or("nodes have different sizes")?;
        let nodes = self.group.nodes().len();
        if locals == 1 || nodes == 1 {
            return Err("there is one level only");
        }
        if locals.max(nodes) > self.costs.fan_in_max {
            return Err("too many senders at one receiver");
        }
        let (within, between) = (self.costs.within_node, self.costs.between_nodes);
        let stage = |link: &LinkCost, n: usize, there: f64, back: f64| {
            let share = (n as f64 - 1.0) / n as f64;
            2.0 * (link.alpha_us + (n as f64 - 1.0) * link.overhead_us)
                + self.transfer(link, there * share)
                + self.transfer(link, back * share)
        };
        let shared = LinkCost { beta_ns: between.beta_ns * locals as f64, ..between };
        let shard = 1.0 / locals as f64;
        Ok(stage(&within, locals, self.bytes, self.bytes)
            + stage(&shared, nodes, self.partial_bytes * shard, self.bytes * shard))
    }

    /// What a rank sees of the network when all ranks of its node use it at once.
    fn flat_link(&self) -> LinkCost {
        match self.group.nodes() {
            [_] => self.costs.within_node,
            nodes => {
                let most = nodes.iter().copied().max().unwrap_or(1) as f64;
                let link = self.costs.between_nodes;
                LinkCost { beta_ns: link.beta_ns * most, ..link }
            }
        }
    }

    fn step(&self, link: &LinkCost, bytes: f64) -> f64 {
        link.overhead_us + self.transfer(link, bytes)
    }

    /// Time on the wire, and of the messages beyond the first.
    fn transfer(&self, link: &LinkCost, bytes: f64) -> f64 {
        let more = (bytes / self.segment_bytes).floor();
        bytes * link.beta_ns / 1e3 + more * link.overhead_us
    }
}
