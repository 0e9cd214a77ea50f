//! Starting operations, and ending them.

use std::sync::Arc;

use muster_proto::Rank;
use xxhash_rust::xxh3::Xxh3;

use super::op::{Buffer, Op, OpKey, Scope, Start, Types};
use super::{Action, Ended, Engine, Env, MAX_OPERATIONS, MAX_PLANS, Retired, Times};
use crate::element::{DataType, Operation, accumulator};
use crate::error::Error;
use crate::frame::FrameKind;
use crate::plan::{Algorithm, Choice, Group, Kind, Plan, Spec, select};

/// Operations up to this size keep copies of what they sent instead of waiting for acknowledgements.
const KEEP_BYTES: u64 = 64 << 10;
/// Most ended operations whose messages are kept; beyond that operations wait for acknowledgements.
const MAX_RETIRED: usize = 1024;
/// Longest name of an operation, in bytes.
const MAX_NAME_BYTES: usize = 200;

/// An operation that a caller wants.
pub(crate) struct Post {
    pub scope: Scope,
    pub kind: Kind,
    /// None: what the cost model says.
    pub algorithm: Option<Algorithm>,
    pub group: Group,
    pub dtype: DataType,
    /// Type of elements on the wire: `dtype`, or bf16 for f32.
    pub wire: DataType,
    pub operation: Operation,
    pub weight: f32,
    pub name: String,
    pub input: Buffer,
    /// None: results overwrite the input.
    pub output: Option<Buffer>,
}

impl Post {
    fn reduces(&self) -> bool {
        matches!(self.kind, Kind::AllReduce { .. } | Kind::ReduceScatter { .. })
    }

    fn describe(&self) -> String {
        let kind = match &self.kind {
            Kind::AllReduce { count, .. } => format!("all_reduce of {count}"),
            Kind::ReduceScatter { counts } => format!("reduce_scatter of {counts:?}"),
            Kind::AllGather { counts } => format!("all_gather of {counts:?}"),
            Kind::Broadcast { count, root } => {
                format!("broadcast of {count} from {}", self.group.rank(*root))
            }
            Kind::Transfer { count } => format!("transfer of {count}"),
        };
        let operation = if self.reduces() { self.operation.name() } else { "copy" };
        let wire = if self.wire == self.dtype { String::new() } else { format!(" as {}", self.wire.name()) };
        let mut text = format!("{:?}: {kind} {}{wire}, {operation}", self.name, self.dtype.name());
        // A world of thousands of ranks may have a long list of counts.
        if text.len() > 1000 {
            let mut hasher = Xxh3::new();
            hasher.update(text.as_bytes());
            let end = (0..=900).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
            text = format!("{}.. ({:016x})", &text[..end], hasher.digest());
        }
        text
    }
}

impl Engine {
    /// The algorithm and sizes that an operation would have, and why.
    pub(crate) fn choose(&self, post: &Post) -> Choice {
        let partial = accumulator(post.dtype).bytes() as u64;
        let mut choice =
            select(&post.kind, &post.group, post.wire.bytes() as u64, partial, self.membership.costs());
        if matches!(post.kind, Kind::AllReduce { count: 0, .. }) {
            // Nothing to reduce is a meeting, and the other algorithms would not meet.
            choice.algorithm = if post.group.len() > 16 { Algorithm::Doubling } else { Algorithm::OneShot };
            choice.why = "no elements: a barrier".to_owned();
        } else if let Some(algorithm) = post.algorithm {
            choice.algorithm = algorithm;
            choice.why = format!("{} was asked for", algorithm.name());
        }
        choice
    }

