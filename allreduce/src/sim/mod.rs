//! A world of engines without sockets: one seed decides every delay, pause, reordering, break, partition and crash.
//!
//! Time is a number, so a minute of waiting costs nothing, and the same seed gives the same run, byte for byte.

mod faults;
mod fuzz;
mod load;
mod net;
mod oracle;
mod rails;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_proto::{Generation, Rank};
use xxhash_rust::xxh3::Xxh3;

use crate::engine::{Action, Ended, Engine, Event, OpKey, Outgoing, Post, Receipt};
use crate::error::Error;
use crate::frame::HEADER_BYTES;
use crate::membership::{CostModel, Member, Membership};
use crate::timeouts::Timeouts;

/// Pseudo-random numbers (splitmix64).
pub(crate) struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn us(&mut self, most: u64) -> Duration {
        Duration::from_micros(1 + self.below(most))
    }
}

struct Packet {
    header: [u8; HEADER_BYTES],
    payload: Vec<u8>,
}

/// One direction of a stream.
#[derive(Default)]
struct Lane {
    flying: VecDeque<Packet>,
    /// Frames whose writing has not ended.
    writing: VecDeque<Outgoing>,
    reading: Option<Receipt>,
    last_arrival: Duration,
}

struct Stream {
    ends: [usize; 2],
    alive: bool,
    /// Which end has heard that it is up.
    up: [bool; 2],
    /// Which end has ever heard that.
    met: [bool; 2],
    lanes: [Lane; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Post(usize),
    Up(usize, usize),
    Down(usize, usize),
    Arrive(usize, usize),
    Read(usize, usize),
    Written(usize, usize),
    Room(usize, usize),
    Dial(usize, usize),
    Refuse(usize, usize),
    Break(usize, usize),
    Pause(usize, u64),
    Crash(usize),
    Heal,
    Tick(usize),
}

struct Node {
    engine: Engine,
    crashed: bool,
    paused_until: Duration,
    posts: VecDeque<Post>,
    keys: Vec<OpKey>,
    ended: BTreeMap<OpKey, Ended>,
    refused_posts: Vec<Error>,
    failed: Option<Error>,
    tick_at: Option<Duration>,
}

pub(crate) struct World {
    pub now: Duration,
    pub rng: Rng,
    nodes: Vec<Node>,
    streams: Vec<Stream>,
    queue: BinaryHeap<Reverse<(Duration, u64, What)>>,
    count: u64,
    per_peer: usize,
    delay_us: u64,
    corrupt_percent: u64,
    /// Go on when every operation has ended.
    goes_on: bool,
    /// Pairs that can't reach each other.
    cut: Vec<(usize, usize)>,
    trace: Xxh3,
}

pub(crate) fn membership(nodes: &[usize]) -> Arc<Membership> {
    let member = |node: usize, i: usize| Member {
        id: format!("{node}-{i}"),
        node: format!("node-{node}"),
        addresses: vec![([10, 0, node as u8, i as u8], 7000).into()],
    };
    let members = nodes.iter().enumerate().flat_map(|(n, &len)| (0..len).map(move |i| member(n, i)));
    Arc::new(Membership::new("sim", Generation(7), members.collect(), CostModel::default()).unwrap())
}

impl World {
    pub fn new(nodes: &[usize], seed: u64, timeouts: Timeouts) -> Self {
        let membership = membership(nodes);
        let node = |me| Node {
            engine: Engine::new(Arc::clone(&membership), Rank(me), timeouts).unwrap(),
            crashed: false,
            paused_until: Duration::ZERO,
            posts: VecDeque::new(),
            keys: vec![],
            ended: BTreeMap::new(),
            refused_posts: vec![],
            failed: None,
            tick_at: None,
        };
        Self {
            now: Duration::ZERO,
            rng: Rng(seed),
            nodes: (0..membership.world_size() as u32).map(node).collect(),
            streams: vec![],
            queue: BinaryHeap::new(),
            count: 0,
            per_peer: 1,
            delay_us: 50,
            corrupt_percent: 0,
            goes_on: false,
            cut: vec![],
            trace: Xxh3::new(),
        }
    }

    fn at(&mut self, delay: Duration, what: What) {
        self.count += 1;
        self.queue.push(Reverse((self.now + delay, self.count, what)));
    }

    /// Lets a rank post an operation after a while; its operations keep their order.
    pub fn post(&mut self, rank: usize, after: Duration, post: Post) {
        self.nodes[rank].posts.push_back(post);
        self.at(after, What::Post(rank));
    }

    /// Runs until nothing is left to do or the time is over.
    pub fn run(&mut self, until: Duration) {
        while let Some(Reverse((time, _, what))) = self.queue.pop() {
            if time > until {
                self.at(time.saturating_sub(self.now), what);
                self.now = until;
                return;
            }
            self.now = time;
            if !self.goes_on && self.is_over() {
                return;
            }
            self.happen(what);
        }
    }

