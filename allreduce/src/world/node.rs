//! The operations of one rank with the ranks of its node, and through them with the other nodes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_proto::Rank;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::buffer::{Storage, SumBuffer};
use super::fault::{self, Place};
use super::rails;
use crate::comm::Communicator;
use crate::element::{Element, Operation};
use crate::error::{Error, Result};
use crate::shm::{AbortHandle, Late, Reduce, ShmError, ShmGroup, ShmOptions, arena_bytes};

pub(super) const SUM: Reduce = Reduce::new(Operation::Sum);

/// What a sum cost besides its time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cost {
    /// How long this rank waited for the last one to begin.
    pub wait: Duration,
    /// That one.
    pub last: Option<Rank>,
}

impl Cost {
    /// This one, or the other if that took longer.
    pub fn or(self, other: Self) -> Self {
        if other.wait > self.wait { other } else { self }
    }
}

/// A rank among those of its node. Whoever owns it may run operations; the first failure ends all.
#[derive(Debug)]
pub(super) struct Node {
    pub group: ShmGroup,
    pub comm: Arc<Communicator>,
    pub place: Place,
    /// How many nodes there are.
    pub nodes: usize,
    /// How long a rank may go without progress.
    pub budget: Duration,
    options: ShmOptions,
    is_ended: Arc<AtomicBool>,
    failed: Option<Error>,
    bytes: u64,
}

impl Node {
    /// Meets the ranks of the node, unless `is_cancelled` is set meanwhile.
    pub fn join(comm: Arc<Communicator>, budget: Duration, is_cancelled: &AtomicBool) -> Result<Self> {
        let (membership, me) = (comm.membership(), comm.rank());
        let place = Place::new(membership, me);
        let local = membership.local(me);
        let node = membership.member(me).map_or("", |m| m.node.as_str());
        // Nodes may be names of one machine.
        let run = format!("{}\n{node}", membership.run());
        let (rank, ranks) = ((me.0 - local.start) as usize, local.len());
        let options = ShmOptions {
            start_deadline: budget,
            progress_deadline: budget,
            ..ShmOptions::new(&run, membership.generation().0, rank, ranks)
        };
        let nodes = membership.nodes().len();
        let group = meet(&options, is_cancelled).map_err(|e| place.error(e))?;
        let is_ended = Arc::default();
        let node = Self { group, comm, place, nodes, budget, options, is_ended, failed: None, bytes: 0 };
        node.hear_of_failures();
        if nodes > 1 {
            node.comm.connect_rail();
        }
        Ok(node)
    }

    pub fn me(&self) -> Rank {
        self.place.me
    }

    /// Set it to end a join of the ranks of the node.
    pub fn is_ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_ended)
    }

    /// The error of a world that was closed.
    pub fn closed(&self) -> Error {
        Error::Closed { me: self.place.me }
    }

    pub fn abort_handle(&self) -> AbortHandle {
        self.group.abort_handle()
    }

    /// Number, bytes and failure of the last operation.
    pub fn last(&self) -> (u64, u64, Option<String>) {
        (self.group.operations(), self.bytes, self.failed.as_ref().map(ToString::to_string))
    }

    /// Whatever ends the communicator ends the group too, at once.
    fn hear_of_failures(&self) {
        let (handle, me) = (self.group.abort_handle(), self.place.me);
        self.comm.on_failure(move |error| fault::end(&handle, me, error));
    }

    /// Runs an operation; its failure is that of every later one, and of the communicator.
    pub fn run<R>(&mut self, operation: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        // A bug of ours must not leave anybody waiting for a thread that is gone.
        let outcome = catch_unwind(AssertUnwindSafe(|| operation(self)));
        let reason = || "an operation panicked; the message is in its log".to_owned();
        outcome
            .unwrap_or_else(|_| Err(Error::Aborted { peer: self.place.me, reason: reason() }))
            .map_err(|error| self.fail(error))
    }

    fn fail(&mut self, error: Error) -> Error {
        // Wrong arguments are found before anybody is told of them, and harm nobody.
        if matches!(error, Error::Config { .. } | Error::Length { .. } | Error::Unsupported { .. }) {
            return error;
        }
        let error = self.comm.failure().unwrap_or(error);
        let error = self.place.unless_accused(&self.group.abort_handle(), error);
        self.comm.fail(error.clone());
        fault::end(&self.group.abort_handle(), self.place.me, &error);
        self.failed = Some(error.clone());
        error
    }

    /// An operation of the group.
    pub fn in_group<R>(&mut self, run: impl FnOnce(&mut ShmGroup) -> Result<R, ShmError>) -> Result<R> {
        run(&mut self.group).map_err(|e| self.place.error(e))
    }

    fn name(&mut self, name: &str, bytes: usize) {
        self.group.set_tag(xxh3_64(name.as_bytes()));
        self.bytes = bytes as u64;
    }

    /// Who began the last operation of the group last.
    pub fn cost(&self) -> Cost {
        let late = self.group.last();
        let last = late.map(|Late { local_rank, .. }| Rank(self.place.first + local_rank as u32));
        Cost { wait: late.map_or(Duration::ZERO, |l| l.waited), last }
    }

    /// Sums everybody's buffer in place.
    pub fn sum(&mut self, name: &str, buffer: SumBuffer) -> Result<(SumBuffer, Cost)> {
        self.name(name, size_of_val(&buffer[..]));
        if self.nodes > 1 {
            return rails::sum(self, name, buffer);
        }
        let mut buffer = buffer;
        self.in_group(|group| match &mut buffer.0 {
            Storage::Private(values) => group.all_reduce_in_place(SUM, values.as_mut()),
            Storage::Shared(slice) => group.all_reduce_slice(SUM, slice),
        })?;
        Ok((buffer, self.cost()))
    }

    /// Gathers the elements of the ranks of the node.
    pub fn gather<T: Element>(&mut self, name: &str, mine: &[T], counts: &[usize]) -> Result<Vec<T>> {
        self.name(name, size_of_val(mine));
        // A list of another length is refused before anything of this size is written.
        let mut all = vec![T::zeroed(); counts.iter().sum()];
        self.in_group(|group| group.all_gather(mine, counts, &mut all))?;
        Ok(all)
    }

    /// Makes an arena for buffers of these lengths, in a new group of the same ranks.
    pub fn buffers(&mut self, lens: &[usize]) -> Result<Vec<SumBuffer>> {
        let too_large = || Error::Config { name: "lens", problem: "the buffers are too large".to_owned() };
        let arena = arena_bytes(lens).ok_or_else(too_large)?;
        let mut hasher = Xxh3::new();
        lens.iter().for_each(|&len| hasher.update(&(len as u64).to_le_bytes()));
        self.bytes = arena as u64;
        self.group.set_tag(hasher.digest());
        // Everybody asks for the same, and nobody is in the old group any more.
        self.in_group(ShmGroup::barrier)?;
        let run_id = format!("{}\nbuffers", self.options.run_id);
        let options = ShmOptions { run_id, arena_bytes: arena, ..self.options.clone() };
        self.group = meet(&options, &self.is_ended).map_err(|e| self.place.error(e))?;
        self.hear_of_failures();
        let slices = self.in_group(|group| group.divide(lens))?;
        Ok(slices.into_iter().map(|slice| SumBuffer(Storage::Shared(slice))).collect())
    }
}

fn meet(options: &ShmOptions, is_ended: &AtomicBool) -> Result<ShmGroup, ShmError> {
    ShmGroup::join_unless(options.clone(), &|| is_ended.load(Ordering::Acquire))
}
