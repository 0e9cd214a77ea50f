//! What the tests of Muster share.

pub mod checkpoints;
