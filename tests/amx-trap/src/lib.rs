//! AMX tile instructions in software, so that tests take the AMX path on any x86-64 Linux host.
//!
//! Such an instruction raises SIGILL where the CPU has no AMX, and also where it has but the process did not ask for
//! permission. [`install`] puts a handler there that decodes the instruction ([`decode`]), executes it on the software
//! tiles of the thread ([`tiles`]) and goes on behind it. It takes some microseconds per instruction.
//!
//! For tests only. Deliberately absent: int8 and fp16 products, and every other instruction that a CPU may lack.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

pub mod decode;
pub mod hardware;
pub mod tiles;
mod trap;

pub use trap::{Counts, counts, install};
