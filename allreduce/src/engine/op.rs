//! One operation under way at one rank: its plan, its buffers, and what of the plan is done.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use muster_kernels::isa::Isa;
use muster_proto::Rank;

use super::memory::{Memory, Pool, Slab};
use crate::element::{DataType, Operation};
use crate::plan::{Place, Plan, Reduce, Repr, Task, TaskId, Transfer};

/// Numbering that an operation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Operations of everybody.
    World,
    /// Transfers to this rank.
    To(Rank),
    /// Transfers from this rank.
    From(Rank),
    /// Operations of the ranks that have this rank's place in their nodes.
    Rail,
}

/// Which operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpKey {
    /// Numbering.
    pub scope: Scope,
    /// Number, from 0.
    pub sequence: u64,
}

/// A caller's buffer.
pub(crate) type Buffer = Box<dyn Memory>;

/// Element types of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Types {
    pub memory: DataType,
    pub wire: DataType,
    pub partial: DataType,
}

impl Types {
    /// Bytes of an element as it is sent.
    pub fn sent(&self, repr: Repr) -> usize {
        match repr {
            Repr::Data => self.wire.bytes(),
            Repr::Partial => self.partial.bytes(),
        }
    }
}

/// What an operation needs to compute.
pub(super) struct Env<'a> {
    pub isa: Isa,
    pub pool: &'a mut Pool,
}

/// A buffer of elements between two tasks.
#[derive(Debug, Default)]
pub(super) struct Temp {
    pub slab: Option<Slab>,
    pub users: u32,
    /// Sum of the weights in it; 0 for none, and then there is no slab.
    pub weight: f32,
}

/// The steps of losing patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Ask,
    Blame,
    GiveUp,
}

/// How far a peer is in an operation.
#[derive(Debug)]
pub(super) struct PeerState {
    pub rank: Rank,
    /// When it was heard that the peer has posted the operation.
    pub started: Option<Duration>,
    /// Bytes sent to it before that.
    pub eager_bytes: u64,
    /// Messages that it still owes.
    pub missing: usize,
    /// Which messages are being read right now.
    pub reading: Vec<u32>,
    /// The peer has everything that I owe it.
    pub finished: bool,
}

/// Where the payload of a message is.
#[derive(Debug)]
pub(super) enum Body {
    Empty,
    Owned(Slab),
    Input(Range<usize>),
    Output(Range<usize>),
    Temp(u32),
    /// A copy that the operation keeps in case it must be repeated.
    Kept,
}

/// Where the payload of a message goes.
#[derive(Debug)]
pub(super) enum Dest {
    Empty,
    Slab(Slab),
    Output(Range<usize>),
}

pub(super) struct Op {
    pub key: OpKey,
    pub name: String,
    pub description: String,
    pub fingerprint: u64,
    pub plan: Arc<Plan>,
    pub types: Types,
    pub operation: Operation,
    /// Whether elements are combined; weights mean nothing otherwise.
    pub reduces: bool,
    pub weight: f32,
    pub input: Buffer,
    /// None: results overwrite the input.
    pub output: Option<Buffer>,
    pub total_weight: f32,
    pub peers: Vec<PeerState>,
    /// Payloads are copied when they are sent, so that the operation may end before they are acknowledged.
    pub keeps: bool,
    pub kept: BTreeMap<TaskId, Slab>,
    pub posted: Duration,
    pub progress: Duration,
    /// What to do when nothing has moved for long.
    pub look: Look,
    pub finished_at: Option<Duration>,
    /// Sends that became possible.
    pub ready_sends: Vec<TaskId>,
    waits: Vec<u32>,
    pub done: Vec<bool>,
    left: usize,
    pub temps: Vec<Temp>,
    /// Arithmetic that became possible.
    pub computable: Vec<TaskId>,
}

/// What an operation starts with.
pub(super) struct Start {
    pub key: OpKey,
    pub name: String,
    pub description: String,
    pub fingerprint: u64,
    pub plan: Arc<Plan>,
    pub types: Types,
    pub operation: Operation,
    pub reduces: bool,
    pub weight: f32,
    pub input: Buffer,
    pub output: Option<Buffer>,
    pub keeps: bool,
}

impl Op {
    pub fn new(start: Start, now: Duration) -> Self {
        let plan = &start.plan;
        let peers = plan.peers.iter().map(|p| PeerState {
            rank: p.rank,
            started: None,
            eager_bytes: 0,
            missing: p.recvs.len(),
            reading: Vec::new(),
            finished: p.sends.is_empty(),
        });
        let temp = |&users: &u32| Temp { slab: None, users, weight: 0.0 };
        Self {
            peers: peers.collect(),
            waits: plan.waits.clone(),
            done: vec![false; plan.tasks.len()],
            left: plan.tasks.len(),
            temps: plan.temp_users.iter().map(temp).collect(),
            computable: Vec::new(),
            ready_sends: Vec::new(),
            total_weight: if start.reduces { 0.0 } else { 1.0 },
            kept: BTreeMap::new(),
            posted: now,
            progress: now,
            look: Look::Ask,
            finished_at: None,
            key: start.key,
            name: start.name,
            description: start.description,
            fingerprint: start.fingerprint,
            plan: start.plan,
            types: start.types,
            operation: start.operation,
            reduces: start.reduces,
            weight: start.weight,
            input: start.input,
            output: start.output,
            keeps: start.keeps,
        }
    }

