//! The tasks of one run, dealt to the threads in contiguous ranges.
//!
//! Each thread takes from its own range first, in ascending order: the same part of an array goes to the same thread
//! in every run, which keeps it in that core's cache and on its NUMA node. A thread that is done helps with the other
//! ranges, so that a core which is slow, busy with something else or not awake yet holds nobody up.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Puts each value on cache lines of its own; 128 bytes, because the prefetcher of x86 fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Padded<T>(pub(super) T);

/// What is left of one thread's range.
#[derive(Debug, Default)]
struct Lane {
    next: AtomicUsize,
    end: AtomicUsize,
}

/// The ranges of all threads.
#[derive(Debug)]
pub(super) struct Queue {
    lanes: Box<[Padded<Lane>]>,
}

impl Queue {
    pub(super) fn new(threads: usize) -> Self {
        Self { lanes: (0..threads).map(|_| Padded::default()).collect() }
    }

    /// Cuts `0..tasks` into one range per thread; nobody may be taking meanwhile.
    pub(super) fn deal(&self, tasks: usize) {
        let threads = self.lanes.len();
        // The first ranges get the tasks that are left over. No product of the two, which could overflow.
        let (each, extra) = (tasks / threads, tasks % threads);
        for (i, Padded(lane)) in self.lanes.iter().enumerate() {
            let start = i * each + i.min(extra);
            // Relaxed: whoever opens the run publishes these together with the job.
            lane.next.store(start, Ordering::Relaxed);
            lane.end.store(start + each + usize::from(i < extra), Ordering::Relaxed);
        }
    }

    /// Calls `f` with tasks until none is left, beginning with the range of thread `me`.
    pub(super) fn drain(&self, me: usize, mut f: impl FnMut(usize)) {
        let (before, after) = self.lanes.split_at(me);
        for Padded(lane) in after.iter().chain(before) {
            let end = lane.end.load(Ordering::Relaxed);
            // The load keeps the cursor of an empty range from growing with every visit.
            while lane.next.load(Ordering::Relaxed) < end {
                let task = lane.next.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                f(task);
            }
        }
    }

    /// Leaves nothing to take, after a task has panicked.
    pub(super) fn clear(&self) {
        for Padded(lane) in &self.lanes {
            lane.next.store(lane.end.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(queue: &Queue, me: usize) -> Vec<usize> {
        let mut tasks = Vec::new();
        queue.drain(me, |task| tasks.push(task));
        tasks
    }

    #[test]
    fn a_thread_begins_with_its_own_range_and_ends_with_everything() {
        let queue = Queue::new(3);
        queue.deal(8);
        assert_eq!(taken(&queue, 1), [3, 4, 5, 6, 7, 0, 1, 2], "ranges of 3, 3 and 2");
        assert!(taken(&queue, 0).is_empty(), "each task once");
        queue.deal(2);
        assert_eq!(taken(&queue, 2), [0, 1], "a thread without a range helps");
    }

    #[test]
    fn clearing_leaves_nothing() {
        let queue = Queue::new(2);
        queue.deal(100);
        queue.clear();
        assert!(taken(&queue, 0).is_empty());
        queue.deal(3);
        assert_eq!(taken(&queue, 0), [0, 1, 2]);
    }
}
