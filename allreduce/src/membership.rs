//! Who takes part: the members of one generation in rank order, and the costs from which every rank derives the
//! same plans.
//!
//! A membership never changes; a join or a loss makes a new one with a higher generation. Nothing here resolves
//! names or opens connections.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::ops::Range;

use muster_proto::limits::{MAX_NAME_BYTES, MAX_NODES, MAX_RANKS};
use muster_proto::{Generation, Rank};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// Most addresses that one member may advertise.
pub const MAX_ADDRESSES: usize = 16;

/// One process of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Name that stays the same across generations, e.g. the pod and the NUMA node.
    pub id: String,
    /// Name of the machine or pod; members of one node stand next to each other.
    pub node: String,
    /// Where the member listens, best first. Literals only: names are never resolved in the data path.
    pub addresses: Vec<SocketAddr>,
}

/// Cost of messages between two processes: `alpha + overhead + bytes * beta`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkCost {
    /// Latency of one message including the wake-up of its receiver, in microseconds.
    pub alpha_us: f64,
    /// CPU time of one message at its sender, in microseconds.
    pub overhead_us: f64,
    /// Time per byte, in nanoseconds.
    pub beta_ns: f64,
}

/// The measured costs of a run; equal on every rank, so that every rank chooses the same algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CostModel {
    /// Between members of one node.
    pub within_node: LinkCost,
    /// Between members of different nodes.
    pub between_nodes: LinkCost,
    /// Largest world in which everybody may send to one rank at once.
    pub fan_in_max: usize,
}

impl Default for CostModel {
    /// Loopback inside a node, 25 Gb/s Ethernet between nodes.
    fn default() -> Self {
        Self {
            within_node: LinkCost { alpha_us: 12.0, overhead_us: 4.0, beta_ns: 0.3 },
            between_nodes: LinkCost { alpha_us: 30.0, overhead_us: 4.0, beta_ns: 0.345 },
            fan_in_max: 32,
        }
    }
}

/// The members of one generation, in rank order, node by node.
#[derive(Debug, Clone, PartialEq)]
pub struct Membership {
    run: String,
    generation: Generation,
    members: Vec<Member>,
    /// Ranks of each node, in rank order.
    nodes: Vec<usize>,
    costs: CostModel,
    hash: u64,
}

/// A list of members that can't form a generation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MembershipError {
    /// No member, or more than a run may have.
    #[error(
        "a membership needs 1 to {MAX_RANKS} members on at most {MAX_NODES} nodes, got {members} on {nodes}"
    )]
    Size {
        /// How many members there are.
        members: usize,
        /// On how many nodes.
        nodes: usize,
    },
    /// A name is empty or too long.
    #[error("{rank} has a {what} of {bytes} bytes; 1 to {MAX_NAME_BYTES} are allowed")]
    Name {
        /// Whose.
        rank: Rank,
        /// Which name: id, node or run.
        what: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// Two members have one id.
    #[error("{rank} has the id {id:?} of an earlier rank")]
    DuplicateId {
        /// The later of the two.
        rank: Rank,
        /// The id.
        id: String,
    },
    /// The members of a node don't stand together.
    #[error("{rank} is on node {node:?}, whose other ranks stand further up; ranks go node by node")]
    Scattered {
        /// The rank that stands apart.
        rank: Rank,
        /// Its node.
        node: String,
    },
    /// A member has no address, or too many.
    #[error("{rank} has {count} addresses; 1 to {MAX_ADDRESSES} are needed")]
    Addresses {
        /// Whose.
        rank: Rank,
        /// How many.
        count: usize,
    },
    /// A cost is negative or not a number.
    #[error("the cost model has {name} = {value}; it must be finite and not negative")]
    Cost {
        /// Which cost.
        name: &'static str,
        /// Its value.
        value: f64,
    },
}

impl MembershipError {
    /// The fix for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Scattered { .. } => Some("sort the members with Membership::node_major first".into()),
            Self::DuplicateId { .. } => {
                Some("give each process its own id, e.g. pod name and NUMA node".into())
            }
            Self::Cost { .. } => Some("repeat the probe, or use CostModel::default()".into()),
            _ => None,
        }
    }
}

impl Membership {
    /// Checks the members and fixes their ranks: the order of `members`.
    ///
    /// # Errors
    /// See [`MembershipError`]. A single member needs no address.
    pub fn new(
        run: &str,
        generation: Generation,
        members: Vec<Member>,
        costs: CostModel,
    ) -> Result<Self, MembershipError> {
        let nodes = check_members(run, &members)?;
        check_costs(&costs)?;
        let hash = hash(run, generation, &members, &costs);
        Ok(Self { run: run.to_owned(), generation, members, nodes, costs, hash })
    }

    /// Sorts members so that those of one node stand together; nodes come in the order of their first member.
    pub fn node_major(members: Vec<Member>) -> Vec<Member> {
        let mut order: Vec<String> = Vec::new();
        for member in &members {
            if !order.contains(&member.node) {
                order.push(member.node.clone());
            }
        }
        let mut keyed: Vec<(usize, Member)> = members
            .into_iter()
            .map(|m| (order.iter().position(|n| *n == m.node).unwrap_or(order.len()), m))
            .collect();
        keyed.sort_by_key(|(node, _)| *node);
        keyed.into_iter().map(|(_, m)| m).collect()
    }

