//! The plan of gradient buckets, and digests that prove that buffers are bit-identical.
//!
//! Collectives between ranks come with the first release that runs more than one rank. Nothing here opens a socket
//! or holds data: a bucket is a range of the one gradient arena.
#![forbid(unsafe_code)]

pub use bucket::{Bucket, BucketOptions, BucketPlan, PlanError};
pub use digest::digest;

mod bucket;
mod digest;