    /// Starts everything that waits for nothing.
    pub fn begin(&mut self, env: &mut Env<'_>) {
        for task in 0..self.plan.tasks.len() as TaskId {
            if self.waits[task as usize] == 0 {
                self.activate(task);
            }
        }
        self.compute(env);
    }

    pub fn peer(&self, rank: Rank) -> Option<usize> {
        self.peers.iter().position(|p| p.rank == rank)
    }

    /// Whether this rank has everything that it wants and has sent everything that it owes.
    pub fn is_settled(&self) -> bool {
        self.left == 0
    }

    pub fn in_place(&self) -> bool {
        self.output.is_none()
    }

    pub fn output(&self) -> &[u8] {
        self.output.as_ref().unwrap_or(&self.input).bytes()
    }

    pub fn output_mut(&mut self) -> &mut [u8] {
        self.output.as_mut().unwrap_or(&mut self.input).bytes_mut()
    }

    /// Something arrived or went out.
    pub fn moved(&mut self, now: Duration) {
        self.progress = now;
        self.look = Look::Ask;
    }

    fn activate(&mut self, task: TaskId) {
        match self.plan.tasks[task as usize] {
            Task::Send(_) => self.ready_sends.push(task),
            Task::Recv(_) => {}
            Task::Reduce(_) | Task::Copy { .. } => self.computable.push(task),
        }
    }

    /// Notes that a task is done, frees what nobody needs any more, and starts what waited for it.
    pub(super) fn complete(&mut self, task: TaskId, env: &mut Env<'_>) {
        if std::mem::replace(&mut self.done[task as usize], true) {
            return;
        }
        self.left -= 1;
        let plan = Arc::clone(&self.plan);
        for &temp in plan.releases.of(task) {
            let temp = &mut self.temps[temp as usize];
            temp.users -= 1;
            if temp.users == 0 {
                temp.slab.take().into_iter().for_each(|slab| env.pool.give(slab));
            }
        }
        for &next in plan.next.of(task) {
            self.waits[next as usize] -= 1;
            if self.waits[next as usize] == 0 {
                self.activate(next);
            }
        }
    }

    /// A message was handed to the operating system.
    pub fn sent(&mut self, task: TaskId, env: &mut Env<'_>) {
        self.complete(task, env);
        self.compute(env);
    }

    /// The transfer of a message from a peer.
    pub fn transfer(&self, task: TaskId) -> Option<&Transfer> {
        match &self.plan.tasks[task as usize] {
            Task::Send(t) | Task::Recv(t) => Some(t),
            _ => None,
        }
    }

    /// Takes in a message whose payload is complete.
    pub fn arrived(&mut self, task: TaskId, dest: Dest, arrival: (f32, bool), env: &mut Env<'_>) {
        let Some(&t) = self.transfer(task) else { return };
        let (weight, is_result) = arrival;
        let plan = Arc::clone(&self.plan);
        match (t.place, dest) {
            (Place::Temp(_), Dest::Slab(slab)) if is_result => {
                for &next in plan.next.of(task) {
                    let Task::Reduce(Reduce { out: Place::Output(at), .. }) = plan.tasks[next as usize]
                    else {
                        continue;
                    };
                    if !self.done[next as usize] {
                        self.store(at, slab.bytes(), env.isa);
                        self.total_weight = weight;
                        // Those that wait for it may go on; what it still waits for arrives and changes nothing.
                        self.complete(next, env);
                    }
                }
                env.pool.give(slab);
            }
            (Place::Temp(temp), dest) => {
                let temp = &mut self.temps[temp as usize];
                temp.weight = weight;
                if let Dest::Slab(slab) = dest {
                    if temp.users > 0 { temp.slab = Some(slab) } else { env.pool.give(slab) }
                }
            }
            (Place::Output(at), Dest::Slab(slab)) => {
                self.store(at, slab.bytes(), env.isa);
                env.pool.give(slab);
            }
            _ => {}
        }
        if matches!(t.place, Place::Output(_)) && t.len > 0 {
            self.total_weight = weight;
        }
        self.complete(task, env);
        self.compute(env);
    }

    /// Ranges of the output that hold final results, in elements.
    pub fn held(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = self
            .plan
            .tasks
            .iter()
            .zip(&self.done)
            .filter(|(_, done)| **done)
            .filter_map(|(task, _)| match task {
                Task::Recv(Transfer { place: Place::Output(at), len, .. })
                | Task::Reduce(Reduce { out: Place::Output(at), len, .. })
                | Task::Copy { to: at, len, .. } => Some(*at..at + len),
                _ => None,
            })
            .filter(|r| !r.is_empty())
            .collect();
        ranges.sort_by_key(|r| r.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        merged
    }
}

/// Bytes of `len` elements from `at` on.
pub(super) fn bytes(at: u64, len: u64, size: usize) -> Range<usize> {
    at as usize * size..(at + len) as usize * size
}
