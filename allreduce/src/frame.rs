//! Frames: a header of 64 bytes, little-endian, and a payload.
//!
//! The header has a checksum of its own, so that a payload with a flipped bit costs that frame and not the stream.
//! Decoding never panics and never allocates.

use muster_proto::{Generation, Rank};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// Largest payload, in bytes; a longer one is taken for garbage before anything is allocated.
pub const MAX_PAYLOAD_BYTES: u32 = 1 << 20;

/// "MAR" and the version of the format.
const MAGIC: u32 = u32::from_le_bytes(*b"MAR\x01");

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// The sender has posted the operation; the payload describes it.
    Start = 1,
    /// Elements.
    Data,
    /// The sender has everything of the operation that the receiver owes it.
    Finished,
    /// What the sender has received, for the receiver to repeat the rest.
    Repair,
    /// The sender gave up; the payload says why.
    Abort,
    /// Only the acknowledgement that every header carries.
    Progress,
    /// The sender leaves in order.
    Goodbye,
}

impl FrameKind {
    const ALL: [Self; 7] =
        [Self::Start, Self::Data, Self::Finished, Self::Repair, Self::Abort, Self::Progress, Self::Goodbye];
}

/// Which numbering an operation's sequence number belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameScope {
    /// Operations of everybody.
    World = 0,
    /// Transfers from the frame's sender to its receiver.
    FromSender,
    /// Transfers from the frame's receiver to its sender.
    ToSender,
    /// Operations of the ranks with the sender's place in their nodes.
    Rail,
}

impl FrameScope {
    const ALL: [Self; 4] = [Self::World, Self::FromSender, Self::ToSender, Self::Rail];
}

/// A decoded header.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Header {
    /// What the frame is for.
    pub kind: FrameKind,
    /// Numbering of `sequence`.
    pub scope: FrameScope,
    /// The payload is a final result although the plan has a contribution here.
    pub is_result: bool,
    /// A reply to a frame of this kind is wanted.
    pub wants_reply: bool,
    /// The sender's generation.
    pub generation: Generation,
    /// The sender.
    pub from: Rank,
    /// Number of the operation.
    pub sequence: u64,
    /// The sender has finished every operation of the world below this one.
    pub finished_below: u64,
    /// Hash of the operation's description and plan.
    pub fingerprint: u64,
    /// Number of the message among those of its operation, sender and receiver.
    pub index: u32,
    /// Sum of the weights in the payload.
    pub weight: f32,
    /// Bytes of the payload.
    pub len: u32,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
}

/// Bytes that are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not a frame of this version.
    #[error("a frame starts with {got:#010x}, expected {MAGIC:#010x}")]
    Magic {
        /// The first four bytes.
        got: u32,
    },
    /// The header's checksum is wrong.
    #[error("the checksum of a frame's header is {got:#010x}, expected {expected:#010x}")]
    Checksum {
        /// The checksum that the header names.
        got: u32,
        /// The checksum of its bytes.
        expected: u32,
    },
    /// A field has a value without meaning.
    #[error("a frame has {field} {got}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        got: u32,
    },
    /// The payload is longer than any may be.
    #[error("a frame announces {len} bytes of payload, at most {MAX_PAYLOAD_BYTES} are allowed")]
    TooLong {
        /// Its length.
        len: u32,
    },
}

/// CRC-32C of some bytes.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

