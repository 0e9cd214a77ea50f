//! Sums over several nodes: reduced among the ranks of each node in shared memory, then shard by shard between the
//! ranks with the same place in their nodes (a rail) over TCP, then shared in the node again.
//!
//! The bits are those of the canonical order: partial sums of a node are f32, and the rails add them in the order of
//! the nodes. Large buffers go in chunks, so that one chunk travels while the next one is reduced; the schedule is a
//! function of the length alone, because the ranks of a node must agree on the order of what they do.

use std::collections::VecDeque;
use std::time::Duration;

use super::buffer::{Private, Storage, SumBuffer};
use super::node::{Cost, Node, SUM};
use crate::comm::Handle;
use crate::error::Result;
use crate::shm::ArenaSlice;

/// Elements of a chunk: 4 MiB.
const CHUNK: usize = 1 << 20;
/// Chunks that travel at once.
const TRAVELLING: usize = 2;

/// A chunk whose shard is lent to the rail.
struct Lent {
    before: ArenaSlice,
    after: ArenaSlice,
    shard: Shard,
}

enum Shard {
    /// Nothing to send: the other ranks of the node have it all.
    Here(ArenaSlice),
    Travels(Handle<ArenaSlice>),
}

pub(super) fn sum(node: &mut Node, name: &str, buffer: SumBuffer) -> Result<(SumBuffer, Cost)> {
    let (storage, cost) = match buffer.0 {
        Storage::Shared(slice) => {
            let (slice, cost) = sum_slice(node, name, slice)?;
            (Storage::Shared(slice), cost)
        }
        Storage::Private(values) => {
            let (values, cost) = sum_private(node, name, values)?;
            (Storage::Private(values), cost)
        }
    };
    Ok((SumBuffer(storage), cost))
}

fn sum_slice(node: &mut Node, name: &str, slice: ArenaSlice) -> Result<(ArenaSlice, Cost)> {
    let mut cost = Cost::default();
    let mut travelling: VecDeque<Lent> = VecDeque::new();
    let (mut done, mut rest) = (None, Some(slice));
    while rest.is_some() || !travelling.is_empty() {
        if let Some(left) = rest.take_if(|_| travelling.len() < TRAVELLING) {
            let (mut chunk, next) = left.split_at(CHUNK);
            rest = Some(next).filter(|next| !next.is_empty());
            node.in_group(|group| group.reduce_scatter_slice(SUM, &mut chunk))?;
            cost = cost.or(node.cost());
            travelling.push_back(lend(node, name, chunk));
        } else if let Some(lent) = travelling.pop_front() {
            let mut chunk = arrive(node, lent, &mut cost)?;
            node.in_group(|group| group.all_gather_slice(&mut chunk))?;
            done = Some(match done.take() {
                None => chunk,
                Some(before) => ArenaSlice::join(before, chunk),
            });
        }
    }
    // There is at least one chunk, if only an empty one.
    done.map(|slice| (slice, cost)).ok_or_else(|| node.closed())
}

/// Sends this rank's shard of a chunk along the rail.
fn lend(node: &Node, name: &str, chunk: ArenaSlice) -> Lent {
    let mine = node.group.shard(&chunk);
    let (before, rest) = chunk.split_at(mine.start);
    let (shard, after) = rest.split_at(mine.len());
    let shard = if shard.is_empty() {
        Shard::Here(shard)
    } else {
        Shard::Travels(node.comm.sum_along_rail(shard, name))
    };
    Lent { before, after, shard }
}

fn arrive(node: &mut Node, lent: Lent, cost: &mut Cost) -> Result<ArenaSlice> {
    let shard = match lent.shard {
        Shard::Here(shard) => shard,
        Shard::Travels(handle) => finish(node, handle, cost)?,
    };
    Ok(lent.before.join(shard).join(lent.after))
}

/// Waits for the rail. The ranks of the node see meanwhile that this one lives, and it that they do.
fn finish<R>(node: &mut Node, handle: Handle<R>, cost: &mut Cost) -> Result<R> {
    let look = (node.budget / 16).min(Duration::from_millis(200));
    while !handle.help(look) {
        node.in_group(|group| group.pulse())?;
    }
    let done = handle.wait()?;
    *cost = cost.or(Cost { wait: done.statistics.wait, last: done.statistics.last });
    Ok(done.buffers)
}

/// A buffer that the others can't reach goes through the slots of the group.
fn sum_private(node: &mut Node, name: &str, mut values: Private) -> Result<(Private, Cost)> {
    let mut cost = Cost::default();
    for chunk in values.as_mut().chunks_mut(CHUNK) {
        let counts: Vec<usize> = node.group.shards(chunk.len());
        let mut shard = vec![0.0_f32; counts[node.group.local_rank()]];
        node.in_group(|group| group.reduce_scatter(SUM, chunk, &counts, &mut shard))?;
        cost = cost.or(node.cost());
        if !shard.is_empty() {
            let handle = node.comm.sum_along_rail(shard, name);
            shard = finish(node, handle, &mut cost)?;
        }
        node.in_group(|group| group.all_gather(&shard, &counts, chunk))?;
    }
    Ok((values, cost))
}
