//! Who trains what, and where: placement, membership of runs, their queue, and the services that people and agents talk to.
//!
//! The decisions are pure: [`place`], the gang's state machine in [`gang`], the queue in `owner`. One owner task holds all
//! state and asks them; `net` only carries messages. Weights and gradients never pass through here.
#![forbid(unsafe_code)]

pub mod discovery;
pub mod gang;
pub mod net;
pub mod owner;
pub mod run;
pub mod secret;
pub mod store;

pub use placement::{
    Assignment, NodeFacts, NodeRanksError, Placement, PlacementError, RanksWanted, place, ranks_on,
};

mod placement;
