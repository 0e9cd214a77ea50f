//! Inputs and clocks that the examples share.
#![allow(dead_code, reason = "each example uses its own part")]

use std::time::Instant;

use muster_kernels::{Element, rng};

/// Numbers around zero.
pub fn noise<E: Element>(n: usize) -> Vec<E> {
    (0..n as u64).map(|i| E::from_f32(rng::uniform(1, i) as f32 - 0.5)).collect()
}

fn seconds_of(clock: libc::clockid_t) -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call, which writes one timespec.
    unsafe { libc::clock_gettime(clock, &raw mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// Seconds this thread has run: on a busy machine the only fair clock, and only with one compute thread.
pub fn thread_seconds() -> f64 {
    seconds_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Seconds all threads of this process have run.
pub fn process_seconds() -> f64 {
    seconds_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// The best of some calls by a clock, in its seconds; one more goes first.
pub fn best(clock: impl Fn() -> f64, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    call();
    let (mut best, mut rounds) = (f64::INFINITY, 0);
    while rounds < 5 || (start.elapsed().as_millis() < 300 && rounds < 200) {
        let t = clock();
        call();
        best = best.min(clock() - t);
        rounds += 1;
    }
    best
}
