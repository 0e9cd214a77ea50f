//! The plan of gradient buckets, and digests that prove that buffers are bit-identical.
#![forbid(unsafe_code)]

pub use bucket::{Bucket, BucketOptions, BucketPlan, PlanError};
pub use comm::{
    Buffer, CommOptions, Communicator, Done, Failed, Handle, OpOptions, Statistics, Wire, compare_digests,
};
pub use digest::digest;
pub use engine::{Holding, OpReport, Policy, Report, Resolution, resolve};
pub use element::{DataType, Element, Operation};
pub use error::{Error, Loss, Phase, Result};
pub use tcp::{Key, Listener, Security};
pub use timeouts::Timeouts;
pub use membership::{CostModel, LinkCost, Member, Membership, MembershipError};

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
#[cfg(test)]
mod sim;
mod tcp;
mod timeouts;
