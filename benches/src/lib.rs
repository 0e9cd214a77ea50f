//! The benchmarks of Muster: what `muster bench` and `muster tune` do.
//!
//! Everything measured becomes a [`schema::BenchFile`]; reports, comparisons and forecasts read nothing else. Ratios
//! within one run count; absolute times are the machine's. Ranks are processes of the `muster` program, which is given by
//! its path: this crate holds no training of its own.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::atomic::AtomicBool;

pub mod allreduce;
mod command;
pub mod compare;
pub mod fingerprint;
pub mod forecast;
pub mod kernels;
mod procs;
pub mod report;
pub mod scaling;
pub mod schema;
pub mod shapes;
pub mod stats;
pub mod step;
pub mod tune;

pub use command::{BenchCommand, Said, run};

/// What a benchmark gets from the program around it.
pub struct Env<'a> {
    /// The `muster` program.
    pub program: &'a Path,
    /// Set by a signal to stop.
    pub stop: &'a AtomicBool,
    /// Tells a person how far it is.
    pub say: &'a dyn Fn(&str),
}
