//! Puts a plan's graph together.

use std::collections::HashMap;
use std::ops::Range;

use super::shape::segments;
use super::{Group, Kind, Lists, PeerPlan, Place, Plan, Reduce, Repr, Spec, Task, TaskId, Transfer};

/// Collects tasks and edges. Messages of one pair must be made in the same order at both ends.
pub(super) struct Builder<'a> {
    pub group: &'a Group,
    /// My position.
    pub me: usize,
    pub element_bytes: u64,
    /// Elements of a segment.
    pub segment: u64,
    pub window: u64,
    tasks: Vec<Task>,
    /// (before, after)
    edges: Vec<(u32, u32)>,
    /// (task, temp)
    uses: Vec<(u32, u32)>,
    temps: u32,
    kept: Vec<u32>,
    peers: Vec<PeerPlan>,
    by_position: HashMap<usize, u32>,
    input_len: u64,
    output_len: u64,
}

impl<'a> Builder<'a> {
    pub fn new(spec: &'a Spec) -> Self {
        let total = |counts: &[u64]| counts.iter().fold(0_u64, |sum, &c| sum.saturating_add(c));
        let (input_len, output_len) = match &spec.kind {
            Kind::AllReduce { count, .. } => (*count, *count),
            Kind::ReduceScatter { counts } => (total(counts), counts[spec.me]),
            Kind::AllGather { counts } => (counts[spec.me], total(counts)),
            Kind::Broadcast { count, root } => (if *root == spec.me { *count } else { 0 }, *count),
            Kind::Transfer { count } => {
                if spec.me == 0 {
                    (*count, 0)
                } else {
                    (0, *count)
                }
            }
        };
        // A partial sum may be wider than an element; a segment of it must fit too.
        let widest = spec.element_bytes.max(spec.partial_bytes);
        let unit = (64 / spec.element_bytes).max(1);
        let segment = ((spec.tuning.segment_bytes / widest) / unit * unit).max(unit);
        Self {
            group: &spec.group,
            me: spec.me,
            element_bytes: spec.element_bytes,
            segment,
            window: spec.tuning.window.max(1),
            tasks: Vec::new(),
            edges: Vec::new(),
            uses: Vec::new(),
            temps: 0,
            kept: Vec::new(),
            peers: Vec::new(),
            by_position: HashMap::new(),
            input_len,
            output_len,
        }
    }

    pub fn n(&self) -> usize {
        self.group.len()
    }

    /// The position `distance` further on, around.
    pub fn ahead(&self, distance: usize) -> usize {
        (self.me + distance) % self.n()
    }

    pub fn segments(&self, range: Range<u64>) -> Vec<Range<u64>> {
        segments(range, self.segment)
    }

    /// At least one segment, so that an operation without elements still is a meeting of all ranks.
    pub fn segments_or_empty(&self, count: u64) -> Vec<Range<u64>> {
        if count == 0 { std::iter::once(0..0).collect() } else { self.segments(0..count) }
    }

    pub fn temp(&mut self) -> Place {
        self.temps += 1;
        Place::Temp(self.temps - 1)
    }

    fn task(&mut self, task: Task, after: &[TaskId]) -> TaskId {
        let id = self.tasks.len() as TaskId;
        self.tasks.push(task);
        for &before in after {
            self.after(before, id);
        }
        id
    }

    /// Makes `after` wait for `before`.
    pub fn after(&mut self, before: TaskId, after: TaskId) {
        self.edges.push((before, after));
    }

    /// Keeps a temp until this task is done.
    pub fn hold(&mut self, place: Place, task: TaskId) {
        if let Place::Temp(temp) = place {
            self.uses.push((task, temp));
        }
    }

    /// Keeps a temp until the operation ends.
    pub fn keep(&mut self, place: Place) {
        if let Place::Temp(temp) = place {
            self.kept.push(temp);
        }
    }

