//! The plan of gradient buckets, and digests that prove that buffers are bit-identical.
//!
//! A run has one rank, so there are no collectives. Nothing here opens a socket or holds data: a bucket is a range of
//! the one gradient arena.
#![forbid(unsafe_code)]

pub use bucket::{Bucket, BucketOptions, BucketPlan, PlanError};
pub use digest::digest;

mod bucket;
mod digest;
