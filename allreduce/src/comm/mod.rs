//! The communicator: what a rank calls.

mod buffer;
mod handle;
mod options;
pub(crate) mod record;
mod verify;

use std::sync::Arc;
use std::thread::JoinHandle;

use muster_proto::Rank;

use crate::element::{DataType, Element, Operation};
use crate::engine::memory::Memory;
use crate::engine::{Counters, Engine, Post, Report, Scope};
use crate::error::{Error, Result};
use crate::membership::Membership;
use crate::plan::{Group, Kind, Shards, select};
use crate::tcp::{Listener, Shared, Slot, TcpOptions};

pub use buffer::Buffer;
pub use handle::{Done, Failed, Handle, Statistics};
pub use options::{CommOptions, OpOptions, Wire};
pub use verify::compare_digests;

use buffer::{unwrap, wrap};
use record::Recorder;

/// Operations up to this size are sent by the thread that posts them, if nobody drives the sockets.
const SMALL_BYTES: usize = 64 << 10;

/// One rank of a generation.
///
/// Every rank posts the same operations in the same order; handles may be waited for in any order. Operations start
/// at once and run beside each other. Methods take `&self`, but callers on several threads must agree on one order.
///
/// Dropping it leaves in order: peers are told, and what was promised to them is kept for a quarter of the lease.
pub struct Communicator {
    me: Rank,
    membership: Arc<Membership>,
    shared: Arc<Shared>,
    recorder: Arc<Recorder>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Communicator")
            .field("me", &self.me)
            .field("generation", &self.membership.generation())
            .field("world_size", &self.membership.world_size())
            .finish_non_exhaustive()
    }
}

impl Communicator {
    /// Joins a generation as rank `me`. Connections are opened when the first operation needs them.
    ///
    /// `listener` is where the peers find this rank; a world of one needs none.
    ///
    /// # Errors
    /// A rank that is no member, a missing listener, options that can't work, or the operating system refuses.
    ///
    /// # Examples
    /// ```
    /// use muster_allreduce::{CommOptions, Communicator, CostModel, Member, Membership, OpOptions, Security};
    /// use muster_proto::{Generation, Rank};
    ///
    /// let member = Member { id: "a".into(), node: "here".into(), addresses: vec![] };
    /// let world = Membership::new("example", Generation(1), vec![member], CostModel::default())?;
    /// let options = CommOptions::new(Security::Plaintext);
    /// let communicator = Communicator::new(world, Rank(0), None, options)?;
    /// let sum = communicator.all_reduce(vec![1.0_f32, 2.0], &OpOptions::sum("gradients")).wait();
    /// assert_eq!(sum.expect("one rank has nobody to lose").buffers, [1.0, 2.0]);
    /// # Ok::<(), muster_allreduce::Error>(())
    /// ```
    pub fn new(
        membership: Membership,
        me: Rank,
        listener: Option<Listener>,
        options: CommOptions,
    ) -> Result<Self> {
        options.check()?;
        if listener.is_none() && membership.world_size() > 1 {
            let problem = "a world of several ranks needs a port on which peers find this one".to_owned();
            return Err(Error::Config { name: "listener", problem });
        }
        let membership = Arc::new(membership);
        let engine = Engine::new(Arc::clone(&membership), me, options.timeouts)?;
        let tcp = TcpOptions {
            security: options.security,
            streams: options.streams,
            spin: options.spin,
            timeouts: options.timeouts,
        };
        let (shared, thread) = Shared::start(engine, listener, tcp)?;
        Ok(Self { me, membership, shared, recorder: Arc::new(Recorder::default()), thread: Some(thread) })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.me
    }

    /// The generation's members.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Reduces everybody's elements in place.
    ///
    /// After a failure the buffer holds neither inputs nor results; use [`Communicator::all_reduce_into`] to be able
    /// to repeat it.
    ///
    /// Cost: each rank sends about `2 (n - 1) / n` times the buffer.
    pub fn all_reduce<T: Element, B: Buffer<T>>(&self, buffer: B, options: &OpOptions) -> Handle<B> {
        let kind = Kind::AllReduce { count: buffer.as_ref().len() as u64, in_place: true };
        self.post::<T, B>(kind, wrap::<T, B>(buffer), None, options, |input, _| unwrap(input))
    }

