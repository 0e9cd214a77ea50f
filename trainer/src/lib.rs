//! One rank of a run: data, model, tape, gradients, optimizer, checkpoints and the topology of its machine.
//!
//! Data flows one way: dataset -> tokenizer -> sampler -> packed micro-batch -> forward (tape) -> backward ->
//! gradient arena -> clip + AdamW -> weights -> checkpoint. Time, randomness and the environment are read by the
//! command line and passed in; this crate prints nothing.
#![deny(unsafe_code)]

pub mod agent;
pub mod batch;
mod bounded;
pub mod checkpoint;
pub mod data;
pub mod engine;
pub mod export;
pub mod gradients;
pub mod hub;
pub mod metrics;
pub mod model;
pub mod params;
pub mod peers;
pub mod plan;
pub mod rank;
pub mod report;
pub mod schedule;
pub mod tape;
pub mod tokenizer;
pub mod topology;
pub mod train;
pub mod weights;
