//! The network between the engines: streams, what is in flight on them, and how they break.

use std::time::Duration;

use muster_proto::Rank;

use super::{Lane, Packet, Stream, What, World};
use crate::engine::Event;
use crate::frame::Header;

impl World {
    pub(super) fn write(&mut self, s: usize, end: usize) {
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

    pub(super) fn arrive(&mut self, s: usize, dir: usize) {
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
        let delay = self.rng.us(20);
        self.at(delay, What::Room(s, dir));
        let stream = &self.streams[s];
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

    pub(super) fn read(&mut self, s: usize, dir: usize) {
        let stream = &mut self.streams[s];
        let r = stream.ends[1 - dir];
        if let Some(receipt) = stream.lanes[dir].reading.take() {
            self.nodes[r].engine.finish(receipt, self.now).unwrap();
        }
    }

    pub(super) fn dial(&mut self, r: usize, peer: usize) {
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
            self.streams.push(Stream {
                ends: [r, peer],
                alive: true,
                up: [false; 2],
                met: [false; 2],
                lanes,
            });
            for end in 0..2 {
                let delay = self.rng.us(self.delay_us);
                self.at(delay, What::Up(self.streams.len() - 1, end));
            }
        }
    }

    pub(super) fn break_streams(&mut self, a: usize, b: usize) {
        for s in 0..self.streams.len() {
            let ends = self.streams[s].ends;
            // With several streams sometimes only one breaks.
            if ends.contains(&a) && ends.contains(&b) && (self.per_peer == 1 || self.rng.chance(60)) {
                self.break_stream(s);
            }
        }
    }

    pub(super) fn break_stream(&mut self, s: usize) {
        if !std::mem::replace(&mut self.streams[s].alive, false) {
            return;
        }
        for end in 0..2 {
            self.streams[s].lanes[end].flying.clear();
            let delay = self.rng.us(200);
            self.at(delay, What::Down(s, end));
        }
    }

    pub(super) fn notice(&mut self, s: usize, end: usize) {
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
}
