//! Operations under way, as their callers see them.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use muster_proto::Rank;

use super::record::Recorder;
use crate::engine::memory::Memory;
use crate::error::Error;
use crate::tcp::{Outcome, Shared, Slot};

/// What an operation cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Statistics {
    /// Time from the post to the end.
    pub elapsed: Duration,
    /// Bytes of the larger of input and output.
    pub bytes: u64,
    /// Bytes over time, in GB/s (1e9).
    pub algbw: f64,
    /// The same, times the share of bytes that must cross the slowest link (nccl-tests' definition), in GB/s.
    pub busbw: f64,
    /// How long this rank waited for the last peer to post the operation.
    pub wait: Duration,
    /// That peer.
    pub last: Option<Rank>,
    /// How long the caller was blocked by waiting for the operation: what computing did not hide.
    pub exposed: Duration,
}

impl Statistics {
    pub(crate) fn new(bytes: u64, elapsed: Duration, bus_factor: f64) -> Self {
        let algbw = bytes as f64 / elapsed.as_secs_f64().max(1e-9) / 1e9;
        Self { elapsed, bytes, algbw, busbw: algbw * bus_factor, ..Self::default() }
    }
}

/// An operation that is done.
#[derive(Debug)]
pub struct Done<R> {
    /// The caller's buffers.
    pub buffers: R,
    /// Sum of the weights of all ranks; 0 if nobody contributed, and then the results are zeros.
    pub total_weight: f32,
    /// What it cost.
    pub statistics: Statistics,
}

/// An operation that failed.
#[derive(Debug)]
pub struct Failed<R> {
    /// Why.
    pub error: Error,
    /// The caller's buffers. Inputs are intact, unless the operation was in place.
    pub buffers: R,
    /// Ranges of the output, in elements, that hold final results nevertheless.
    pub held: Vec<Range<u64>>,
}

impl<R> From<Box<Failed<R>>> for Error {
    fn from(failed: Box<Failed<R>>) -> Self {
        failed.error
    }
}

pub(super) type Unpack<R> = fn(Box<dyn Memory>, Option<Box<dyn Memory>>) -> R;

/// An operation under way. Dropping it lets the operation go on; its buffers are freed when it ends.
///
/// It is a [`Future`]; without a runtime use [`Handle::wait`].
#[must_use = "the buffers come back from wait"]
pub struct Handle<R> {
    pub(super) shared: Arc<Shared>,
    pub(super) slot: Arc<Slot>,
    pub(super) unpack: Unpack<R>,
    pub(super) recorder: Arc<Recorder>,
    /// busbw over algbw.
    pub(super) bus_factor: f64,
}

impl<R> std::fmt::Debug for Handle<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("is_ended", &self.is_ended()).finish()
    }
}

impl<R> Handle<R> {
    /// Blocks until the operation ends, and helps to move it.
    ///
    /// # Errors
    /// The failure, with the buffers.
    pub fn wait(self) -> Result<Done<R>, Box<Failed<R>>> {
        let called = Instant::now();
        self.shared.wait(&self.slot, None);
        loop {
            // It is there: only this handle takes it.
            if let Some(outcome) = self.slot.take() {
                return self.finish(outcome).map(|mut done| {
                    done.statistics.exposed = called.elapsed();
                    done
                });
            }
        }
    }

    /// Helps to move the operation until it ends, or for so long. Returns whether it has ended.
    pub(crate) fn help(&self, at_most: Duration) -> bool {
        self.shared.wait(&self.slot, Some(Instant::now() + at_most));
        self.is_ended()
    }

    /// Whether [`Handle::wait`] would return at once.
    pub fn is_ended(&self) -> bool {
        self.slot.is_ended()
    }

    fn finish(&self, outcome: Outcome) -> Result<Done<R>, Box<Failed<R>>> {
        let ended = match outcome {
            Ok(ended) => ended,
            Err(refused) => {
                let (error, post) = *refused;
                let buffers = (self.unpack)(post.input, post.output);
                return Err(Box::new(Failed { error, buffers, held: Vec::new() }));
            }
        };
        let output = ended.output.as_ref().map_or(0, |o| o.bytes().len());
        let bytes = ended.input.bytes().len().max(output) as u64;
        let times = &ended.times;
        let elapsed = times.ended.saturating_sub(times.posted);
        let statistics = Statistics {
            wait: times.last_start.map_or(Duration::ZERO, |(_, at)| at.saturating_sub(times.posted)),
            last: times.last_start.map(|(rank, _)| rank),
            ..Statistics::new(bytes, elapsed, self.bus_factor)
        };
        self.recorder.add(&ended, bytes);
        let buffers = (self.unpack)(ended.input, ended.output);
        match ended.result {
            Ok(()) => Ok(Done { buffers, total_weight: ended.total_weight, statistics }),
            Err(error) => Err(Box::new(Failed { error, buffers, held: ended.held })),
        }
    }
}

impl<R> Future for Handle<R> {
    type Output = Result<Done<R>, Box<Failed<R>>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.slot.poll(context.waker()) {
            Some(outcome) => Poll::Ready(self.finish(outcome)),
            None => Poll::Pending,
        }
    }
}
