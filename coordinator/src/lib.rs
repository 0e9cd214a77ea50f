//! Placement: which rank of a run goes to which node, and why.
//!
//! A pure function of facts; nothing here talks to a node. In this release the local machine is the only node and a
//! run has one rank: membership, generations and discovery come with the first release that spans machines.
#![forbid(unsafe_code)]

pub use placement::{Assignment, NodeFacts, Placement, PlacementError, RanksWanted, place};

mod placement;
