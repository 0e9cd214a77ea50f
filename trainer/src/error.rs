//! The error of a rank: whatever part failed, with its cause and its hint.

/// Any failure of a rank.
#[derive(Debug, thiserror::Error)]
pub enum Error {}
