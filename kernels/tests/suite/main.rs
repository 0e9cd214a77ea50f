//! Every operation against the scalar reference, for f32 and bf16, on every instruction set of the machine.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    missing_docs,
    reason = "helpers of tests stand outside of test functions"
)]

mod attention;
mod attention_blocks;
mod attention_case;
mod common;
mod conv_embedding;
mod dropout;
mod elementwise;
mod isa;
mod linear;
mod loss;
mod norm;
mod optim;
mod pool;
mod reduce;
mod table;
