//! Messages and services, generated from `proto/muster/v1`. The documentation is in those files.
#![allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated; documented in the .proto files")]

tonic::include_proto!("muster.v1");

/// Version of the protocol between coordinator, agents and ranks; others are refused.
pub const PROTOCOL: u32 = 1;

/// The descriptors, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("muster.v1");