    /// Reduces everybody's `input` into everybody's `output`, of the same length. The input is not written.
    pub fn all_reduce_into<T: Element, I: Buffer<T>, O: Buffer<T>>(
        &self,
        input: I,
        output: O,
        options: &OpOptions,
    ) -> Handle<(I, O)> {
        let kind = Kind::AllReduce { count: input.as_ref().len() as u64, in_place: false };
        self.post_pair::<T, I, O>(kind, input, output, options)
    }

    /// Reduces everybody's `input` and leaves each rank its shard in `output`: `counts[rank]` elements.
    pub fn reduce_scatter<T: Element, I: Buffer<T>, O: Buffer<T>>(
        &self,
        input: I,
        output: O,
        counts: &[u64],
        options: &OpOptions,
    ) -> Handle<(I, O)> {
        self.post_pair::<T, I, O>(Kind::ReduceScatter { counts: counts.to_vec() }, input, output, options)
    }

    /// Leaves everybody's `input`, of `counts[rank]` elements, in everybody's `output`, in rank order.
    pub fn all_gather<T: Element, I: Buffer<T>, O: Buffer<T>>(
        &self,
        input: I,
        output: O,
        counts: &[u64],
        options: &OpOptions,
    ) -> Handle<(I, O)> {
        self.post_pair::<T, I, O>(Kind::AllGather { counts: counts.to_vec() }, input, output, options)
    }

    /// Leaves the root's elements in everybody's buffer.
    pub fn broadcast<T: Element, B: Buffer<T>>(
        &self,
        root: Rank,
        buffer: B,
        options: &OpOptions,
    ) -> Handle<B> {
        let kind = Kind::Broadcast { count: buffer.as_ref().len() as u64, root: root.0 as usize };
        if root == self.me {
            return self.post::<T, B>(kind, wrap::<T, B>(buffer), None, options, |input, _| unwrap(input));
        }
        let nothing = wrap::<T, Vec<T>>(Vec::new());
        self.post::<T, B>(kind, nothing, Some(wrap::<T, B>(buffer)), options, |_, output| {
            unwrap(output.expect("the operation was posted with an output"))
        })
    }

    /// Ends when every rank has come here.
    pub fn barrier(&self, name: &str) -> Handle<()> {
        let kind = Kind::AllReduce { count: 0, in_place: true };
        let nothing = wrap::<f32, Vec<f32>>(Vec::new());
        self.post::<f32, ()>(kind, nothing, None, &OpOptions::sum(name), |_, _| ())
    }

    /// Sends a buffer to one rank, which must receive as many elements; beside the collective operations and in an
    /// order of its own.
    pub fn send<T: Element, B: Buffer<T>>(&self, to: Rank, buffer: B, options: &OpOptions) -> Handle<B> {
        let kind = Kind::Transfer { count: buffer.as_ref().len() as u64 };
        let buffers = (wrap::<T, B>(buffer), None);
        self.post_in::<T, B>(Scope::To(to), kind, buffers, &options.as_copy(), |input, _| unwrap(input))
    }

    /// Receives a buffer from one rank.
    pub fn receive<T: Element, B: Buffer<T>>(&self, from: Rank, buffer: B, options: &OpOptions) -> Handle<B> {
        let kind = Kind::Transfer { count: buffer.as_ref().len() as u64 };
        let buffers = (wrap::<T, Vec<T>>(Vec::new()), Some(wrap::<T, B>(buffer)));
        self.post_in::<T, B>(Scope::From(from), kind, buffers, &options.as_copy(), |_, output| {
            unwrap(output.expect("the operation was posted with an output"))
        })
    }