    fn peer(&mut self, position: usize) -> u32 {
        let (peers, group) = (&mut self.peers, self.group);
        *self.by_position.entry(position).or_insert_with(|| {
            peers.push(PeerPlan { rank: group.rank(position), sends: Vec::new(), recvs: Vec::new() });
            peers.len() as u32 - 1
        })
    }

    /// Sends `len` elements at `place` to a position; lower `order` goes first.
    pub fn send(&mut self, to: usize, part: (Place, Repr), len: u64, order: u64, after: &[TaskId]) -> TaskId {
        let (place, repr) = part;
        let peer = self.peer(to);
        let index = self.peers[peer as usize].sends.len() as u32;
        let order = u32::try_from(order).unwrap_or(u32::MAX);
        let id = self.task(Task::Send(Transfer { peer, index, place, repr, len, order }), after);
        self.peers[peer as usize].sends.push(id);
        self.hold(place, id);
        id
    }

    /// Receives `len` elements from a position into `place`.
    pub fn recv(&mut self, from: usize, part: (Place, Repr), len: u64) -> TaskId {
        let (place, repr) = part;
        let peer = self.peer(from);
        let index = self.peers[peer as usize].recvs.len() as u32;
        let id = self.task(Task::Recv(Transfer { peer, index, place, repr, len, order: 0 }), &[]);
        self.peers[peer as usize].recvs.push(id);
        id
    }

    /// Tells a position that something happened.
    pub fn signal(&mut self, to: usize, order: u64, after: &[TaskId]) -> TaskId {
        self.send(to, (Place::Input(0), Repr::Data), 0, order, after)
    }

    /// Hears what [`Builder::signal`] tells.
    pub fn hear(&mut self, from: usize) -> TaskId {
        self.recv(from, (Place::Output(0), Repr::Data), 0)
    }

    /// Reduces parts, which stand in canonical order with `nodes` of them together.
    pub fn reduce(
        &mut self,
        parts: Vec<(Place, Repr)>,
        nodes: &[usize],
        out: Place,
        len: u64,
        after: &[TaskId],
    ) -> TaskId {
        let places: Vec<Place> = parts.iter().map(|p| p.0).collect();
        let id = self.task(Task::Reduce(Reduce { parts, nodes: nodes.to_vec(), out, len }), after);
        for place in places {
            self.hold(place, id);
        }
        id
    }

    pub fn copy(&mut self, from: u64, to: u64, len: u64) -> TaskId {
        self.task(Task::Copy { from, to, len }, &[])
    }

    /// The whole operation in a group of one.
    pub fn alone(&mut self, kind: &Kind) {
        match kind {
            Kind::AllReduce { count, .. } => {
                for s in self.segments_or_empty(*count) {
                    let own = vec![(Place::Input(s.start), Repr::Data)];
                    self.reduce(own, &[1], Place::Output(s.start), s.end - s.start, &[]);
                }
            }
            Kind::ReduceScatter { counts } => {
                for s in self.segments(0..counts[0]) {
                    let own = vec![(Place::Input(s.start), Repr::Data)];
                    self.reduce(own, &[1], Place::Output(s.start), s.end - s.start, &[]);
                }
            }
            Kind::AllGather { counts } => {
                self.copy(0, 0, counts[0]);
            }
            Kind::Broadcast { count, .. } => {
                self.copy(0, 0, *count);
            }
            Kind::Transfer { .. } => {}
        }
    }

    pub fn finish(self) -> Plan {
        let mut waits = vec![0; self.tasks.len()];
        for &(_, after) in &self.edges {
            waits[after as usize] += 1;
        }
        let mut temp_users = vec![0; self.temps as usize];
        for &temp in self.uses.iter().map(|(_, temp)| temp).chain(&self.kept) {
            temp_users[temp as usize] += 1;
        }
        Plan {
            next: Lists::new(self.tasks.len(), &self.edges),
            releases: Lists::new(self.tasks.len(), &self.uses),
            tasks: self.tasks,
            waits,
            temp_users,
            peers: self.peers,
            input_len: self.input_len,
            output_len: self.output_len,
        }
    }
}
