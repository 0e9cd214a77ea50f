//! The run specification, shared newtypes and the limits of every queue and map.
#![forbid(unsafe_code)]

pub use ids::{Generation, Rank, Step};
pub use run_spec::{RunSpec, SpecError};

mod ids;
pub mod limits;
pub mod run_spec;
pub mod truncation;
