//! The list of files of a checkpoint with size and checksum; written last, so its presence means "complete".

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use muster_proto::limits::MAX_MANIFEST_BYTES;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::error::CheckpointError;
use super::state::hex;
use crate::bounded;
use crate::weights::is_plain_name;

/// Name of the file.
pub const MANIFEST: &str = "manifest.json";
/// Version of the manifest.
pub const MANIFEST_FORMAT: u32 = 1;

/// Every file of a checkpoint but the manifest itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format.
    pub format: u32,
    /// The files in the order they were written.
    pub files: Vec<FileRecord>,
}

/// Size and checksum of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Name inside the checkpoint.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// XXH3-64 of the contents.
    #[serde(with = "hex")]
    pub xxh3: u64,
}

/// How thoroughly a checkpoint is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Presence and sizes.
    Sizes,
    /// Every byte.
    Checksums,
}

impl Manifest {
    /// Reads the manifest of a checkpoint and checks the files against it.
    pub(super) fn check(checkpoint: &Path, depth: Depth) -> Result<Self, CheckpointError> {
        let damaged = |reason: String| CheckpointError::Damaged { path: checkpoint.to_owned(), reason };
        let path = checkpoint.join(MANIFEST);
        let text = bounded::read(&path, MAX_MANIFEST_BYTES)
            .map_err(|error| damaged(format!("{MANIFEST}: {}", io::Error::from(error))))?;
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|error| damaged(format!("{MANIFEST}: {error}")))?;
        if manifest.format != MANIFEST_FORMAT {
            let found = u64::from(manifest.format);
            return Err(CheckpointError::Format { path, found, expected: MANIFEST_FORMAT });
        }
        for record in &manifest.files {
            record
                .check(checkpoint, depth)
                .map_err(|reason| damaged(format!("{}: {reason}", record.name)))?;
        }
        Ok(manifest)
    }
}

impl FileRecord {
    fn check(&self, dir: &Path, depth: Depth) -> Result<(), String> {
        if !is_plain_name(&self.name) {
            return Err("not a plain file name".into());
        }
        let path = dir.join(&self.name);
        let found = fs::metadata(&path).map_err(|error| error.to_string())?.len();
        if found != self.bytes {
            return Err(format!("{found} bytes, expected {}", self.bytes));
        }
        if depth == Depth::Checksums {
            let digest = hash_file(&path).map_err(|error| error.to_string())?;
            if digest != self.xxh3 {
                return Err(format!("checksum {digest:016x}, expected {:016x}", self.xxh3));
            }
        }
        Ok(())
    }
}

fn hash_file(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut hash = Xxh3::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.digest()),
            count => hash.update(&buffer[..count]),
        }
    }
}