    fn is_over(&self) -> bool {
        self.nodes.iter().all(|n| n.crashed || (n.posts.is_empty() && n.ended.len() == n.keys.len()))
    }

    fn happen(&mut self, what: What) {
        let rank = match what {
            What::Post(r) | What::Tick(r) | What::Dial(r, _) | What::Refuse(r, _) => Some(r),
            What::Up(s, end) | What::Down(s, end) => Some(self.streams[s].ends[end]),
            What::Arrive(s, dir) | What::Read(s, dir) => Some(self.streams[s].ends[1 - dir]),
            What::Written(s, dir) | What::Room(s, dir) => Some(self.streams[s].ends[dir]),
            _ => None,
        };
        if let Some(r) = rank {
            if self.nodes[r].crashed {
                return;
            }
            if self.nodes[r].paused_until > self.now {
                let wait = self.nodes[r].paused_until - self.now;
                return self.at(wait, what);
            }
        }
        self.trace.update(format!("{:?} {what:?}", self.now).as_bytes());
        match what {
            What::Post(r) => self.do_post(r),
            What::Tick(r) => {
                self.nodes[r].tick_at = None;
                self.nodes[r].engine.handle(Event::Tick, self.now);
            }
            What::Up(s, end) => {
                let stream = &mut self.streams[s];
                if stream.alive {
                    (stream.up[end], stream.met[end]) = (true, true);
                    let peer = Rank(stream.ends[1 - end] as u32);
                    let r = stream.ends[end];
                    self.nodes[r].engine.handle(Event::StreamUp { peer, address: None }, self.now);
                } else if end == 0 {
                    // Broken before the handshake: a driver tries again.
                    let [r, peer] = stream.ends;
                    self.at(Duration::from_millis(1), What::Dial(r, peer));
                }
            }
            What::Down(s, end) => self.notice(s, end),
            What::Arrive(s, dir) => self.arrive(s, dir),
            What::Read(s, dir) => self.read(s, dir),
            What::Written(s, dir) => {
                let stream = &mut self.streams[s];
                if let Some(frame) = stream.lanes[dir].writing.pop_front() {
                    let r = stream.ends[dir];
                    self.nodes[r].engine.sent(frame, self.now);
                }
            }
            // What comes after every event makes use of it.
            What::Room(..) => {}
            What::Dial(r, peer) => self.dial(r, peer),
            What::Refuse(r, peer) => {
                let event = Event::Refused { peer: Rank(peer as u32), cause: "refused".into() };
                self.nodes[r].engine.handle(event, self.now);
            }
            What::Break(a, b) => self.break_streams(a, b),
            What::Pause(r, us) => self.nodes[r].paused_until = self.now + Duration::from_micros(us),
            What::Crash(r) => {
                self.nodes[r].crashed = true;
                for s in 0..self.streams.len() {
                    if self.streams[s].ends.contains(&r) {
                        self.break_stream(s);
                    }
                }
            }
            What::Heal => self.cut.clear(),
        }
        match rank {
            Some(r) => self.after(r),
            None => (0..self.nodes.len()).for_each(|r| self.after(r)),
        }
    }

    fn do_post(&mut self, r: usize) {
        let Some(post) = self.nodes[r].posts.pop_front() else { return };
        let node = &mut self.nodes[r];
        match node.engine.post(post, self.now) {
            Ok(key) => node.keys.push(key),
            Err(refused) => node.refused_posts.push(refused.0),
        }
    }

    /// Does what the engine wants, and lets it write.
    fn after(&mut self, r: usize) {
        if self.nodes[r].crashed || self.nodes[r].paused_until > self.now {
            return;
        }
        for s in 0..self.streams.len() {
            if let Some(end) = self.streams[s].ends.iter().position(|e| *e == r) {
                self.write(s, end);
            }
        }
        // Writing may have ended operations.
        while let Some(action) = self.nodes[r].engine.poll_action() {
            match action {
                Action::Connect(peer) => {
                    let peer = peer.0 as usize;
                    let known = self.streams.iter().any(|s| s.ends.contains(&r) && s.ends.contains(&peer));
                    // At first the lower rank dials, later both do.
                    if r < peer || known {
                        let delay = self.rng.us(self.delay_us);
                        self.at(delay, What::Dial(r, peer));
                    }
                }
                Action::Done(ended) => {
                    self.trace.update(ended.output.as_ref().unwrap_or(&ended.input).bytes());
                    self.nodes[r].ended.insert(ended.key, *ended);
                }
                Action::Failed(error) => self.nodes[r].failed = Some(error),
            }
        }
        let node = &mut self.nodes[r];
        if let Some(at) = node.engine.poll_timeout()
            && node.tick_at.is_none_or(|t| at < t)
        {
            node.tick_at = Some(at);
            let delay = at.saturating_sub(self.now) + Duration::from_micros(1);
            self.at(delay, What::Tick(r));
        }
    }

    pub fn digest(&self) -> u64 {
        self.trace.digest()
    }
}
