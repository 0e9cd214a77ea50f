//! Compute kernels over slices, chosen at run time for the CPU at hand.
//!
//! Every operation takes plain slices of an [`Element`] (f32 or bf16), computes in f32 and stores with rounding to
//! nearest even. Lengths are checked with assertions that name the shape: a wrong length is a bug of the caller, not
//! of the user.
//!
//! Invariants
//! * Results never depend on the number of threads: work is cut into blocks of fixed size, and partial sums are
//!   combined in block order.
//! * Nothing here allocates tensors, knows about parameters or keeps state between calls, apart from scratch memory
//!   the caller owns ([`gemm::Scratch`]) and a small scratch per thread in [`attention`] and [`gemm`].
//! * Kernels are written once, generic over an ISA token ([`isa`]); [`mod@reference`] is their specification.

pub mod activation;
mod aligned;
pub mod attention;
pub mod conv;
pub mod dropout;
pub mod element;
pub mod elementwise;
pub mod embedding;
pub mod gemm;
pub mod isa;
pub mod linear;
pub mod loss;
pub(crate) mod math;
pub mod memory;
pub mod norm;
pub mod optim;
pub mod peak;
pub mod pool;
pub mod reduce;
pub mod reference;
pub mod rng;
mod transpose;

pub use element::{DType, Element};
pub use half::bf16;
pub use linear::Cx;
pub use pool::Pool;
