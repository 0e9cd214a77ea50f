//! How the ranks of a node find each other and exchange their memory.
//!
//! Each rank listens at an abstract unix socket named after run, generation and local rank, and connects to
//! those of lower ranks. The system vouches for the user at the other end; one packet each way carries the
//! parameters and the memfd. The connections stay open: a process that ends hangs up.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with, sockopt,
};
use rustix::process::{Pid, getuid};
use rustix::time::Timespec;

use super::ShmOptions;
use super::error::ShmError;
use super::memory::Memory;

/// First bytes of a packet; the last of them is the version of everything in shared memory.
const MAGIC: u64 = u64::from_le_bytes(*b"mustshm\x01");
/// Bytes of a set of CPUs as the system gives it.
const CPU_BYTES: usize = 128;
const HELLO_BYTES: usize = 40 + CPU_BYTES;
/// Between two attempts to connect to somebody who is not there yet.
const RETRY: Duration = Duration::from_millis(2);
/// Between two looks whether somebody still wants the group.
const LOOK: Duration = Duration::from_millis(10);
/// How long somebody who has connected may be silent.
const SILENCE: Duration = Duration::from_secs(1);

/// A peer that has joined.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) socket: OwnedFd,
    pub(super) pid: Option<Pid>,
    pub(super) memory: Memory,
    pub(super) cpus: [u8; CPU_BYTES],
}

/// What ranks tell each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hello {
    rank: u32,
    ranks: u32,
    run: u64,
    generation: u64,
    arena: u64,
    cpus: [u8; CPU_BYTES],
}

impl Hello {
    fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        let words = [
            MAGIC,
            u64::from(self.rank) | u64::from(self.ranks) << 32,
            self.run,
            self.generation,
            self.arena,
        ];
        bytes[..40].copy_from_slice(&words.map(u64::to_le_bytes).concat());
        bytes[40..].copy_from_slice(&self.cpus);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, cpus) = bytes.split_at_checked(40)?;
        let word = |i: usize| Some(u64::from_le_bytes(words[8 * i..8 * i + 8].try_into().ok()?));
        let cpus = cpus.try_into().ok()?;
        let ranks = word(1).filter(|_| word(0) == Some(MAGIC))?;
        Some(Self {
            rank: ranks as u32,
            ranks: (ranks >> 32) as u32,
            run: word(2)?,
            generation: word(3)?,
            arena: word(4)?,
            cpus,
        })
    }
}

/// The CPUs that this process may use.
pub(super) fn own_cpus() -> [u8; CPU_BYTES] {
    let mut bytes = [0; CPU_BYTES];
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        for cpu in (0..8 * CPU_BYTES).filter(|&cpu| set.is_set(cpu)) {
            bytes[cpu / 8] |= 1 << (cpu % 8);
        }
    }
    bytes
}

/// Joins the group; the result is in rank order, without this rank.
pub(super) struct Meeting<'a> {
    options: &'a ShmOptions,
    hello: Hello,
    fd: &'a OwnedFd,
    until: Instant,
    is_cancelled: &'a dyn Fn() -> bool,
}

impl<'a> Meeting<'a> {
    pub(super) fn new(options: &'a ShmOptions, fd: &'a OwnedFd, is_cancelled: &'a dyn Fn() -> bool) -> Self {
        let hello = Hello {
            rank: options.local_rank as u32,
            ranks: options.local_ranks as u32,
            run: xxhash_rust::xxh3::xxh3_64(options.run_id.as_bytes()),
            generation: options.generation,
            arena: options.arena_bytes as u64,
            cpus: own_cpus(),
        };
        let until = Instant::now() + options.start_deadline;
        Self { options, hello, fd, until, is_cancelled }
    }

    /// Meets everybody.
    pub(super) fn join(&self) -> Result<Vec<Option<Joined>>, ShmError> {
        let (me, n) = (self.options.local_rank, self.options.local_ranks);
        let mut peers: Vec<Option<Joined>> = (0..n).map(|_| None).collect();
        let listener = self.listen()?;
        for (peer, joined) in peers.iter_mut().enumerate().take(me) {
            *joined = Some(self.call(peer)?);
        }
        while let Some(missing) = (me + 1..n).find(|&peer| peers[peer].is_none()) {
            self.readable(listener.as_fd(), self.until, missing)?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(&listener, flags) else { continue };
            if let Some((peer, joined)) = self.answer(socket)? {
                peers[peer] = Some(joined);
            }
        }
        Ok(peers)
    }

    fn system(&self, attempt: String, e: Errno) -> ShmError {
        ShmError::System { me: self.options.local_rank, attempt, source: Arc::new(e.into()) }
    }

    fn name(&self, rank: usize) -> String {
        format!("muster-shm/{:016x}/{}/{rank}", self.hello.run, self.hello.generation)
    }

    fn address(&self, rank: usize) -> Result<SocketAddrUnix, ShmError> {
        SocketAddrUnix::new_abstract_name(self.name(rank).as_bytes())
            .map_err(|e| self.system(format!("name the socket of local rank {rank}"), e))
    }

