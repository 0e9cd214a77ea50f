//! The bytes of a connection: as they are, or in TLS records.
//!
//! TLS comes first on a connection and everything else, the handshake with the run's key too, goes through it. What a
//! record holds is decrypted in place and copied once to where it belongs; what is sent is encrypted in the copy that
//! the socket takes. A stranger costs one buffer of [`SHAKE_BYTES`] until both certificates are checked.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};

/// What a stranger may send at once.
const SHAKE_BYTES: usize = 4 << 10;
/// Encrypted bytes that are received with one system call.
const STAGE_BYTES: usize = 256 << 10;
/// Encrypted bytes that wait for the socket: what was encrypted is still in the cache when the system copies it.
const UNSENT_BYTES: usize = 128 << 10;
/// What the proof of the run's key is bound to (RFC 8446, 7.5).
const BINDING: &[u8] = b"EXPORTER-muster-rank";

/// Certificates of both ends of a link, in the form that TLS uses them.
#[derive(Debug, Clone)]
pub struct LinkTls {
    /// The end that dials.
    pub client: Arc<ClientConfig>,
    /// The end that accepts.
    pub server: Arc<ServerConfig>,
}

/// The two ways. A stream has one for its whole life.
pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

pub(super) struct Tls {
    socket: TcpStream,
    connection: Connection,
    /// Received and not yet taken by the TLS library.
    stage: Vec<u8>,
    start: usize,
    end: usize,
    /// Decrypted and not yet read.
    ready: usize,
}

/// What a read gave.
pub(super) struct Got {
    pub bytes: usize,
    /// The socket is empty: another read would only say so.
    pub is_drained: bool,
}

/// What a write did.
pub(super) struct Put {
    pub bytes: usize,
    /// The socket has no room.
    pub is_full: bool,
}

impl Wire {
    /// The dialling end of a connection.
    pub fn dial(socket: TcpStream, address: SocketAddr, tls: Option<&LinkTls>) -> io::Result<Self> {
        let Some(tls) = tls else { return Ok(Self::Plain(socket)) };
        // Addresses come from the membership; certificates are checked for their role, not for a name.
        let name = ServerName::from(address.ip());
        let connection = ClientConnection::new(Arc::clone(&tls.client), name).map_err(io::Error::other)?;
        Ok(Self::encrypted(socket, connection.into()))
    }

    /// The accepting end.
    pub fn accept(socket: TcpStream, tls: Option<&LinkTls>) -> io::Result<Self> {
        let Some(tls) = tls else { return Ok(Self::Plain(socket)) };
        let connection = ServerConnection::new(Arc::clone(&tls.server)).map_err(io::Error::other)?;
        Ok(Self::encrypted(socket, connection.into()))
    }

    fn encrypted(socket: TcpStream, mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(UNSENT_BYTES));
        Self::Tls(Box::new(Tls {
            socket,
            connection,
            stage: vec![0; SHAKE_BYTES],
            start: 0,
            end: 0,
            ready: 0,
        }))
    }

    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.socket,
        }
    }

    /// Goes on with the handshake of TLS; whether it is done. Then gives what proofs are bound to.
    pub fn shake(&mut self) -> io::Result<Option<[u8; 32]>> {
        match self {
            Self::Plain(_) => Ok(Some([0; 32])),
            Self::Tls(tls) => tls.shake(),
        }
    }

    /// From now on much is read at once.
    pub fn open(&mut self) {
        if let Self::Tls(tls) = self {
            tls.stage.resize(STAGE_BYTES, 0);
        }
    }

    /// Whether bytes were received that no event of the socket will tell of.
    pub fn has_buffered(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.ready > 0 || tls.start < tls.end,
        }
    }

    /// Whether all that was written is with the socket.
    pub fn is_flushed(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Tls(tls) => !tls.connection.wants_write(),
        }
    }

    /// Hands the socket what waits for it; whether that was all.
    pub fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(_) => Ok(true),
            Self::Tls(tls) => tls.flush(),
        }
    }

    /// Reads into two buffers in turn; without `may_receive` only what was received before. No bytes: the end.
    pub fn read(&mut self, to: [&mut [u8]; 2], may_receive: bool) -> io::Result<Got> {
        match self {
            Self::Plain(socket) => {
                let wanted = to[0].len() + to[1].len();
                let bytes = socket.read_vectored(&mut to.map(IoSliceMut::new))?;
                Ok(Got { bytes, is_drained: bytes < wanted })
            }
            Self::Tls(tls) => tls.read(to, may_receive),
        }
    }

    /// Writes as much as there is room for.
    pub fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<Put> {
        match self {
            Self::Plain(socket) => {
                let wanted: usize = from.iter().map(|slice| slice.len()).sum();
                let bytes = socket.write_vectored(from)?;
                Ok(Put { bytes, is_full: bytes < wanted })
            }
            Self::Tls(tls) => {
                if !tls.flush()? {
                    return Ok(Put { bytes: 0, is_full: true });
                }
                let bytes = tls.connection.writer().write_vectored(from)?;
                Ok(Put { bytes, is_full: !tls.flush()? })
            }
        }
    }

    /// Writes a few bytes to a connection that has room for them.
    pub fn write_few(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes),
            Self::Tls(tls) => {
                tls.connection.writer().write_all(bytes)?;
                tls.flush().and_then(|all| if all { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) })
            }
        }
    }
}

