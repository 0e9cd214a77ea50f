//! Files and folders that survive a crash: checksummed while written, synced before they get their name.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};
use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

use super::error::CheckpointError;
use super::manifest::FileRecord;
use crate::tokenizer::TokenizerFile;

/// Bytes hashed and written at a time, so that the hash finds them in cache.
const CHUNK: usize = 256 * 1024;

struct Hashing {
    file: File,
    hash: Xxh3,
    bytes: u64,
}

impl Write for Hashing {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.file.write(&data[..data.len().min(CHUNK)])?;
        self.hash.update(&data[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes a new file through `fill`, syncs it to disk and returns its size and checksum.
pub(crate) fn write_file(
    dir: &Path,
    name: &str,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<FileRecord, CheckpointError> {
    let path = dir.join(name);
    let write = || {
        let file = File::create_new(&path)?;
        let mut out = BufWriter::with_capacity(CHUNK, Hashing { file, hash: Xxh3::new(), bytes: 0 });
        fill(&mut out)?;
        let inner = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        inner.file.sync_all()?;
        Ok(FileRecord { name: name.to_owned(), bytes: inner.bytes, xxh3: inner.hash.digest() })
    };
    write().map_err(CheckpointError::io("write", path.as_path()))
}

/// Copies a file under its own name; symbolic links (as in the hub's cache) are followed.
fn copy_file(from: &Path, dir: &Path) -> Result<FileRecord, CheckpointError> {
    let name = from.file_name().and_then(|name| name.to_str());
    let unnamed = || io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name");
    let name = name.ok_or_else(unnamed).map_err(CheckpointError::io("copy", from))?;
    let mut source = File::open(from).map_err(CheckpointError::io("open", from))?;
    write_file(dir, name, |mut out| io::copy(&mut source, &mut out).map(drop))
}

/// Writes a tokenizer file into a model folder.
pub(crate) fn write_tokenizer_file(file: &TokenizerFile, dir: &Path) -> Result<FileRecord, CheckpointError> {
    match file {
        TokenizerFile::Copy(path) => copy_file(path, dir),
        TokenizerFile::Made { name, bytes } => write_file(dir, name, |out| out.write_all(bytes)),
    }
}

/// Writes a file under a temporary name beside it, syncs it and renames it: readers see the old file or the new one.
pub(crate) fn replace_file(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
    let (path, temp) = (dir.join(name), dir.join(format!(".tmp-{name}")));
    let write = || {
        let mut file = File::create(&temp)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temp, &path)
    };
    write().map_err(CheckpointError::io("write", path.as_path()))?;
    sync_dir(dir)
}

/// Syncs a folder, so that names in it survive a crash.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), CheckpointError> {
    File::open(dir).and_then(|handle| handle.sync_all()).map_err(CheckpointError::io("sync", dir))
}

/// Gives the finished folder `temp` the name `target`, replacing a folder of that name in one step.
///
/// What was there before ends up as `temp`, to be removed by the caller.
pub(crate) fn install_dir(temp: &Path, target: &Path) -> Result<(), CheckpointError> {
    if fs::symlink_metadata(target).is_err() {
        return fs::rename(temp, target).map_err(CheckpointError::io("rename a folder to", target));
    }
    match renameat_with(CWD, temp, CWD, target, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // Not every file system can exchange: then the old folder steps aside first.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            let aside = temp.with_extension("replaced");
            let renamed = fs::rename(target, &aside).and_then(|()| fs::rename(temp, target));
            renamed.and_then(|()| fs::rename(&aside, temp)).map_err(CheckpointError::io("replace", target))
        }
        Err(errno) => Err(CheckpointError::io("replace", target)(errno.into())),
    }
}

/// Checks that the file system of `dir` takes `needed` bytes more; `dir` need not exist yet.
///
/// # Errors
/// [`CheckpointError::NoSpace`] with both numbers, or the file system can't be asked.
pub fn check_space(dir: &Path, needed: u64) -> Result<(), CheckpointError> {
    let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let existing = if existing.as_os_str().is_empty() { Path::new(".") } else { existing };
    let stat = statvfs(existing)
        .map_err(|errno| CheckpointError::io("ask for free space in", existing)(errno.into()))?;
    // Some network and overlay file systems report no sizes at all.
    if stat.f_blocks == 0 {
        return Ok(());
    }
    let available = stat.f_bavail.saturating_mul(stat.f_frsize);
    if available < needed {
        return Err(CheckpointError::NoSpace { dir: dir.to_owned(), needed, available });
    }
    Ok(())
}
