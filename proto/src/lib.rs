//! The run specification, the messages and services of `muster.v1`, shared newtypes, the limits of every queue and map, and the name that was probably meant.
#![forbid(unsafe_code)]

pub use causes::with_causes;
pub use ids::{Generation, Rank, Step};
pub use nearest::nearest;
pub use run_spec::{RunSpec, SpecError};

mod causes;
mod ids;
pub mod limits;
mod nearest;
pub mod run_spec;
#[cfg(feature = "rpc")]
pub mod v1;
#[cfg(feature = "rpc")]
pub mod wire;