impl Header {
    /// Writes the header, with its checksum.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut b = [0; HEADER_BYTES];
        let flags = u16::from(self.is_result) | u16::from(self.wants_reply) << 1;
        b[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        b[4] = self.kind as u8;
        b[5] = self.scope as u8;
        b[6..8].copy_from_slice(&flags.to_le_bytes());
        b[8..16].copy_from_slice(&self.generation.0.to_le_bytes());
        b[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        b[24..32].copy_from_slice(&self.finished_below.to_le_bytes());
        b[32..40].copy_from_slice(&self.fingerprint.to_le_bytes());
        b[40..44].copy_from_slice(&self.index.to_le_bytes());
        b[44..48].copy_from_slice(&self.len.to_le_bytes());
        b[48..52].copy_from_slice(&self.weight.to_le_bytes());
        b[52..56].copy_from_slice(&self.from.0.to_le_bytes());
        b[56..60].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = checksum(&b[..60]);
        b[60..].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Reads a header.
    ///
    /// # Errors
    /// Bytes that no peer of this version sends.
    pub fn decode(b: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let magic = word(b, 0);
        if magic != MAGIC {
            return Err(FrameError::Magic { got: magic });
        }
        let (got, expected) = (word(b, 60), checksum(&b[..60]));
        if got != expected {
            return Err(FrameError::Checksum { got, expected });
        }
        let field = |field, got: u32| FrameError::Field { field, got };
        let kind = FrameKind::ALL.into_iter().find(|k| *k as u8 == b[4]);
        let scope = FrameScope::ALL.into_iter().find(|s| *s as u8 == b[5]);
        let flags = u16::from_le_bytes([b[6], b[7]]);
        let (len, weight) = (word(b, 44), f32::from_bits(word(b, 48)));
        if len > MAX_PAYLOAD_BYTES {
            return Err(FrameError::TooLong { len });
        }
        if flags > 3 {
            return Err(field("flags", flags.into()));
        }
        if !weight.is_finite() || weight < 0.0 {
            return Err(field("weight bits", weight.to_bits()));
        }
        Ok(Self {
            kind: kind.ok_or(field("kind", b[4].into()))?,
            scope: scope.ok_or(field("scope", b[5].into()))?,
            is_result: flags & 1 != 0,
            wants_reply: flags & 2 != 0,
            generation: Generation(long(b, 8)),
            from: Rank(word(b, 52)),
            sequence: long(b, 16),
            finished_below: long(b, 24),
            fingerprint: long(b, 32),
            index: word(b, 40),
            weight,
            len,
            payload_crc: word(b, 56),
        })
    }
}

fn word(b: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn long(b: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from(word(b, at)) | u64::from(word(b, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> impl Strategy<Value = Header> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        let rest = (0..7_usize, 0..4_usize, any::<bool>(), 0..=MAX_PAYLOAD_BYTES, 0.0..1e9_f32, any::<u32>());
        (numbers, rest).prop_map(|((a, b, c, d), (kind, scope, flag, len, weight, index))| Header {
            kind: FrameKind::ALL[kind],
            scope: FrameScope::ALL[scope],
            is_result: flag,
            wants_reply: !flag,
            generation: Generation(a),
            from: Rank(index ^ 5),
            sequence: b,
            finished_below: c,
            fingerprint: d,
            index,
            weight,
            len,
            payload_crc: index.wrapping_mul(7),
        })
    }

    proptest! {
        #[test]
        fn headers_survive_the_wire(header in header()) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn a_changed_byte_is_noticed(header in header(), at in 0..HEADER_BYTES, bits in 1..=255_u8) {
            let mut bytes = header.encode();
            bytes[at] ^= bits;
            prop_assert!(Header::decode(&bytes).is_err());
        }

        #[test]
        fn foreign_bytes_are_an_error(bytes in proptest::collection::vec(any::<u8>(), HEADER_BYTES)) {
            let bytes: [u8; HEADER_BYTES] = bytes.try_into().unwrap();
            prop_assert!(Header::decode(&bytes).is_err());
        }

        #[test]
        fn fields_without_meaning_are_an_error(
            header in header(), kind in 8..=255_u8, scope in 4..=255_u8, flags in 4..=255_u8,
            len in MAX_PAYLOAD_BYTES + 1..=u32::MAX,
        ) {
            let good = header.encode();
            for (at, bytes) in [
                (4, vec![kind]), (5, vec![scope]), (6, vec![flags]), (44, len.to_le_bytes().to_vec()),
                (48, f32::NAN.to_le_bytes().to_vec()), (48, (-1.0_f32).to_le_bytes().to_vec()),
            ] {
                let mut bad = good;
                bad[at..at + bytes.len()].copy_from_slice(&bytes);
                let crc = checksum(&bad[..60]).to_le_bytes();
                bad[60..].copy_from_slice(&crc);
                prop_assert!(Header::decode(&bad).is_err());
            }
        }
    }

    #[test]
    fn the_checksum_is_crc_32c() {
        // RFC 3720, appendix B.4.
        assert_eq!(checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
    }
}
