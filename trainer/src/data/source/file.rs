//! Opening data files: regular files only, encodings that are not UTF-8 recognised, content hashed.

use std::fs::{File, FileType, Metadata};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use xxhash_rust::xxh3::Xxh3;

use super::super::error::{DataError, FileProblem};
use super::watch::{StallWatch, Watched};
use muster_proto::limits::STALL_REPORT_INTERVAL;

const BUFFER_BYTES: usize = 1 << 18;

/// A buffered text file without its byte order mark.
pub type TextFile = BufReader<Watched<File>>;

/// Identity of a file's content, and of the file at the time it was hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileStamp {
    /// xxh3-128 of all bytes.
    pub hash: u128,
    /// Length in bytes.
    pub bytes: u64,
    /// Modification time in ns since 1970.
    modified_ns: i128,
    inode: (u64, u64),
}

impl FileStamp {
    /// Fails if the file was written to or replaced since it was hashed.
    pub fn check_unchanged(&self, path: &Path) -> Result<(), DataError> {
        let now = metadata(path)?;
        let same = (now.len(), modified_ns(&now), (now.dev(), now.ino()))
            == (self.bytes, self.modified_ns, self.inode);
        if same { Ok(()) } else { Err(DataError::File { path: path.into(), problem: FileProblem::Changed }) }
    }
}

fn modified_ns(meta: &Metadata) -> i128 {
    i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
}

/// Hashes the content of `path`; reads the whole file. `hashed` is told the bytes read since it was told last.
pub fn stamp(path: &Path, stop: &AtomicBool, hashed: &mut dyn FnMut(u64)) -> Result<FileStamp, DataError> {
    const REPORT_BYTES: u64 = 64 << 20;
    let (mut file, meta) = open(path)?;
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0u8; BUFFER_BYTES];
    let mut unreported = 0;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(DataError::Interrupted("hashing the data files"));
        }
        let count = file.read(&mut buffer).map_err(|source| read_error(path, source))?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        unreported += count as u64;
        if unreported >= REPORT_BYTES {
            hashed(std::mem::take(&mut unreported));
        }
    }
    hashed(unreported);
    Ok(FileStamp {
        hash: hasher.digest128(),
        bytes: meta.len(),
        modified_ns: modified_ns(&meta),
        inode: (meta.dev(), meta.ino()),
    })
}

/// Opens a regular, non-empty file under a stall watch.
pub fn open(path: &Path) -> Result<(Watched<File>, Metadata), DataError> {
    let watch = StallWatch::log(path, STALL_REPORT_INTERVAL);
    let meta = watch.during(|| metadata(path))?;
    let file = watch.during(|| File::open(path));
    let file = file.map_err(|source| DataError::Io { action: "open", path: path.into(), source })?;
    Ok((Watched::new(file, watch), meta))
}

/// Opens a UTF-8 text file and skips its byte order mark.
pub fn open_text(path: &Path) -> Result<TextFile, DataError> {
    let (mut file, _) = open(path)?;
    let mut head = Vec::with_capacity(3);
    file.by_ref().take(3).read_to_end(&mut head).map_err(|source| read_error(path, source))?;
    if head.starts_with(&[0xFF, 0xFE]) || head.starts_with(&[0xFE, 0xFF]) {
        return Err(DataError::File { path: path.into(), problem: FileProblem::Utf16 });
    }
    let skip = if head == [0xEF, 0xBB, 0xBF] { 3 } else { 0 };
    file.seek(SeekFrom::Start(skip)).map_err(|source| read_error(path, source))?;
    Ok(BufReader::with_capacity(BUFFER_BYTES, file))
}

/// The error of a failed read.
pub fn read_error(path: &Path, source: std::io::Error) -> DataError {
    DataError::Io { action: "read", path: path.into(), source }
}

/// Looks at the file without opening it: opening a FIFO would wait for its writer (case 65).
fn metadata(path: &Path) -> Result<Metadata, DataError> {
    let meta = std::fs::metadata(path).map_err(|source| DataError::Io {
        action: "open",
        path: path.into(),
        source,
    })?;
    let problem = match kind_name(meta.file_type()) {
        Some(kind) => FileProblem::NotRegular(kind),
        None if meta.len() == 0 => FileProblem::Empty,
        None => return Ok(meta),
    };
    Err(DataError::File { path: path.into(), problem })
}

fn kind_name(kind: FileType) -> Option<&'static str> {
    if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some("directory")
    } else if kind.is_fifo() {
        Some("pipe (FIFO)")
    } else if kind.is_socket() {
        Some("socket")
    } else {
        Some("device")
    }
}
