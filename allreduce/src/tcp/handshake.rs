//! Who is at the other end of a stream: three short messages before the first frame.
//!
//! Both ends prove that they know the run's key with an HMAC over everything that was said, under a key that HKDF
//! derives for this run and generation; so a recorded handshake or a rank of another generation gets nowhere.
//! Messages have a fixed size: nothing is allocated for a stranger. Inside TLS the proofs cover its keys too, so that nobody
//! in between can pass them on, whatever certificate he has. No socket here.

use std::fmt;

use muster_proto::{Generation, Rank};
use ring::{digest, hkdf, hmac, rand};

use super::wire::LinkTls;
use crate::membership::Membership;

const MAGIC: &[u8; 8] = b"MUSTER\x00\x01";
/// magic, mode, stream number, from, to, generation, run, nonce
const HELLO_BYTES: usize = 8 + 1 + 1 + 4 + 4 + 8 + 32 + 32;
/// status, nonce, proof
const REPLY_BYTES: usize = 1 + 32 + 32;
const CONFIRM_BYTES: usize = 32;

/// How data connections are authenticated.
#[derive(Clone)]
pub enum Security {
    /// Both ends prove that they know this key. Data travels in the clear, with checksums.
    PreSharedKey(Key),
    /// The same inside TLS: both ends show certificates first, and data is encrypted.
    MutualTls(Key, LinkTls),
    /// Nobody proves anything. For tests, and networks that nobody else can reach.
    Plaintext,
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PreSharedKey(_) => "PreSharedKey(..)",
            Self::MutualTls(..) => "MutualTls(..)",
            Self::Plaintext => "Plaintext",
        })
    }
}

impl Security {
    pub(super) fn tls(&self) -> Option<&LinkTls> {
        match self {
            Self::MutualTls(_, tls) => Some(tls),
            Self::PreSharedKey(_) | Self::Plaintext => None,
        }
    }
}

/// A secret of all ranks of a run.
#[derive(Clone)]
pub struct Key(Vec<u8>);

impl Key {
    /// Fewest bytes of a key.
    pub const MIN_BYTES: usize = 16;

    /// A key of these bytes; none if they are fewer than [`Key::MIN_BYTES`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= Self::MIN_BYTES).then(|| Self(bytes.to_vec()))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What one rank needs for its handshakes.
pub(super) struct Identity {
    me: Rank,
    world_size: usize,
    generation: Generation,
    run: [u8; 32],
    key: Option<hmac::Key>,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait for more bytes.
    Wait,
    /// The other end is this rank. Bytes beyond the handshake belong to frames.
    Done(Rank),
    /// Close the stream.
    Refuse(&'static str),
}

/// The message that is awaited, and the rank at the other end.
enum State {
    Hello,
    Reply(Rank),
    Confirm(Rank),
}

/// A handshake under way.
pub(super) struct Handshake {
    state: State,
    /// What was said so far.
    hello: [u8; HELLO_BYTES],
    reply_nonce: [u8; 32],
    /// What the proofs are bound to beside what was said: the keys of TLS, or zeros.
    pub binding: [u8; 32],
    /// Bytes to send.
    pub out: Vec<u8>,
}

impl Identity {
    pub fn new(membership: &Membership, me: Rank, security: &Security) -> Self {
        let mut run = [0; 32];
        run.copy_from_slice(digest::digest(&digest::SHA256, membership.run().as_bytes()).as_ref());
        let generation = membership.generation();
        let key = match security {
            Security::PreSharedKey(Key(secret)) | Security::MutualTls(Key(secret), _) => {
                Some(derive(secret, &run, generation))
            }
            Security::Plaintext => None,
        };
        Self { me, world_size: membership.world_size(), generation, run, key }
    }

    /// The proof of one side over everything that was said.
    fn proof(&self, side: &[u8], handshake: &Handshake) -> [u8; 32] {
        let mut bytes = [0; 32];
        if let Some(key) = &self.key {
            bytes.copy_from_slice(hmac::sign(key, &self.said(side, handshake)).as_ref());
        }
        bytes
    }

    fn holds(&self, side: &[u8], handshake: &Handshake, proof: &[u8]) -> bool {
        match &self.key {
            // Takes the same time for every proof.
            Some(key) => hmac::verify(key, &self.said(side, handshake), proof).is_ok(),
            None => true,
        }
    }