    /// Starts an operation.
    ///
    /// # Errors
    /// Wrong lengths, undefined operations, or a failure before; the buffers come back.
    pub(crate) fn post(&mut self, post: Post, now: std::time::Duration) -> Result<OpKey, Box<(Error, Post)>> {
        self.now = now;
        if let Err(error) = self.check(&post) {
            return Err(Box::new((error, post)));
        }
        let choice = self.choose(&post);
        let Some(me) = post.group.ranks().iter().position(|r| *r == self.me) else {
            let error = Error::NoSuchRank { rank: self.me, world_size: post.group.len() };
            return Err(Box::new((error, post)));
        };
        let types = Types { memory: post.dtype, wire: post.wire, partial: accumulator(post.dtype) };
        let spec = Spec {
            kind: post.kind.clone(),
            algorithm: choice.algorithm,
            group: post.group.clone(),
            me,
            element_bytes: types.wire.bytes() as u64,
            partial_bytes: types.partial.bytes() as u64,
            tuning: choice.tuning,
        };
        let plan = self.plan(spec);
        if let Err(error) = self.check_lengths(&post, &plan) {
            return Err(Box::new((error, post)));
        }
        let next = self.next.entry(post.scope).or_default();
        let key = OpKey { scope: post.scope, sequence: *next };
        *next += 1;
        let description = post.describe();
        let mut hasher = Xxh3::new();
        hasher.update(description.as_bytes());
        hasher.update(&self.membership.hash().to_le_bytes());
        hasher.update(&[choice.algorithm as u8]);
        hasher.update(&choice.tuning.segment_bytes.to_le_bytes());
        hasher.update(&choice.tuning.window.to_le_bytes());
        let bytes = plan.input_len.max(plan.output_len).saturating_mul(types.memory.bytes() as u64);
        let start = Start {
            key,
            fingerprint: hasher.digest(),
            types,
            operation: post.operation,
            reduces: post.reduces(),
            weight: post.weight,
            keeps: bytes <= KEEP_BYTES && self.retired.len() < MAX_RETIRED,
            name: post.name,
            description,
            plan,
            input: post.input,
            output: post.output,
        };
        self.start(start);
        Ok(key)
    }

    fn start(&mut self, start: Start) {
        let key = start.key;
        let mut op = Op::new(start, self.now);
        let peers: Vec<Rank> = op.peers.iter().map(|p| p.rank).collect();
        op.begin(&mut Env { isa: self.isa, pool: &mut self.pool });
        let description = op.description.clone().into_bytes();
        self.ops.insert(key, op);
        for &peer in &peers {
            self.connect(peer);
            self.control(peer, FrameKind::Start, Some(key), false, description.clone());
        }
        for peer in peers {
            let parked = self.link(peer).map(|l| l.unpark(key)).unwrap_or_default();
            for frame in parked {
                self.deliver(peer, frame);
            }
        }
        self.settle(key);
    }

    /// Connects to a peer that operations will need.
    pub(crate) fn want(&mut self, peer: Rank, now: std::time::Duration) {
        self.now = now;
        if self.failed.is_none() && peer != self.me {
            self.connect(peer);
        }
    }

    /// Asks for a connection, once.
    fn connect(&mut self, peer: Rank) {
        let now = self.now;
        let Some(link) = self.link(peer) else { return };
        if link.has_left {
            return self.lose(peer, "it had left before this operation".to_owned());
        }
        if link.wanted_since.is_none() {
            link.wanted_since = Some(now);
            self.actions.push_back(Action::Connect(peer));
        }
    }

    fn plan(&mut self, spec: Spec) -> Arc<Plan> {
        if let Some(plan) = self.plans.get(&spec) {
            return Arc::clone(plan);
        }
        if self.plans.len() >= MAX_PLANS {
            self.plans.clear();
        }
        let plan = Arc::new(Plan::new(&spec));
        self.plans.insert(spec, Arc::clone(&plan));
        plan
    }