    /// Connects this rank's rail, so that its ranks hear of failures before the first operation.
    pub(crate) fn connect_rail(&self) {
        let rail = self.rail();
        self.shared.command(move |core| core.want(&rail));
    }

    /// Sums the elements of the ranks that have this rank's place in their nodes, in place and in an order of its
    /// own. Every node has as many ranks.
    pub(crate) fn sum_along_rail<B: Buffer<f32>>(&self, buffer: B, name: &str) -> Handle<B> {
        let kind = Kind::AllReduce { count: buffer.as_ref().len() as u64, in_place: true };
        let buffers = (wrap::<f32, B>(buffer), None);
        self.post_in::<f32, B>(Scope::Rail, kind, buffers, &OpOptions::sum(name), |input, _| unwrap(input))
    }

    fn post_pair<T: Element, I: Buffer<T>, O: Buffer<T>>(
        &self,
        kind: Kind,
        input: I,
        output: O,
        options: &OpOptions,
    ) -> Handle<(I, O)> {
        let (input, output) = (wrap::<T, I>(input), Some(wrap::<T, O>(output)));
        self.post::<T, (I, O)>(kind, input, output, options, |input, output| {
            (unwrap(input), unwrap(output.expect("the operation was posted with an output")))
        })
    }

    fn post<T: Element, R>(
        &self,
        kind: Kind,
        input: Box<dyn Memory>,
        output: Option<Box<dyn Memory>>,
        options: &OpOptions,
        unpack: handle::Unpack<R>,
    ) -> Handle<R> {
        self.post_in::<T, R>(Scope::World, kind, (input, output), options, unpack)
    }

    fn post_in<T: Element, R>(
        &self,
        scope: Scope,
        kind: Kind,
        (input, output): (Box<dyn Memory>, Option<Box<dyn Memory>>),
        options: &OpOptions,
        unpack: handle::Unpack<R>,
    ) -> Handle<R> {
        let bytes = input.bytes().len().max(output.as_ref().map_or(0, |o| o.bytes().len()));
        let bus_factor = self.bus_factor(&kind);
        let post = Post {
            scope,
            group: self.group(scope),
            kind,
            algorithm: options.algorithm,
            dtype: T::TYPE,
            wire: if options.wire == Wire::Bf16 { DataType::Bf16 } else { T::TYPE },
            operation: options.operation,
            weight: options.weight,
            name: options.name.clone(),
            input,
            output,
        };
        let slot = Arc::new(Slot::default());
        self.shared.post(post, Arc::clone(&slot), bytes <= SMALL_BYTES);
        let (shared, recorder) = (Arc::clone(&self.shared), Arc::clone(&self.recorder));
        Handle { shared, slot, unpack, recorder, bus_factor }
    }

    /// The ranks of an operation; those of a transfer with a rank that doesn't exist are caught when it is posted.
    fn group(&self, scope: Scope) -> Group {
        match scope {
            Scope::World => Group::world(self.membership.nodes()),
            Scope::To(peer) => Group::flat(vec![self.me, peer]),
            Scope::From(peer) => Group::flat(vec![peer, self.me]),
            Scope::Rail => Group::flat(self.rail()),
        }
    }

    /// The ranks with this rank's place in their nodes.
    fn rail(&self) -> Vec<Rank> {
        let node = self.membership.local(self.me);
        let (len, place) = (node.len() as u32, self.me.0 - node.start);
        (0..self.membership.nodes().len() as u32).map(|node| Rank(node * len + place)).collect()
    }

    fn bus_factor(&self, kind: &Kind) -> f64 {
        let n = self.membership.world_size() as f64;
        match kind {
            Kind::AllReduce { .. } => 2.0 * (n - 1.0) / n,
            Kind::ReduceScatter { .. } | Kind::AllGather { .. } => (n - 1.0) / n,
            Kind::Broadcast { .. } | Kind::Transfer { .. } => 1.0,
        }
    }