    fn socket(&self) -> Result<OwnedFd, ShmError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|e| self.system("make a unix socket".into(), e))
    }

    fn listen(&self) -> Result<OwnedFd, ShmError> {
        let me = self.options.local_rank;
        let socket = self.socket()?;
        bind(&socket, &self.address(me)?).map_err(|e| match e {
            Errno::ADDRINUSE => self.system(
                format!(
                    "listen as local rank {me} of {}: another process of this run does",
                    self.options.group()
                ),
                e,
            ),
            e => self.system(format!("bind {}", self.name(me)), e),
        })?;
        listen(&socket, self.options.local_ranks as i32)
            .map_err(|e| self.system(format!("listen at {}", self.name(me)), e))?;
        Ok(socket)
    }

    /// Waits until something can be read, or names who is missing.
    fn readable(&self, fd: impl AsFd, until: Instant, missing: usize) -> Result<(), ShmError> {
        loop {
            self.go_on()?;
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left.min(LOOK)).ok();
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) if left.is_zero() => return Err(self.missing(missing)),
                Ok(0) => {}
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.system("poll a unix socket".into(), e)),
            }
        }
    }

    /// An error if nobody wants the group any more.
    fn go_on(&self) -> Result<(), ShmError> {
        let (me, group) = (self.options.local_rank, self.options.group());
        if (self.is_cancelled)() { Err(ShmError::Cancelled { me, group }) } else { Ok(()) }
    }

    fn missing(&self, missing: usize) -> ShmError {
        let (me, group) = (self.options.local_rank, self.options.group());
        ShmError::Missing { me, missing, group, waited: self.options.start_deadline }
    }

    /// Connects to a lower rank, which may not be there yet.
    fn call(&self, peer: usize) -> Result<Joined, ShmError> {
        let address = self.address(peer)?;
        loop {
            self.go_on()?;
            let socket = self.socket()?;
            match connect(&socket, &address) {
                Ok(()) => {
                    let (pid, uid) = self.credentials(&socket)?;
                    if uid != getuid().as_raw() {
                        return Err(ShmError::WrongUser { peer, uid });
                    }
                    // Not there any more: it may come back.
                    if self.send(&socket).is_ok() {
                        self.readable(&socket, self.until, peer)?;
                        if let Some((hello, memory)) = self.receive(&socket) {
                            let memory = self.check(&hello, peer, memory)?;
                            return Ok(Joined { socket, pid, memory, cpus: hello.cpus });
                        }
                    }
                }
                // Nobody listens yet, or its queue is full.
                Err(Errno::CONNREFUSED | Errno::NOENT | Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(self.system(format!("connect to {}", self.name(peer)), e)),
            }
            if Instant::now() >= self.until {
                return Err(self.missing(peer));
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Answers somebody who has connected; strangers and nonsense are dropped.
    fn answer(&self, socket: OwnedFd) -> Result<Option<(usize, Joined)>, ShmError> {
        let Ok((pid, uid)) = self.credentials(&socket) else { return Ok(None) };
        let until = self.until.min(Instant::now() + SILENCE);
        if uid != getuid().as_raw() || self.readable(&socket, until, 0).is_err() {
            return Ok(None);
        }
        let Some((hello, memory)) = self.receive(&socket) else { return Ok(None) };
        let peer = hello.rank as usize;
        // The answer first, so that the other side can say what differs too.
        if self.send(&socket).is_err() {
            return Ok(None);
        }
        if peer <= self.options.local_rank || peer >= self.options.local_ranks {
            let (me, problem) = (self.options.local_rank, format!("it is one of {} ranks", hello.ranks));
            return Err(ShmError::Handshake { me, peer, problem });
        }
        let memory = self.check(&hello, peer, memory)?;
        Ok(Some((peer, Joined { socket, pid, memory, cpus: hello.cpus })))
    }

    fn credentials(&self, socket: &OwnedFd) -> Result<(Option<Pid>, u32), ShmError> {
        let credentials = sockopt::socket_peercred(socket)
            .map_err(|e| self.system("ask who is at the other end of a socket".into(), e))?;
        // Pid 0 stands for a process that this pid namespace does not show.
        let pid = Some(credentials.pid).filter(|pid| pid.as_raw_nonzero().get() > 0);
        Ok((pid, credentials.uid.as_raw()))
    }

    fn send(&self, socket: &OwnedFd) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [self.fd.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let packet = self.hello.encode();
        sendmsg(socket, &[std::io::IoSlice::new(&packet)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The packet of a peer and its memory; none if it is something else.
    fn receive(&self, socket: &OwnedFd) -> Option<(Hello, OwnedFd)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut packet = [0; HELLO_BYTES + 1];
        let got = {
            let mut parts = [std::io::IoSliceMut::new(&mut packet)];
            recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?
        };
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })?;
        Some((Hello::decode(&packet[..got.bytes])?, fd))
    }

    /// Compares a peer's parameters with ours and maps its memory.
    fn check(&self, theirs: &Hello, peer: usize, fd: OwnedFd) -> Result<Memory, ShmError> {
        let fail = |problem| ShmError::Handshake { me: self.options.local_rank, peer, problem };
        let same = Hello { rank: peer as u32, cpus: theirs.cpus, ..self.hello };
        if *theirs != same {
            let of = |h: &Hello| format!("rank {} of {} with an arena of {} bytes", h.rank, h.ranks, h.arena);
            return Err(fail(format!("it is {}, expected {}", of(theirs), of(&same))));
        }
        Memory::of_peer(fd.as_fd(), self.options.arena_bytes).map_err(fail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_its_encoding_and_nonsense_does_not() {
        let hello =
            Hello { rank: 3, ranks: 9, run: 7, generation: u64::MAX, arena: 1 << 40, cpus: [5; CPU_BYTES] };
        let bytes = hello.encode();
        assert_eq!(Hello::decode(&bytes), Some(hello));
        for len in 0..bytes.len() {
            assert_eq!(Hello::decode(&bytes[..len]), None);
        }
        assert_eq!(Hello::decode(&[0; HELLO_BYTES]), None);
    }
}
