//! The flag protocol of shared memory under every interleaving and every reordering that the memory model
//! allows.
//!
//! The file that ranks run is compiled here with loom's atomics; data are cells that loom watches for races.
//! Fewer slots than ranks really have, so that they come around within few steps.
#![allow(
    missing_docs,
    dead_code,
    clippy::unwrap_used,
    reason = "helpers of tests; the model needs a part of the protocol"
)]

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

mod atomics {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
#[path = "../src/shm/protocol.rs"]
mod protocol;

use protocol::{Act, Bell, OpLine, Progress, Word, post, reached};

const SLOTS: u64 = 2;

/// A rank's memory.
#[derive(Default)]
struct Memory {
    lines: [OpLine; SLOTS as usize],
    progress: Progress,
    incoming: [UnsafeCell<u64>; SLOTS as usize],
    result: [UnsafeCell<u64>; SLOTS as usize],
}

fn wait(word: &atomics::AtomicU64, value: u64) {
    while !reached(word, value) {
        thread::yield_now();
    }
}

fn read(cell: &UnsafeCell<u64>) -> u64 {
    // SAFETY: loom fails the test if anybody writes at the same time.
    cell.with(|p| unsafe { *p })
}

fn write(cell: &UnsafeCell<u64>, value: u64) {
    // SAFETY: loom fails the test if anybody else looks at the same time.
    cell.with_mut(|p| unsafe { *p = value });
}

fn slot(cells: &[UnsafeCell<u64>], chunk: u64) -> &UnsafeCell<u64> {
    &cells[(chunk % SLOTS) as usize]
}

/// Runs both ranks of a pair under every interleaving.
fn pair(rank: fn(&[Memory; 2], usize)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let memory: Arc<[Memory; 2]> = Arc::default();
        let other = memory.clone();
        let second = thread::spawn(move || rank(&other, 1));
        rank(&memory, 0);
        second.join().unwrap();
    });
}

/// Begins an operation and waits for the other rank, as `begin` and `agree` do.
fn meet(memory: &[Memory; 2], me: usize, operation: u64) {
    let line = |rank: usize| &memory[rank].lines[(operation % SLOTS) as usize];
    line(me).payload[0].store(10 * operation + me as u64, atomics::Ordering::Relaxed);
    post(&line(me).seq, operation);
    let peer = 1 - me;
    wait(&line(peer).seq, operation);
    let got = line(peer).payload[0].load(atomics::Ordering::Relaxed);
    assert_eq!(got, 10 * operation + peer as u64, "a line is read before it is written again");
}

/// Payloads in flag lines, over more operations than there are lines.
#[test]
fn lines_are_not_written_before_they_were_read() {
    pair(|memory, me| (1..=4).for_each(|operation| meet(memory, me, operation)));
}

/// An operation of the pipeline, from chunk `base` on, as `reduce_through_slots` runs it.
fn pipeline(memory: &[Memory; 2], me: usize, base: u64, steps: u64, operation: u64) {
    let peer = 1 - me;
    let need = |(word, count): (Word, u64)| wait(word(&memory[peer].progress), count);
    for (i, (act, step)) in Act::of(steps).enumerate() {
        let chunk = base + step;
        let needs = act.needs(chunk, SLOTS);
        needs.into_iter().for_each(need);
        match act {
            Act::Contribute => write(slot(&memory[me].incoming, chunk), 100 * chunk + me as u64),
            Act::Reduce => {
                assert_eq!(read(slot(&memory[peer].incoming, chunk)), 100 * chunk + peer as u64);
                write(slot(&memory[me].result, chunk), 1000 * chunk + me as u64);
            }
            Act::Collect => assert_eq!(read(slot(&memory[peer].result, chunk)), 1000 * chunk + peer as u64),
        }
        post(act.word()(&memory[me].progress), chunk + 1);
        if i == 0 {
            meet(memory, me, operation);
        }
    }
}

/// Chunks through slots, over more chunks than there are slots.
#[test]
fn slots_are_not_written_before_they_were_read() {
    pair(|memory, me| pipeline(memory, me, 0, 4, 1));
}

/// The next operation fills its first slot while the other rank may still be in the last one.
#[test]
fn operations_follow_each_other_without_a_barrier() {
    pair(|memory, me| {
        pipeline(memory, me, 0, 1, 1);
        pipeline(memory, me, 1, 2, 2);
    });
}

/// A post between announcement and sleep is not slept through: loom calls a sleeper that nobody wakes a
/// deadlock.
#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let shared = Arc::new((Bell::default(), Progress::default(), Mutex::new(()), Condvar::new()));
        let poster = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (bell, progress, kernel, sleepers) = &*shared;
                for value in 1..=2 {
                    post(&progress.done, value);
                    if bell.ring(1) {
                        // The system call takes the kernel's lock, so it comes before or after the sleeper's.
                        drop(kernel.lock().unwrap());
                        sleepers.notify_all();
                    }
                }
            })
        };
        let (bell, progress, kernel, sleepers) = &*shared;
        loop {
            let ticket = bell.announce(1);
            if reached(&progress.done, 2) {
                break;
            }
            let lock = kernel.lock().unwrap();
            if bell.rung.load(atomics::Ordering::Relaxed) == ticket {
                drop(sleepers.wait(lock).unwrap());
            }
        }
        bell.retire();
        poster.join().unwrap();
    });
}