    fn said(&self, side: &[u8], handshake: &Handshake) -> Vec<u8> {
        [side, &handshake.hello, &handshake.reply_nonce, &handshake.binding].concat()
    }
}

fn derive(secret: &[u8], run: &[u8], generation: Generation) -> hmac::Key {
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, run);
    let number = generation.0.to_le_bytes();
    let info = [&b"muster data"[..], &number[..]];
    let expanded = salt.extract(secret).expand(&info, hkdf::HKDF_SHA256).map(|okm| {
        let mut bytes = [0; 32];
        okm.fill(&mut bytes).map(|()| bytes)
    });
    // HKDF fails only for outputs of more than 255 hashes; this one has one.
    let bytes = expanded.ok().and_then(Result::ok).unwrap_or_default();
    hmac::Key::new(hmac::HMAC_SHA256, &bytes)
}

fn nonce() -> Option<[u8; 32]> {
    rand::generate(&rand::SystemRandom::new()).ok().map(rand::Random::expose)
}

impl Handshake {
    /// The side that dialled; none if the system has no random numbers.
    pub fn dial(identity: &Identity, peer: Rank, stream: u8) -> Option<Self> {
        let mut hello = [0; HELLO_BYTES];
        hello[..8].copy_from_slice(MAGIC);
        hello[8] = u8::from(identity.key.is_some());
        hello[9] = stream;
        hello[10..14].copy_from_slice(&identity.me.0.to_le_bytes());
        hello[14..18].copy_from_slice(&peer.0.to_le_bytes());
        hello[18..26].copy_from_slice(&identity.generation.0.to_le_bytes());
        hello[26..58].copy_from_slice(&identity.run);
        hello[58..].copy_from_slice(&nonce()?);
        let out = hello.to_vec();
        Some(Self { state: State::Reply(peer), hello, reply_nonce: [0; 32], binding: [0; 32], out })
    }

    /// The side that accepted.
    pub fn accept() -> Self {
        Self {
            state: State::Hello,
            hello: [0; HELLO_BYTES],
            reply_nonce: [0; 32],
            binding: [0; 32],
            out: Vec::new(),
        }
    }

    /// Bytes that the next message has.
    fn needs(&self) -> usize {
        match self.state {
            State::Hello => HELLO_BYTES,
            State::Reply(_) => REPLY_BYTES,
            State::Confirm(_) => CONFIRM_BYTES,
        }
    }

    /// Takes in what has arrived so far; returns how many bytes it used.
    pub fn advance(&mut self, identity: &Identity, bytes: &[u8]) -> (usize, Step) {
        let Some(message) = bytes.get(..self.needs()) else {
            // The first bytes tell a stranger already.
            let strange =
                matches!(self.state, State::Hello) && !MAGIC.starts_with(&bytes[..bytes.len().min(8)]);
            return (0, if strange { Step::Refuse("it speaks another protocol") } else { Step::Wait });
        };
        let step = match self.state {
            State::Hello => self.hello(identity, message),
            State::Reply(peer) => self.reply(identity, peer, message),
            State::Confirm(peer) => {
                if identity.holds(b"dial", self, message) {
                    Step::Done(peer)
                } else {
                    Step::Refuse("its key is wrong")
                }
            }
        };
        (message.len(), step)
    }

    fn hello(&mut self, identity: &Identity, message: &[u8]) -> Step {
        let word =
            |at: usize| u32::from_le_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
        let generation = u64::from(word(18)) | u64::from(word(22)) << 32;
        let (from, to) = (Rank(word(10)), Rank(word(14)));
        self.hello.copy_from_slice(message);
        let problem = match () {
            () if &message[..8] != MAGIC => "it speaks another protocol",
            () if message[8] != u8::from(identity.key.is_some()) => {
                "one side has a key and the other has none"
            }
            () if message[26..58] != identity.run => "it belongs to another run",
            () if generation != identity.generation.0 => "it belongs to another generation",
            () if to != identity.me => "it looks for another rank",
            () if from == identity.me || from.0 as usize >= identity.world_size => {
                "its rank is no other member"
            }
            () => {
                let Some(nonce) = nonce() else { return Step::Refuse("the system has no random numbers") };
                self.reply_nonce = nonce;
                self.out.push(0);
                self.out.extend(nonce);
                let proof = identity.proof(b"accept", self);
                self.out.extend(proof);
                self.state = State::Confirm(from);
                return Step::Wait;
            }
        };
        Step::Refuse(problem)
    }

