//! Messages of a rank, read by its agent (`muster_proto::wire`, without blocking).

use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt};

use muster_proto::wire::{Prefix, TooLong};

/// Why no message could be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    /// The stream can't be read.
    #[error("can't read from the rank")]
    Read(#[from] std::io::Error),
    /// A length that no message has.
    #[error("the rank announces {0}")]
    Length(TooLong),
    /// Bytes that are no message.
    #[error("the rank sent {bytes} bytes that are no message")]
    Decode {
        /// How many.
        bytes: usize,
        /// What is wrong with them.
        #[source]
        source: prost::DecodeError,
    },
}

/// Reads the next message; none at the end of the stream.
pub(super) async fn read_message<M: Message + Default>(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
) -> Result<Option<M>, WireError> {
    let Some(bytes) = read_length(from).await? else { return Ok(None) };
    buffer.resize(bytes, 0);
    from.read_exact(buffer).await?;
    let message = M::decode(buffer.as_slice());
    let message = message.map_err(|source| WireError::Decode { bytes: buffer.len(), source })?;
    if buffer.capacity() > 1 << 16 {
        // One large result must not stay for the life of the rank.
        *buffer = Vec::new();
    }
    Ok(Some(message))
}

async fn read_length(from: &mut (impl AsyncRead + Unpin)) -> Result<Option<usize>, WireError> {
    let mut prefix = Prefix::default();
    let mut is_first = true;
    loop {
        let byte = match from.read_u8().await {
            Ok(byte) => byte,
            Err(error) if is_first && error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        is_first = false;
        if let Some(length) = prefix.push(byte).map_err(WireError::Length)? {
            return Ok(Some(length));
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{RankEvent, rank_event};

    use super::*;

    async fn read(bytes: &[u8]) -> Result<Option<RankEvent>, WireError> {
        read_message(&mut &*bytes, &mut Vec::new()).await
    }

    #[tokio::test]
    async fn what_prost_writes_is_read_back_and_garbage_is_an_error() {
        let event = RankEvent { event: Some(rank_event::Event::Note("x".repeat(300))) };
        let bytes = event.encode_length_delimited_to_vec();
        assert_eq!(read(&bytes).await.unwrap(), Some(event));
        assert_eq!(read(&[]).await.unwrap(), None, "the end of the stream");
        assert!(matches!(read(&bytes[..bytes.len() - 1]).await, Err(WireError::Read(_))), "cut short");
        assert!(matches!(read(&[0xff; 9]).await, Err(WireError::Length(_))), "no memory is taken for it");
        assert!(matches!(read(b"\x03\xff\xff\xff").await, Err(WireError::Decode { bytes: 3, .. })));
    }
}
