//! The arrays of a token store, in memory or in a mapped file, behind one set of accessors.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;
use xxhash_rust::xxh3::xxh3_64;

use super::super::targets::TargetShape;
use super::format::{HEADER_BYTES, Header, Layout, Meta};

/// The arrays built by the second pass; `ids` stays empty while it is streamed to a file.
#[derive(Debug, Default)]
pub struct Columns {
    pub ids: Vec<u32>,
    /// Row `r` holds the tokens `offsets[r]..offsets[r + 1]`.
    pub offsets: Vec<u64>,
    /// File index (16 bits) and line or row number (48 bits).
    pub places: Vec<u64>,
    pub second_from: Vec<u32>,
    pub targets: Vec<u32>,
}

/// Where the arrays are.
pub enum Sections {
    /// On the heap.
    Memory(Columns),
    /// In a file mapped read-only.
    Mapped { map: Mmap, layout: Layout },
}

impl Sections {
    pub fn ids(&self) -> &[u32] {
        match self {
            Sections::Memory(columns) => &columns.ids,
            Sections::Mapped { map, layout } => bytemuck::cast_slice(&map[layout.ids.clone()]),
        }
    }

    pub fn offsets(&self) -> &[u64] {
        match self {
            Sections::Memory(columns) => &columns.offsets,
            Sections::Mapped { map, layout } => bytemuck::cast_slice(&map[layout.offsets.clone()]),
        }
    }

    pub fn places(&self) -> &[u64] {
        match self {
            Sections::Memory(columns) => &columns.places,
            Sections::Mapped { map, layout } => bytemuck::cast_slice(&map[layout.places.clone()]),
        }
    }

    pub fn second_from(&self) -> &[u32] {
        match self {
            Sections::Memory(columns) => &columns.second_from,
            Sections::Mapped { map, layout } => bytemuck::cast_slice(&map[layout.second_from.clone()]),
        }
    }

    pub fn targets(&self) -> &[u32] {
        match self {
            Sections::Memory(columns) => &columns.targets,
            Sections::Mapped { map, layout } => bytemuck::cast_slice(&map[layout.targets.clone()]),
        }
    }

    /// Checks that no accessor of a row can go out of bounds.
    fn check(&self, rows: usize, shape: TargetShape) -> bool {
        let offsets = self.offsets();
        let ends_fit = offsets.first() == Some(&0) && offsets.last() == Some(&(self.ids().len() as u64));
        let lengths = offsets.windows(2).zip(self.second_from());
        let rows_fit = lengths.into_iter().all(|(pair, &second)| {
            pair[1].checked_sub(pair[0]).is_some_and(|len| len > 0 && u64::from(second) <= len)
        });
        let targets_fit = self.targets().len() == rows * shape.words()
            && match shape {
                TargetShape::Class { classes } => {
                    self.targets().iter().all(|&class| (class as usize) < classes)
                }
                _ => true,
            };
        ends_fit && rows_fit && targets_fit
    }
}

/// Why a file is not used.
pub enum Refusal {
    /// There is none.
    Absent,
    /// There is one, but it can't be trusted.
    Unusable(String),
}

/// Maps a token file and checks every byte of it.
///
/// Cost: one read of the file (checksum), which also brings it into the page cache.
pub fn load(path: &Path, key: u128) -> Result<(Sections, Meta), Refusal> {
    let unusable = |reason: String| Refusal::Unusable(reason);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(Refusal::Absent),
        Err(e) => return Err(unusable(format!("it can't be opened: {e}"))),
    };
    let map = map(&file).map_err(|e| unusable(format!("it can't be mapped: {e}")))?;
    let header = Header::decode(&map).map_err(unusable)?;
    if header.key != key {
        return Err(unusable("it belongs to other data or settings".into()));
    }
    let layout = Layout::of(&header.counts).filter(|layout| layout.meta.end == map.len());
    let layout = layout.ok_or_else(|| unusable("its length is not what its header says".into()))?;
    if xxh3_64(&map[HEADER_BYTES..]) != header.payload_hash {
        return Err(unusable("its checksum does not match".into()));
    }
    let meta: Option<Meta> = serde_json::from_slice(&map[layout.meta.clone()]).ok();
    let shape = meta.as_ref().and_then(Meta::shape);
    let sections = Sections::Mapped { map, layout };
    match (meta, shape) {
        (Some(meta), Some(shape)) if sections.check(header.counts.rows as usize, shape) => {
            Ok((sections, meta))
        }
        _ => Err(unusable("its contents contradict each other".into())),
    }
}

/// Maps a whole file read-only.
#[allow(unsafe_code, reason = "a memory map is a promise about the file that only its owner can give")]
pub fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY:
    // - The mapping is read-only and `Mmap` owns its lifetime; no `&mut` to these bytes exists in this process.
    // - Bytes under a `&[u8]` must not change. Muster writes a token file under a temporary name, renames it when it
    //   is complete and never opens one for writing again: a rebuild makes a new inode and leaves a mapped one alone,
    //   and removal keeps the inode alive while it is mapped. A foreign process that truncates or rewrites a file
    //   inside our cache directory breaks this assumption (SIGBUS or changed tokens), as for every mapped file.
    // - Every cast of the bytes is to plain integers, for which all bit patterns are valid.
    unsafe { Mmap::map(file) }
}
