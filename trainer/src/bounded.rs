//! Reading whole files that are small by nature, within a bound.

use std::fs;
use std::io;
use std::path::Path;

/// Why a file was not read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The system refused.
    Io(io::Error),
    /// It is larger than anything it could be.
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The largest size that is read.
        limit: u64,
    },
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => error,
            ReadError::TooLarge { bytes, limit } => {
                let text = format!("it has {bytes} bytes, more than the limit of {limit}");
                Self::new(io::ErrorKind::FileTooLarge, text)
            }
        }
    }
}

/// Reads a file of at most `limit` bytes.
///
/// # Errors
/// The file can't be read or is larger.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let bytes = fs::metadata(path).map_err(ReadError::Io)?.len();
    if bytes > limit {
        return Err(ReadError::TooLarge { bytes, limit });
    }
    fs::read(path).map_err(ReadError::Io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_at_the_limit_is_read_and_a_longer_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        let error = io::Error::from(read(&path, 4).unwrap_err());
        assert_eq!(error.to_string(), "it has 5 bytes, more than the limit of 4");
        assert_eq!(
            io::Error::from(read(dir.path().join("b").as_path(), 4).unwrap_err()).kind(),
            io::ErrorKind::NotFound
        );
    }
}
