//! Starting operations, and ending them.

use std::sync::Arc;

use muster_proto::Rank;
use xxhash_rust::xxh3::Xxh3;

use super::op::{Buffer, Op, OpKey, Scope, Start, Types};
use super::{Action, Ended, Engine, Env, MAX_PLANS, Retired, Times};
use crate::element::{DataType, Operation, accumulator};
use crate::error::Error;
use crate::frame::FrameKind;
use crate::plan::{Algorithm, Choice, Group, Kind, Plan, Spec, select};

/// Operations up to this size keep copies of what they sent instead of waiting for acknowledgements.
const KEEP_BYTES: u64 = 64 << 10;
/// Most ended operations whose messages are kept; beyond that operations wait for acknowledgements.
const MAX_RETIRED: usize = 1024;
/// Longest name of an operation, in bytes.
pub(super) const MAX_NAME_BYTES: usize = 200;

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
    pub(super) fn reduces(&self) -> bool {
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

/// An operation that can start.
struct Prepared {
    choice: Choice,
    types: Types,
    plan: Arc<Plan>,
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
        let prepared = self.prepare(&post);
        if let Some(error) = self.failed.clone() {
            if let Ok(Prepared { plan, .. }) = prepared {
                self.meet_to_tell(&plan);
            }
            return Err(Box::new((error, post)));
        }
        let Prepared { choice, types, plan } = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return Err(Box::new((error, post))),
        };
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

    /// Checks an operation and works out its plan.
    fn prepare(&mut self, post: &Post) -> Result<Prepared, Error> {
        self.check(post)?;
        let choice = self.choose(post);
        let me = post.group.ranks().iter().position(|r| *r == self.me);
        let no_such = Error::NoSuchRank { rank: self.me, world_size: post.group.len() };
        let types = Types { memory: post.dtype, wire: post.wire, partial: accumulator(post.dtype) };
        let plan = self.plan(Spec {
            kind: post.kind.clone(),
            algorithm: choice.algorithm,
            group: post.group.clone(),
            me: me.ok_or(no_such)?,
            element_bytes: types.wire.bytes() as u64,
            partial_bytes: types.partial.bytes() as u64,
            tuning: choice.tuning,
        });
        self.check_lengths(post, &plan)?;
        Ok(Prepared { choice, types, plan })
    }

    /// Connects to the peers of an operation that comes too late, if they have never been met: they wait for it, and
    /// must hear why it does not come.
    fn meet_to_tell(&mut self, plan: &Plan) {
        for peer in plan.peers() {
            let now = self.now;
            let Some(link) = self.link(peer) else { continue };
            if !link.was_up && !link.has_left && link.wanted_since.is_none() {
                link.wanted_since = Some(now);
                self.actions.push_back(Action::Connect(peer));
            }
        }
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

    /// Connects to a peer that operations will need; one that has left is found out when they do.
    pub(crate) fn want(&mut self, peer: Rank, now: std::time::Duration) {
        self.now = now;
        let has_left = self.link(peer).is_none_or(|link| link.has_left);
        if self.failed.is_none() && peer != self.me && !has_left {
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