    /// Name of the run.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// The version of this membership.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.members.len()
    }

    /// All members, in rank order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member with this rank.
    pub fn member(&self, rank: Rank) -> Option<&Member> {
        self.members.get(rank.0 as usize)
    }

    /// How many ranks each node has, in rank order.
    pub fn nodes(&self) -> &[usize] {
        &self.nodes
    }

    /// The ranks that share a node with `rank`.
    pub fn local(&self, rank: Rank) -> Range<u32> {
        let mut first = 0;
        for &len in &self.nodes {
            let node = first..first + len as u32;
            if node.contains(&rank.0) {
                return node;
            }
            first = node.end;
        }
        0..0
    }

    /// The measured costs.
    pub fn costs(&self) -> &CostModel {
        &self.costs
    }

    /// A hash of everything that plans derive from; part of each operation's fingerprint.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}

/// Checks names, order and addresses; returns how many ranks each node has.
fn check_members(run: &str, members: &[Member]) -> Result<Vec<usize>, MembershipError> {
    let named = |rank, what, text: &str| match text.len() {
        1..=MAX_NAME_BYTES => Ok(()),
        bytes => Err(MembershipError::Name { rank, what, bytes }),
    };
    named(Rank(0), "run name", run)?;
    let mut nodes: Vec<usize> = Vec::new();
    let (mut ids, mut seen) = (HashSet::new(), HashSet::new());
    for (i, member) in members.iter().enumerate() {
        let rank = Rank(u32::try_from(i).unwrap_or(u32::MAX));
        named(rank, "id", &member.id)?;
        named(rank, "node name", &member.node)?;
        if !ids.insert(&member.id) {
            return Err(MembershipError::DuplicateId { rank, id: member.id.clone() });
        }
        let count = member.addresses.len();
        if count > MAX_ADDRESSES || (count == 0 && members.len() > 1) {
            return Err(MembershipError::Addresses { rank, count });
        }
        match nodes.last_mut() {
            Some(len) if members[i - 1].node == member.node => *len += 1,
            _ if !seen.insert(&member.node) => {
                return Err(MembershipError::Scattered { rank, node: member.node.clone() });
            }
            _ => nodes.push(1),
        }
    }
    if members.is_empty() || members.len() > MAX_RANKS as usize || nodes.len() > MAX_NODES {
        return Err(MembershipError::Size { members: members.len(), nodes: nodes.len() });
    }
    Ok(nodes)
}

fn check_costs(costs: &CostModel) -> Result<(), MembershipError> {
    let (within, between) = (&costs.within_node, &costs.between_nodes);
    let all = [
        ("within_node.alpha_us", within.alpha_us),
        ("within_node.overhead_us", within.overhead_us),
        ("within_node.beta_ns", within.beta_ns),
        ("between_nodes.alpha_us", between.alpha_us),
        ("between_nodes.overhead_us", between.overhead_us),
        ("between_nodes.beta_ns", between.beta_ns),
    ];
    match all.into_iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
        Some((name, value)) => Err(MembershipError::Cost { name, value }),
        None => Ok(()),
    }
}

/// Addresses are left out: they don't change a plan, and a pod may get a new one.
fn hash(run: &str, generation: Generation, members: &[Member], costs: &CostModel) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(run.as_bytes());
    hasher.update(&generation.0.to_le_bytes());
    for text in members.iter().flat_map(|m| [&m.id, &m.node]) {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    for link in [costs.within_node, costs.between_nodes] {
        for value in [link.alpha_us, link.overhead_us, link.beta_ns] {
            hasher.update(&value.to_le_bytes());
        }
    }
    hasher.update(&(costs.fan_in_max as u64).to_le_bytes());
    hasher.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str, node: &str) -> Member {
        Member { id: id.into(), node: node.into(), addresses: vec![([127, 0, 0, 1], 1).into()] }
    }

    fn form(members: Vec<Member>) -> Result<Membership, MembershipError> {
        Membership::new("run", Generation(1), members, CostModel::default())
    }

    #[test]
    fn ranks_go_node_by_node() {
        let scattered = vec![member("a", "x"), member("b", "y"), member("c", "x")];
        assert_eq!(
            form(scattered.clone()),
            Err(MembershipError::Scattered { rank: Rank(2), node: "x".into() })
        );
        let sorted = form(Membership::node_major(scattered)).unwrap();
        assert_eq!(sorted.nodes(), [2, 1]);
        assert_eq!((sorted.local(Rank(1)), sorted.local(Rank(2)), sorted.local(Rank(9))), (0..2, 2..3, 0..0));
        assert_eq!(sorted.members()[1].id, "c");
    }

    #[test]
    fn bad_members_are_refused_by_name() {
        assert_eq!(form(vec![]), Err(MembershipError::Size { members: 0, nodes: 0 }));
        let twice = vec![member("a", "x"), member("a", "x")];
        assert_eq!(form(twice), Err(MembershipError::DuplicateId { rank: Rank(1), id: "a".into() }));
        let mut silent = member("b", "x");
        silent.addresses.clear();
        let error = form(vec![member("a", "x"), silent]).unwrap_err();
        assert_eq!(error.to_string(), "rank 1 has 0 addresses; 1 to 16 are needed");
        let mut costs = CostModel::default();
        costs.within_node.beta_ns = f64::NAN;
        let error = Membership::new("run", Generation(0), vec![member("a", "x")], costs).unwrap_err();
        assert!(error.to_string().contains("within_node.beta_ns = NaN"), "{error}");
    }

    #[test]
    fn the_hash_follows_members_and_costs_but_not_addresses() {
        let base = form(vec![member("a", "x"), member("b", "x")]).unwrap();
        let mut moved = vec![member("a", "x"), member("b", "x")];
        moved[1].addresses = vec![([10, 0, 0, 1], 9).into()];
        assert_eq!(form(moved).unwrap().hash(), base.hash());
        assert_ne!(form(vec![member("a", "x"), member("b", "y")]).unwrap().hash(), base.hash());
        assert_ne!(form(vec![member("ab", "x"), member("", "x")]).ok().map(|m| m.hash()), Some(base.hash()));
    }
}
