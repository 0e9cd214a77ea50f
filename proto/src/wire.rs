//! Messages on the stream between an agent and a rank: a length as a varint, then the message, as prost's
//! `encode_length_delimited` writes them.

use std::io::{self, ErrorKind, Read};

use prost::Message;

use crate::limits::MAX_MESSAGE_BYTES;

/// The length before a message, as it comes in byte by byte: seven bits each, low ones first.
#[derive(Debug, Default)]
pub struct Prefix {
    value: u64,
    bits: u32,
}

/// A length that no message has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes; at most {MAX_MESSAGE_BYTES} are allowed")]
pub struct TooLong(pub u64);

impl Prefix {
    /// Takes the next byte; gives the length, in bytes, when it was the last one.
    ///
    /// # Errors
    /// A length above [`MAX_MESSAGE_BYTES`].
    pub fn push(&mut self, byte: u8) -> Result<Option<usize>, TooLong> {
        self.value |= u64::from(byte & 0x7f) << self.bits;
        self.bits += 7;
        let is_last = byte < 0x80;
        // 35 bits are more than any allowed length.
        match is_last || self.bits == 35 {
            false => Ok(None),
            true if is_last && self.value <= MAX_MESSAGE_BYTES as u64 => Ok(Some(self.value as usize)),
            true => Err(TooLong(self.value)),
        }
    }
}

/// Reads the next message; none at the end of the stream.
///
/// # Errors
/// A stream that fails or ends within a message, a length that no message has, or bytes that are no message.
pub fn read_message<M: Message + Default>(reader: &mut impl Read) -> io::Result<Option<M>> {
    let mut prefix = Prefix::default();
    let mut byte = [0];
    let mut is_first = true;
    let len = loop {
        match reader.read_exact(&mut byte) {
            Err(error) if is_first && error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        is_first = false;
        if let Some(len) = prefix.push(byte[0]).map_err(io::Error::other)? {
            break len;
        }
    };
    let mut bytes = vec![0; len];
    reader.read_exact(&mut bytes)?;
    M::decode(&bytes[..]).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{RankEvent, rank_event};

    #[test]
    fn what_prost_writes_is_read_back_and_garbage_is_an_error() {
        let event = RankEvent { event: Some(rank_event::Event::Note("x".repeat(300))) };
        let bytes = event.encode_length_delimited_to_vec();
        let read = |bytes: &[u8]| read_message::<RankEvent>(&mut &*bytes);
        assert_eq!(read(&bytes).unwrap(), Some(event));
        assert_eq!(read(&[]).unwrap(), None, "the end of the stream");
        for bytes in [&bytes[..bytes.len() - 1], &[0xff; 9], &[0x80, 0x80, 0x80, 0x7f], b"\x03\xff\xff\xff"] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }
}