impl Tls {
    fn shake(&mut self) -> io::Result<Option<[u8; 32]>> {
        loop {
            self.take()?;
            // A fresh socket has room for a handshake.
            self.flush()?;
            if !self.connection.is_handshaking() {
                let binding = self.connection.export_keying_material([0; 32], BINDING, None);
                return binding.map(Some).map_err(io::Error::other);
            }
            match self.receive() {
                Ok(0) => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection"));
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        (self.start, self.end) = (0, 0);
        loop {
            match self.socket.read(&mut self.stage) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other.inspect(|got| self.end = *got),
            }
        }
    }

    /// Hands one piece of what was received to the library, and has it decrypt what is whole.
    fn take(&mut self) -> io::Result<()> {
        if self.start == self.end {
            return Ok(());
        }
        let mut piece = &self.stage[self.start..self.end];
        self.start += self.connection.read_tls(&mut piece)?;
        match self.connection.process_new_packets() {
            Ok(state) => {
                self.ready = state.plaintext_bytes_to_read();
                Ok(())
            }
            Err(error) => {
                // The other end should hear why.
                let _ = self.flush();
                Err(io::Error::new(io::ErrorKind::InvalidData, reason(&error)))
            }
        }
    }

    fn read(&mut self, to: [&mut [u8]; 2], may_receive: bool) -> io::Result<Got> {
        let [first, second] = to;
        let wanted = first.len() + second.len();
        let mut bytes = 0;
        let mut received = None;
        loop {
            while bytes < wanted {
                let room = if bytes < first.len() {
                    &mut first[bytes..]
                } else {
                    &mut second[bytes - first.len()..]
                };
                match self.connection.reader().read(room) {
                    // The other end has said that nothing follows.
                    Ok(0) => return Ok(Got { bytes, is_drained: true }),
                    Ok(got) => {
                        bytes += got;
                        self.ready = self.ready.saturating_sub(got);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            if bytes == wanted {
                return Ok(Got { bytes, is_drained: false });
            }
            if self.start < self.end {
                self.take()?;
                continue;
            }
            match received {
                Some(is_short) if bytes > 0 => return Ok(Got { bytes, is_drained: is_short }),
                _ if !may_receive && bytes > 0 => return Ok(Got { bytes, is_drained: true }),
                _ if !may_receive => return Err(io::ErrorKind::WouldBlock.into()),
                _ => {}
            }
            match self.receive() {
                Ok(0) => return Ok(Got { bytes, is_drained: true }),
                Ok(got) => received = Some(got < self.stage.len()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && bytes > 0 => {
                    return Ok(Got { bytes, is_drained: true });
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// What a log line says of a handshake that failed.
fn reason(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidMessage(_) => "it does not speak TLS".to_owned(),
        rustls::Error::NoCertificatesPresented => "it has shown no certificate".to_owned(),
        rustls::Error::InvalidCertificate(error) => format!("its certificate is not accepted: {error}"),
        rustls::Error::AlertReceived(alert) => format!("it refused the certificate of this rank ({alert:?})"),
        other => other.to_string(),
    }
}
