//! The plan of gradient buckets, and digests that prove that buffers are bit-identical.
#![deny(unsafe_code)]

pub use bucket::{Bucket, BucketOptions, BucketPlan, PlanError};
pub use comm::{
    Buffer, CommOptions, Communicator, Done, Failed, Handle, OpOptions, Statistics, Wire, compare_digests,
};
pub use digest::digest;
pub use element::{DataType, Element, Operation};
pub use engine::{Holding, OpReport, Policy, Report, Resolution, resolve};
pub use error::{Error, Loss, Phase, Result};
pub use membership::{CostModel, LinkCost, Member, Membership, MembershipError};
pub use tcp::{Key, Listener, Security};
pub use timeouts::Timeouts;

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
