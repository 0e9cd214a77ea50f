//! The run specification, shared newtypes, the limits of every queue and map, and the name that was probably meant.
#![forbid(unsafe_code)]

pub use ids::{Generation, Rank, Step};
pub use nearest::nearest;
pub use run_spec::{RunSpec, SpecError};

mod ids;
pub mod limits;
mod nearest;
pub mod run_spec;
