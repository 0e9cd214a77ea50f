//! Writes a token file so that it is either whole or absent: temporary name, checksum, fsync, rename, fsync.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use tempfile::NamedTempFile;
use xxhash_rust::xxh3::Xxh3;

use super::format::{Counts, HEADER_BYTES, Header, Layout, Meta};
use super::sections::{Columns, Sections, map};

const PREFIX: &str = "tokens-";
const PARTIAL: &str = ".partial";

/// Name of the token file of a key.
pub fn file_name(key: u128) -> String {
    format!("{PREFIX}{key:032x}.muster")
}

/// A token file under construction; dropping it removes it.
pub struct PartialFile {
    out: BufWriter<NamedTempFile>,
    hasher: Xxh3,
    bytes: u64,
    tokens: u64,
}

impl PartialFile {
    /// Starts a file in `dir`, which is created; removes what killed processes left there.
    pub fn create(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        remove_abandoned(dir);
        let file = tempfile::Builder::new().prefix(PREFIX).suffix(PARTIAL).tempfile_in(dir)?;
        // The lock tells other processes that someone still writes here. A file system without locks never frees
        // abandoned files, and that is all.
        let _ = file.as_file().try_lock();
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&[0; HEADER_BYTES])?;
        Ok(Self { out, hasher: Xxh3::new(), bytes: 0, tokens: 0 })
    }

    /// Appends token ids.
    pub fn push(&mut self, ids: &[u32]) -> io::Result<()> {
        self.tokens += ids.len() as u64;
        self.write(bytemuck::cast_slice(ids))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad_to(&mut self, start: usize) -> io::Result<()> {
        let missing = start as u64 - (HEADER_BYTES as u64 + self.bytes);
        self.write(&[0; 8][..missing as usize])
    }

    /// Writes the other sections, publishes the file as `dir`/`file_name(key)` and maps it.
    pub fn finish(mut self, dir: &Path, key: u128, columns: &Columns, meta: &Meta) -> io::Result<Sections> {
        let meta = serde_json::to_vec(meta)?;
        let rows = columns.places.len() as u64;
        let words = (columns.targets.len() as u64).checked_div(rows).unwrap_or(0);
        let counts = Counts { rows, tokens: self.tokens, words, meta_bytes: meta.len() as u64 };
        let layout =
            Layout::of(&counts).ok_or_else(|| io::Error::other("the token file would be too large"))?;
        self.pad_to(layout.offsets.start)?;
        self.write(bytemuck::cast_slice(&columns.offsets))?;
        self.pad_to(layout.places.start)?;
        self.write(bytemuck::cast_slice(&columns.places))?;
        self.pad_to(layout.second_from.start)?;
        self.write(bytemuck::cast_slice(&columns.second_from))?;
        self.pad_to(layout.targets.start)?;
        self.write(bytemuck::cast_slice(&columns.targets))?;
        self.write(&meta)?;

        let header = Header { key, counts, payload_hash: self.hasher.digest() };
        let mut file = self.out.into_inner().map_err(|e| e.into_error())?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&header.encode())?;
        file.as_file().sync_all()?;
        let file = file.persist(dir.join(file_name(key))).map_err(|e| e.error)?;
        File::open(dir)?.sync_all()?;
        Ok(Sections::Mapped { map: map(&file)?, layout })
    }
}

/// Removes partial files that no process holds locked: their writers were killed.
fn remove_abandoned(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && name.ends_with(PARTIAL) {
            let abandoned = File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
            if abandoned && fs::remove_file(entry.path()).is_ok() {
                tracing::debug!("removed the abandoned {}", entry.path().display());
            }
        }
    }
}
