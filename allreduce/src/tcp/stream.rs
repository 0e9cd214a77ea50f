//! One authenticated stream: frames in, frames out, as far as the socket lets them.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::time::Duration;

use muster_proto::Rank;

use super::wire::{Got, Put, Wire};
use crate::engine::{Engine, Outgoing, Receipt};
use crate::frame::{HEADER_BYTES, Header};

/// Bytes read ahead: headers and small payloads come with one system call.
const STAGE_BYTES: usize = 8 << 10;
/// Frames and bytes that are handed over with one system call.
const BATCH_FRAMES: usize = 16;
const BATCH_BYTES: usize = 64 << 10;
/// Bytes written or read before the other direction and the other streams get their turn: what was written is
/// still in the cache when the peer reads it.
const TURN_BYTES: usize = 512 << 10;

/// Sent in place of payloads whose operation has ended; their checksum is wrong, so nobody takes them.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

pub(super) struct Stream {
    wire: Wire,
    pub peer: Rank,
    stage: Box<[u8; STAGE_BYTES]>,
    stage_start: usize,
    stage_end: usize,
    reading: Option<(Receipt, usize)>,
    out: VecDeque<Outgoing>,
    /// Bytes of the first frame that are written.
    written: usize,
    /// The socket took less than it was offered.
    pub is_full: bool,
    /// The driver waits for room.
    pub waits_for_room: bool,
}

impl Stream {
    /// A stream whose handshake left some bytes of frames.
    pub fn new(wire: Wire, peer: Rank, rest: &[u8]) -> Self {
        let mut stage = Box::new([0; STAGE_BYTES]);
        stage[..rest.len()].copy_from_slice(rest);
        Self {
            wire,
            peer,
            stage,
            stage_start: 0,
            stage_end: rest.len(),
            reading: None,
            out: VecDeque::new(),
            written: 0,
            is_full: false,
            waits_for_room: false,
        }
    }

    /// Its socket, for the epoll set.
    pub fn socket(&self) -> &TcpStream {
        self.wire.socket()
    }

    /// Whether no frame is under way.
    pub fn is_idle(&self) -> bool {
        self.out.is_empty() && self.wire.is_flushed()
    }

    /// What is lost with the stream.
    pub fn take_apart(self) -> (Vec<Outgoing>, Vec<Receipt>) {
        (self.out.into(), self.reading.into_iter().map(|(receipt, _)| receipt).collect())
    }

    /// Reads what is there. Returns whether anything was.
    ///
    /// # Errors
    /// The stream ended, broke, or carries nonsense.
    pub fn read(&mut self, engine: &mut Engine, now: Duration) -> io::Result<bool> {
        let mut total = 0;
        loop {
            self.consume(engine, now)?;
            // What was received already gets no event of its own.
            let may_receive = total < TURN_BYTES;
            if !may_receive && !self.wire.has_buffered() {
                return Ok(true);
            }
            let got = match self.fill(engine, may_receive) {
                Ok(got) if got.bytes == 0 => {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer closed the stream"));
                }
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(total > 0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            total += got.bytes;
            if got.is_drained {
                self.consume(engine, now)?;
                return Ok(true);
            }
        }
    }

    /// Reads into the payload under way and, beyond it, into the stage.
    fn fill(&mut self, engine: &mut Engine, may_receive: bool) -> io::Result<Got> {
        if let Some((receipt, filled)) = &mut self.reading {
            // The stage is empty: a payload takes from it first.
            let room = &mut engine.room(receipt)[*filled..];
            let len = room.len();
            let got = self.wire.read([room, &mut self.stage[..]], may_receive)?;
            *filled += got.bytes.min(len);
            (self.stage_start, self.stage_end) = (0, got.bytes.saturating_sub(len));
            return Ok(got);
        }
        self.stage.copy_within(self.stage_start..self.stage_end, 0);
        (self.stage_start, self.stage_end) = (0, self.stage_end - self.stage_start);
        let got = self.wire.read([&mut self.stage[self.stage_end..], &mut []], may_receive)?;
        self.stage_end += got.bytes;
        Ok(got)
    }

    /// Takes frames from the stage as far as they are there.
    fn consume(&mut self, engine: &mut Engine, now: Duration) -> io::Result<()> {
        let invalid =
            |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        loop {
            match self.reading.take() {
                Some((mut receipt, mut filled)) => {
                    let ready = &self.stage[self.stage_start..self.stage_end];
                    let len = ready.len().min(receipt.len() - filled);
                    if len > 0 {
                        engine.room(&mut receipt)[filled..filled + len].copy_from_slice(&ready[..len]);
                        self.stage_start += len;
                        filled += len;
                    }
                    if filled < receipt.len() {
                        self.reading = Some((receipt, filled));
                        return Ok(());
                    }
                    engine.finish(receipt, now).map_err(|e| invalid(&e))?;
                }
                None => {
                    let ready = &self.stage[self.stage_start..self.stage_end];
                    let Some(bytes) = ready.first_chunk::<HEADER_BYTES>() else { return Ok(()) };
                    let header = Header::decode(bytes).map_err(|e| invalid(&e))?;
                    self.stage_start += HEADER_BYTES;
                    let receipt = engine.begin(self.peer, header, now).map_err(|e| invalid(&e))?;
                    self.reading = Some((receipt, 0));
                }
            }
        }
    }

    /// Writes frames until there are none, the socket is full, or others should have a turn. Returns whether there
    /// is more to write at once.
    ///
    /// # Errors
    /// The stream broke.
    pub fn write(&mut self, engine: &mut Engine, now: Duration) -> io::Result<bool> {
        let mut total = 0;
        self.is_full = !self.wire.flush()?;
        if self.is_full {
            return Ok(false);
        }
        loop {
            self.pull(engine, now);
            if self.out.is_empty() || total >= TURN_BYTES {
                return Ok(!self.out.is_empty());
            }
            let put = match self.write_batch(engine) {
                Ok(put) => put,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_full = true;
                    return Ok(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            total += put.bytes;
            self.written += put.bytes;
            while let Some(frame) = self.out.front()
                && self.written >= HEADER_BYTES + frame.len
            {
                self.written -= HEADER_BYTES + frame.len;
                if let Some(frame) = self.out.pop_front() {
                    engine.sent(frame, now);
                }
            }
            if put.is_full {
                self.is_full = true;
                return Ok(false);
            }
        }
    }

    fn pull(&mut self, engine: &mut Engine, now: Duration) {
        let mut bytes: usize = self.out.iter().map(|f| HEADER_BYTES + f.len).sum();
        while self.out.len() < BATCH_FRAMES && bytes < BATCH_BYTES {
            let Some(frame) = engine.next_frame(self.peer, now) else { return };
            bytes += HEADER_BYTES + frame.len;
            self.out.push_back(frame);
        }
    }

    fn write_batch(&mut self, engine: &Engine) -> io::Result<Put> {
        let mut slices = Vec::with_capacity(2 * self.out.len() + 4);
        for frame in &self.out {
            slices.push(IoSlice::new(&frame.header));
            match engine.payload(frame) {
                Some(payload) => slices.push(IoSlice::new(payload)),
                None => {
                    let mut left = frame.len;
                    while left > 0 {
                        let len = left.min(ZEROS.len());
                        slices.push(IoSlice::new(&ZEROS[..len]));
                        left -= len;
                    }
                }
            }
        }
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, self.written);
        self.wire.write(rest)
    }
}