    fn reply(&mut self, identity: &Identity, peer: Rank, message: &[u8]) -> Step {
        self.reply_nonce.copy_from_slice(&message[1..33]);
        if message[0] != 0 || !identity.holds(b"accept", self, &message[33..]) {
            return Step::Refuse("its key is wrong");
        }
        let proof = identity.proof(b"dial", self);
        self.out.extend(proof);
        Step::Done(peer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::membership::{CostModel, Member};

    fn members(run: &str, generation: u64) -> Arc<Membership> {
        let member = |id: &str| Member {
            id: id.into(),
            node: "n".into(),
            addresses: vec![([127, 0, 0, 1], 1).into()],
        };
        let members = vec![member("a"), member("b")];
        Arc::new(Membership::new(run, Generation(generation), members, CostModel::default()).unwrap())
    }

    fn identity(run: &str, generation: u64, rank: u32, key: Option<&[u8]>) -> Identity {
        let security = key.map_or(Security::Plaintext, |k| Security::PreSharedKey(Key::new(k).unwrap()));
        Identity::new(&members(run, generation), Rank(rank), &security)
    }

    /// Both ends' last steps.
    fn meet(dialler: &Identity, acceptor: &Identity) -> (Step, Step) {
        let (mut a, mut b) = (Handshake::dial(dialler, Rank(1), 0).unwrap(), Handshake::accept());
        let (_, step) = b.advance(acceptor, &std::mem::take(&mut a.out));
        if step != Step::Wait {
            return (Step::Wait, step);
        }
        let (_, first) = a.advance(dialler, &std::mem::take(&mut b.out));
        let (_, second) = b.advance(acceptor, &std::mem::take(&mut a.out));
        (first, second)
    }

    const KEY: Option<&[u8]> = Some(b"a key of 16 bytes");

    #[test]
    fn members_with_one_key_find_each_other() {
        for key in [KEY, None] {
            let (first, second) = meet(&identity("r", 3, 0, key), &identity("r", 3, 1, key));
            assert_eq!((first, second), (Step::Done(Rank(1)), Step::Done(Rank(0))));
        }
    }

    #[test]
    fn strangers_are_refused_with_a_reason() {
        let me = identity("r", 3, 1, KEY);
        let wrong_key = identity("r", 3, 0, Some(b"another key of 16 b"));
        assert_eq!(meet(&wrong_key, &me).0, Step::Refuse("its key is wrong"));
        for (other, problem) in [
            (identity("s", 3, 0, KEY), "it belongs to another run"),
            (identity("r", 2, 0, KEY), "it belongs to another generation"),
            (identity("r", 3, 0, None), "one side has a key and the other has none"),
            (identity("r", 3, 1, KEY), "its rank is no other member"),
        ] {
            assert_eq!(meet(&other, &me).1, Step::Refuse(problem));
        }
    }

    #[test]
    fn a_recorded_confirmation_is_worth_nothing() {
        let (dialler, acceptor) = (identity("r", 3, 0, KEY), identity("r", 3, 1, KEY));
        let (mut a, mut b) = (Handshake::dial(&dialler, Rank(1), 0).unwrap(), Handshake::accept());
        let hello = std::mem::take(&mut a.out);
        b.advance(&acceptor, &hello);
        a.advance(&dialler, &std::mem::take(&mut b.out));
        let confirm = std::mem::take(&mut a.out);
        let mut again = Handshake::accept();
        again.advance(&acceptor, &hello);
        assert_eq!(again.advance(&acceptor, &confirm).1, Step::Refuse("its key is wrong"));
    }

    #[test]
    fn a_proof_holds_for_one_session_of_tls() {
        let (dialler, acceptor) = (identity("r", 3, 0, KEY), identity("r", 3, 1, KEY));
        let (mut a, mut b) = (Handshake::dial(&dialler, Rank(1), 0).unwrap(), Handshake::accept());
        // Somebody in between has one session with each of them.
        (a.binding, b.binding) = ([1; 32], [2; 32]);
        b.advance(&acceptor, &std::mem::take(&mut a.out));
        let (_, step) = a.advance(&dialler, &std::mem::take(&mut b.out));
        assert_eq!(step, Step::Refuse("its key is wrong"));
    }

    proptest! {
        #[test]
        fn foreign_bytes_are_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let acceptor = identity("r", 3, 1, KEY);
            let (_, step) = Handshake::accept().advance(&acceptor, &bytes);
            prop_assert!(!matches!(step, Step::Done(_)));
            let mut dialler = Handshake::dial(&identity("r", 3, 0, KEY), Rank(1), 0).unwrap();
            prop_assert!(!matches!(dialler.advance(&acceptor, &bytes).1, Step::Done(_)));
        }
    }
}
