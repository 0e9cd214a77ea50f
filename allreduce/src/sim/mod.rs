//! A world of engines without sockets: one seed decides every delay, pause, reordering, break, partition and crash.
//!
//! Time is a number, so a minute of waiting costs nothing, and the same seed gives the same run, byte for byte.

mod faults;
mod fuzz;
mod load;
mod oracle;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_proto::{Generation, Rank};
use xxhash_rust::xxh3::Xxh3;

use crate::engine::{Action, Ended, Engine, Event, OpKey, Outgoing, Post, Receipt};
use crate::error::Error;
use crate::frame::{HEADER_BYTES, Header};
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
            What::Written(s, dir) => Some(self.streams[s].ends[dir]),
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
                    stream.up[end] = true;
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
            Err((error, _)) => node.refused_posts.push(error),
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

    fn write(&mut self, s: usize, end: usize) {
        loop {
            let stream = &self.streams[s];
            let lane = &stream.lanes[end];
            if !stream.alive || !stream.up[end] || lane.flying.len() + lane.writing.len() >= 3 {
                return;
            }
            let (r, peer) = (stream.ends[end], Rank(stream.ends[1 - end] as u32));
            let Some(frame) = self.nodes[r].engine.next_frame(peer, self.now) else { return };
            let mut payload =
                self.nodes[r].engine.payload(&frame).map(<[u8]>::to_vec).unwrap_or(vec![0; frame.len]);
            self.trace.update(&payload);
            if !payload.is_empty() && self.rng.chance(self.corrupt_percent) {
                let at = self.rng.below(payload.len() as u64) as usize;
                payload[at] ^= 1 << self.rng.below(8);
            }
            let delay = self.rng.us(self.delay_us);
            let header = frame.header;
            let slow = self.rng.chance(30);
            let lane = &mut self.streams[s].lanes[end];
            lane.flying.push_back(Packet { header, payload });
            lane.last_arrival = lane.last_arrival.max(self.now + delay);
            let arrival = lane.last_arrival - self.now;
            // Frames end in order, so one that is slow makes the next ones slow.
            if slow || !lane.writing.is_empty() {
                lane.writing.push_back(frame);
                self.at(arrival / 2, What::Written(s, end));
            } else {
                self.nodes[r].engine.sent(frame, self.now);
            }
            self.at(arrival, What::Arrive(s, end));
        }
    }

    fn arrive(&mut self, s: usize, dir: usize) {
        let stream = &mut self.streams[s];
        let [a, b] = stream.ends;
        if !stream.alive || stream.lanes[dir].flying.is_empty() {
            return;
        }
        let cut = self.cut.contains(&(a.min(b), a.max(b)));
        if cut || !stream.up[1 - dir] || stream.lanes[dir].reading.is_some() {
            let delay = if cut { Duration::from_millis(5) } else { self.rng.us(20) };
            return self.at(delay, What::Arrive(s, dir));
        }
        let Some(packet) = stream.lanes[dir].flying.pop_front() else { return };
        let (r, peer) = (stream.ends[1 - dir], Rank(stream.ends[dir] as u32));
        let header = Header::decode(&packet.header).unwrap();
        let engine = &mut self.nodes[r].engine;
        let mut receipt = engine.begin(peer, header, self.now).unwrap();
        engine.room(&mut receipt).copy_from_slice(&packet.payload);
        self.streams[s].lanes[dir].reading = Some(receipt);
        if self.rng.chance(30) {
            let delay = self.rng.us(30);
            self.at(delay, What::Read(s, dir));
        } else {
            self.read(s, dir);
        }
    }

    fn read(&mut self, s: usize, dir: usize) {
        let stream = &mut self.streams[s];
        let r = stream.ends[1 - dir];
        if let Some(receipt) = stream.lanes[dir].reading.take() {
            self.nodes[r].engine.finish(receipt, self.now).unwrap();
        }
    }

    fn dial(&mut self, r: usize, peer: usize) {
        let exists = |s: &Stream| s.alive && s.ends.contains(&r) && s.ends.contains(&peer);
        if self.streams.iter().any(exists) {
            return;
        }
        let delay = self.rng.us(self.delay_us);
        if self.nodes[peer].crashed {
            return self.at(delay, What::Refuse(r, peer));
        }
        if self.cut.contains(&(r.min(peer), r.max(peer))) {
            return self.at(Duration::from_millis(20), What::Dial(r, peer));
        }
        for _ in 0..self.per_peer {
            let lanes = [Lane::default(), Lane::default()];
            self.streams.push(Stream { ends: [r, peer], alive: true, up: [false; 2], lanes });
            for end in 0..2 {
                let delay = self.rng.us(self.delay_us);
                self.at(delay, What::Up(self.streams.len() - 1, end));
            }
        }
    }

    fn break_streams(&mut self, a: usize, b: usize) {
        for s in 0..self.streams.len() {
            let ends = self.streams[s].ends;
            // With several streams sometimes only one breaks.
            if ends.contains(&a) && ends.contains(&b) && (self.per_peer == 1 || self.rng.chance(60)) {
                self.break_stream(s);
            }
        }
    }

    fn break_stream(&mut self, s: usize) {
        if !std::mem::replace(&mut self.streams[s].alive, false) {
            return;
        }
        for end in 0..2 {
            self.streams[s].lanes[end].flying.clear();
            let delay = self.rng.us(200);
            self.at(delay, What::Down(s, end));
        }
    }

    fn notice(&mut self, s: usize, end: usize) {
        let stream = &mut self.streams[s];
        let (r, peer) = (stream.ends[end], Rank(stream.ends[1 - end] as u32));
        if std::mem::replace(&mut stream.up[end], false) {
            let unsent = stream.lanes[end].writing.drain(..).collect();
            let unread = stream.lanes[1 - end].reading.take().into_iter().collect();
            self.nodes[r].engine.handle(Event::StreamDown { peer, unsent, unread }, self.now);
        }
    }

    /// The state of each stream, for messages.
    pub fn streams(&self) -> Vec<String> {
        let text = |s: &Stream| {
            let lane = |l: &Lane| (l.flying.len(), l.writing.len(), l.reading.is_some());
            format!(
                "{:?} alive {} up {:?} {:?} {:?}",
                s.ends,
                s.alive,
                s.up,
                lane(&s.lanes[0]),
                lane(&s.lanes[1])
            )
        };
        self.streams.iter().map(text).collect()
    }

    pub fn digest(&self) -> u64 {
        self.trace.digest()
    }
}
