//! Compute kernels over slices, chosen at run time for the CPU at hand.
pub use element::{DType, Element};
pub mod element;
