//! The plan of gradient buckets, and digests that prove that buffers are bit-identical.
#![deny(unsafe_code)]

pub use bucket::{Bucket, BucketOptions, BucketPlan, PlanError};
pub use digest::digest;
pub use element::{DataType, Element, Operation};
pub use error::{Error, Loss, Phase, Result};
pub use membership::{CostModel, LinkCost, Member, Membership, MembershipError};

mod bucket;
mod digest;
mod element;
mod error;
mod membership;
pub mod order;
pub mod plan;
#[allow(unsafe_code, reason = "memory that processes share")]
pub mod shm;
