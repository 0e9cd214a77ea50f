//! What is measured: sizes and paths.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};

/// A size and how often to time it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Bytes of every rank's buffer.
    pub bytes: usize,
    /// Timed batches.
    pub samples: usize,
    /// Operations of a batch.
    pub batch: usize,
}

impl Case {
    /// Enough for a stable median within a second or so.
    fn of(bytes: usize) -> Self {
        let batch = (32 << 10) / bytes.clamp(512, 32 << 10);
        let samples = ((512 << 20) / bytes.max(1 << 20)).clamp(8, 300);
        Self { bytes, samples, batch }
    }
}

impl FromStr for Case {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split(':');
        let mut next =
            || parts.next().map(|p| p.parse::<usize>().with_context(|| format!("{p:?} is no number")));
        let bytes = next().context("a size is missing")??;
        if bytes == 0 || !bytes.is_multiple_of(4) {
            bail!("{bytes} bytes are no whole number of elements; use a multiple of 4");
        }
        let default = Self::of(bytes);
        let samples = next().transpose()?.unwrap_or(default.samples).max(1);
        let batch = next().transpose()?.unwrap_or(default.batch).max(1);
        Ok(Self { bytes, samples, batch })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.bytes, self.samples, self.batch)
    }
}

/// Where the data lies and how it moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Path {
    /// Shared memory, buffers in the arena, output apart from the input.
    Arena,
    /// Shared memory, buffers in the arena, in place.
    ArenaInPlace,
    /// Shared memory, buffers anywhere, output apart from the input.
    Foreign,
    /// TCP, output apart from the input.
    Tcp,
    /// TCP, in place.
    TcpInPlace,
    /// What a training loop calls: a sum in place through `World`, posted and awaited.
    World,
    /// A gather of so many bytes per rank through `World`, as once per step.
    WorldGather,
    /// Plain sockets between two ranks of this machine, both ways at once: what the loopback can do.
    Loopback,
    /// A copy of the buffer on every rank at once: what memory can do.
    Memcpy,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arena => "arena",
            Self::ArenaInPlace => "arena-in-place",
            Self::Foreign => "foreign",
            Self::Tcp => "tcp",
            Self::TcpInPlace => "tcp-in-place",
            Self::World => "world",
            Self::WorldGather => "world-gather",
            Self::Loopback => "loopback",
            Self::Memcpy => "memcpy",
        })
    }
}
