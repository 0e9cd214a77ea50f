//! Collective operations between the ranks of a run: all-reduce, reduce-scatter, all-gather, broadcast, barrier and
//! transfers, in shared memory and over TCP. And the plan of gradient buckets, and digests that prove that they are
//! equal.
//!
//! A training loop starts at [`World`], everybody else at [`Communicator`] (TCP) or [`shm::ShmGroup`] (one machine). Below it, [`plan`] works out which elements go where, [`engine`] runs such plans as a
//! state machine without sockets, clock or threads, and the TCP driver moves its frames ([`frame`]).
//!
//! Invariants
//! * Results have the same bits on every rank, and do not depend on size, algorithm (but the ring), streams or
//!   timing: [`order`] is the one order of summation.
//! * Everything that waits has a deadline, and all deadlines derive from two numbers ([`Timeouts`]).
//! * Every queue, buffer and list that a peer can fill has a bound.
//! * Nothing here decides who is a member, resolves a name, or reads a configuration.
#![deny(unsafe_code)]

pub use bucket::{BucketOptions, BucketPlan, PlanError};
pub use comm::{
    Buffer, CommOptions, Communicator, Done, Failed, Handle, OpOptions, Statistics, Wire, compare_digests,
};
pub use digest::digest;
pub use element::{DataType, Element, Operation};
pub use engine::{Holding, OpReport, Policy, Report, Resolution, resolve};
pub use error::{Error, Loss, Phase, Result};
pub use membership::{CostModel, LinkCost, Member, Membership, MembershipError};
pub use tcp::{Key, LinkTls, Listener, Security};
pub use timeouts::Timeouts;
pub use world::{Pending, RowCounts, SumBuffer, TableRows, World, WorldAbort};

mod bucket;
mod comm;
mod digest;
mod element;
pub mod engine;
mod error;
pub mod frame;
mod membership;
pub mod order;
pub mod plan;
#[allow(unsafe_code, reason = "memory that processes share")]
pub mod shm;
#[cfg(test)]
mod sim;
mod tcp;
mod timeouts;
mod world;