    fn check(&self, post: &Post) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.ops.len() >= MAX_OPERATIONS {
            return Err(Error::Busy { limit: MAX_OPERATIONS });
        }
        self.check_ranks(post)?;
        let unsupported =
            |what, dtype: DataType, why| Err(Error::Unsupported { what, dtype: dtype.name(), why });
        if post.reduces() && post.dtype.is_integer() {
            if post.operation == Operation::Mean {
                return unsupported("a mean", post.dtype, "it would have to be rounded");
            }
            if post.weight != 0.0 && post.weight != 1.0 {
                return unsupported(
                    "a weight other than 0 or 1",
                    post.dtype,
                    "products would have to be rounded",
                );
            }
        }
        if post.wire != post.dtype && (post.dtype, post.wire) != (DataType::F32, DataType::Bf16) {
            return unsupported("another type on the wire", post.dtype, "only f32 can travel as bf16");
        }
        if !post.weight.is_finite() || post.weight < 0.0 {
            let problem = format!("{} is not a finite number of at least 0", post.weight);
            return Err(Error::Config { name: "weight", problem });
        }
        if post.name.len() > MAX_NAME_BYTES {
            let problem = format!("{} bytes, at most {MAX_NAME_BYTES} are allowed", post.name.len());
            return Err(Error::Config { name: "name", problem });
        }
        if post.algorithm.is_some_and(|a| matches!(a, Algorithm::Hierarchical | Algorithm::Doubling))
            && post.group.equal_nodes().is_none()
        {
            let problem = "the nodes have different numbers of ranks".to_owned();
            return Err(Error::Config { name: "algorithm", problem });
        }
        let in_place = matches!(post.kind, Kind::AllReduce { in_place: true, .. });
        if in_place != (post.output.is_none() && matches!(post.kind, Kind::AllReduce { .. })) {
            let problem = "an all-reduce has an output buffer exactly if it is not in place".to_owned();
            return Err(Error::Config { name: "in_place", problem });
        }
        Ok(())
    }

    /// Plans are made of ranks and counts that exist.
    fn check_ranks(&self, post: &Post) -> Result<(), Error> {
        let (n, world_size) = (post.group.len(), self.links.len());
        if let Some(&rank) = post.group.ranks().iter().find(|r| r.0 as usize >= world_size) {
            return Err(Error::NoSuchRank { rank, world_size });
        }
        match &post.kind {
            Kind::Broadcast { root, .. } if *root >= n => {
                Err(Error::NoSuchRank { rank: Rank(*root as u32), world_size: n })
            }
            Kind::ReduceScatter { counts } | Kind::AllGather { counts } if counts.len() != n => {
                Err(Error::Length {
                    what: "the list of counts",
                    expected: n as u64,
                    got: counts.len() as u64,
                })
            }
            Kind::Transfer { .. } if n != 2 || post.group.rank(0) == post.group.rank(1) => {
                let problem = "a rank can't send to itself".to_owned();
                Err(Error::Config { name: "peer", problem })
            }
            _ => Ok(()),
        }
    }

    fn check_lengths(&self, post: &Post, plan: &Plan) -> Result<(), Error> {
        let size = post.dtype.bytes();
        let check = |what, buffer: &Buffer, expected: u64| {
            let got = (buffer.bytes().len() / size) as u64;
            if got == expected { Ok(()) } else { Err(Error::Length { what, expected, got }) }
        };
        check("the input", &post.input, plan.input_len)?;
        post.output.as_ref().map_or(Ok(()), |output| check("the output", output, plan.output_len))
    }

    /// Ends an operation that is over: all tasks done, and nothing that a peer may still ask for.
    pub(super) fn retire(&mut self, key: OpKey) {
        let Some(op) = self.ops.get_mut(&key) else { return };
        if !op.is_settled() {
            return;
        }
        let newly = op.finished_at.is_none();
        op.finished_at.get_or_insert(self.now);
        let keeps = op.keeps;
        let waits = !keeps && op.peers.iter().any(|p| !p.finished);
        let tell: Vec<Rank> =
            op.plan.peers.iter().filter(|p| newly && !p.recvs.is_empty()).map(|p| p.rank).collect();
        if newly {
            self.note_finished(key);
            for peer in tell {
                // A small operation is acknowledged by the next frame, whatever it is.
                if keeps && key.scope == Scope::World {
                    let at = self.now + self.timeouts.acknowledge();
                    self.links[peer.0 as usize].acknowledge_at.get_or_insert(at);
                } else {
                    self.control(peer, FrameKind::Finished, Some(key), false, Vec::new());
                }
            }
        }
        if waits {
            return;
        }
        let Some(mut op) = self.ops.remove(&key) else { return };
        if let Some(retired) = Retired::new(&mut op) {
            self.retired.insert(key, retired);
        }
        self.end(op, Ok(()));
    }

    /// Moves the mark below which every operation of the world is finished here.
    fn note_finished(&mut self, key: OpKey) {
        if key.scope != Scope::World {
            return;
        }
        let world = |sequence| OpKey { scope: Scope::World, sequence };
        let next = self.next.get(&Scope::World).copied().unwrap_or(0);
        let open = self.ops.range(world(self.finished_below)..world(next)).find(|(_, op)| !op.is_settled());
        self.finished_below = open.map_or(next, |(key, _)| key.sequence);
    }

    /// Hands an operation back to its caller.
    pub(super) fn end(&mut self, mut op: Op, result: Result<(), Error>) {
        for (_, slab) in std::mem::take(&mut op.kept) {
            self.pool.give(slab);
        }
        let held = if result.is_ok() { Vec::new() } else { op.held() };
        self.remember(&op, &held, result.is_ok());
        let last = op.peers.iter().filter_map(|p| Some((p.rank, p.started?))).max_by_key(|(_, at)| *at);
        let times = Times { name: op.name, posted: op.posted, ended: self.now, last_start: last };
        let ended = Ended {
            key: op.key,
            result,
            input: op.input,
            output: op.output,
            held,
            total_weight: op.total_weight,
            times,
        };
        self.actions.push_back(Action::Done(Box::new(ended)));
    }
}