    /// Which algorithm an all-reduce of `count` elements would use, and why.
    pub fn explain<T: Element>(&self, count: u64, options: &OpOptions) -> String {
        let kind = Kind::AllReduce { count, in_place: false };
        let wire = if options.wire == Wire::Bf16 { 2 } else { size_of::<T>() as u64 };
        let partial = crate::element::accumulator(T::TYPE).bytes() as u64;
        let choice = select(&kind, &self.group(Scope::World), wire, partial, self.membership.costs());
        let algorithm = options.algorithm.unwrap_or(choice.algorithm);
        format!(
            "{} in segments of {} KiB; {}",
            algorithm.name(),
            choice.tuning.segment_bytes >> 10,
            if options.algorithm.is_some() { "it was asked for" } else { &choice.why }
        )
    }

    /// Even shards of `count` elements with borders at multiples of 64 bytes, for
    /// [`Communicator::reduce_scatter`] and [`Communicator::all_gather`].
    pub fn shards<T: Element>(&self, count: u64) -> Vec<u64> {
        let n = self.membership.world_size();
        let shards = Shards::even(count, n, size_of::<T>() as u64);
        (0..n).map(|r| shards.range(r).end - shards.range(r).start).collect()
    }

    /// Ends all operations of this rank with an error, and tells the peers. Needs no peer and does not block.
    pub fn abort(&self, reason: &str) {
        let reason = reason.to_owned();
        self.shared.command(move |core| core.engine.abort(&reason, core.now));
    }

    /// Ends all operations of this rank with an error that was found elsewhere, and tells the peers.
    pub(crate) fn fail(&self, error: Error) {
        self.shared.command(move |core| core.engine.fail_with(error, core.now));
    }

    /// Has somebody hear of the failure of this communicator; it must not block.
    pub(crate) fn on_failure(&self, hear: impl FnOnce(&Error) + Send + 'static) {
        self.shared.command(move |core| core.on_failure(Box::new(hear)));
    }

    /// Ends all operations of this rank and reports what it holds of each since the last commit; see
    /// [`crate::resolve`].
    pub fn freeze(&self) -> Option<Report> {
        self.shared.ask(|core| core.engine.freeze(core.now))
    }

    /// The results of all ended operations are part of the caller's state now; none will be resolved again.
    pub fn commit(&self) {
        self.shared.command(|core| core.engine.commit());
    }

    /// The failure that ended this communicator, if there was one.
    pub fn failure(&self) -> Option<Error> {
        self.shared.ask(|core| core.failure()).flatten()
    }

    /// Counts of unusual things.
    pub fn counters(&self) -> Counters {
        self.shared.ask(|core| core.engine.counters()).unwrap_or_default()
    }

    /// What each operation under way waits for, and the last `most` that ended; for the report of a failure.
    pub fn flight_record(&self, most: usize) -> Vec<String> {
        let mut lines = self.recorder.last(most);
        lines.extend(self.shared.ask(|core| core.engine.waiting()).unwrap_or_default());
        lines
    }

    /// The last operations in the format of Chrome's trace viewer (`chrome://tracing`).
    pub fn chrome_trace(&self) -> String {
        self.recorder.chrome_trace(self.me.0)
    }

    /// Proves that every rank has the same buckets: gathers everybody's digests of them and compares.
    ///
    /// # Errors
    /// [`Error::Divergence`] names the first rank and bucket that differ; or the gathering failed.
    pub fn verify(&self, step: u64, digests: &[u64]) -> Result<()> {
        let n = self.membership.world_size();
        let mine: Vec<i64> = digests.iter().map(|d| *d as i64).collect();
        let all = vec![0_i64; n * digests.len()];
        let counts = vec![digests.len() as u64; n];
        let options = OpOptions::sum(&format!("digests of step {step}"));
        let done = self.all_gather(mine, all, &counts, &options).wait()?;
        let all: Vec<u64> = done.buffers.1.into_iter().map(|d| d as u64).collect();
        compare_digests(step, &all, digests.len())
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.shared.command(|core| core.close());
        if let Some(thread) = self.thread.take() {
            // It catches nothing and has nothing to say.
            let _ = thread.join();
        }
    }
}
