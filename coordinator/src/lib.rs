//! Placement: which rank of a run goes to which node, and why.
//!
//! A pure function of facts; nothing here talks to a node. The local machine is the only node that is placed on, and a
//! run has one rank: there is no membership, no generation and no discovery.
#![forbid(unsafe_code)]

pub mod gang;
pub mod run;
pub mod secret;
pub mod store;

pub use placement::{
    Assignment, NodeFacts, NodeRanksError, Placement, PlacementError, RanksWanted, place, ranks_on,
};

mod placement;
