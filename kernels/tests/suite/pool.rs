//! The pool by itself: every task once, panics, nesting, several callers, threads that come and go.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use muster_kernels::Pool;
use muster_kernels::isa::Isa;

fn counters(n: usize) -> Vec<AtomicUsize> {
    (0..n).map(|_| AtomicUsize::new(0)).collect()
}

fn pool(threads: usize) -> Pool {
    Pool::with_isa(threads, Isa::Scalar).expect("threads start")
}

#[test]
fn every_task_runs_once_on_any_number_of_threads() {
    for threads in 1..=8 {
        let pool = pool(threads);
        for tasks in [0, 1, 2, 7, 8, 9, 1000] {
            let seen = counters(tasks);
            pool.run(tasks, |i| {
                seen[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
        }
    }
}

#[test]
fn parts_are_handed_out_once_and_dropped_once() {
    let pool = pool(2);
    let mut data = vec![0_u32; 1003];
    pool.each(data.chunks_mut(10).enumerate(), |(i, part)| part.iter_mut().for_each(|x| *x += i as u32 + 1));
    assert!(data.iter().enumerate().all(|(i, &x)| x == (i / 10) as u32 + 1));
}

#[test]
fn zero_threads_is_an_error_with_a_hint() {
    let e = Pool::new(0).expect_err("no threads");
    assert!(e.hint().is_some_and(|h| h.contains("threads")));
}

/// Plain memory, so that a missing happens-before edge would show: each run reads what the run before wrote, dealt to
/// other threads than before, with pauses that let workers fall asleep in between.
#[test]
fn what_a_run_wrote_is_seen_by_the_next_and_by_the_caller() {
    for threads in 1..=8 {
        let pool = pool(threads);
        let mut data = vec![0_usize; 24];
        let mut runs = 0;
        for round in 0..2_000 {
            let cut = 1 + round % 5;
            pool.each(data.chunks_mut(cut), |part| part.iter_mut().for_each(|x| *x += 1));
            runs += 1;
            assert!(data.iter().all(|&x| x == runs), "{threads} threads, run {runs}: {data:?}");
            if round % 200 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}

/// Some task on a thread other than the caller's: true once a worker has helped.
fn a_worker_helps(pool: &Pool) -> bool {
    let me = std::thread::current().id();
    let helped = AtomicBool::new(false);
    pool.run(64, |_| {
        helped.fetch_or(std::thread::current().id() != me, Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(50));
    });
    helped.into_inner()
}

#[test]
fn workers_help_also_after_they_have_slept() {
    let pool = pool(3);
    let deadline = Instant::now() + Duration::from_secs(60);
    for _ in 0..3 {
        while !a_worker_helps(&pool) {
            assert!(Instant::now() < deadline, "no worker took a task for a minute");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    for threads in 1..=4 {
        let pool = pool(threads);
        for round in 0..300 {
            let tasks = 1 + round % 17;
            let inside = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(tasks, |i| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    let bad = i == round % tasks;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(!bad, "task {i} of round {round}");
                });
            }));
            let payload = outcome.expect_err("the panic must not be lost");
            let text = payload.downcast_ref::<String>().expect("a formatted message");
            assert_eq!(*text, format!("task {} of round {round}", round % tasks));
            assert_eq!(inside.load(Ordering::SeqCst), 0, "a task outlived its run");
            let done = AtomicUsize::new(0);
            pool.run(tasks, |_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), tasks);
        }
    }
}

#[test]
fn parts_of_a_run_that_panics_are_dropped() {
    struct Part<'a>(&'a AtomicUsize);
    impl Drop for Part<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (pool, dropped) = (pool(2), AtomicUsize::new(0));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        pool.each((0..100).map(|_| Part(&dropped)), |_| panic!("on purpose"));
    }));
    assert!(outcome.is_err());
    assert_eq!(dropped.into_inner(), 100);
}

#[test]
fn a_run_inside_a_task_is_done_by_the_thread_that_asks() {
    let pool = pool(3);
    let seen = counters(20 * 30);
    pool.run(20, |outer| {
        let me = std::thread::current().id();
        pool.run(30, |inner| {
            assert_eq!(std::thread::current().id(), me);
            seen[outer * 30 + inner].fetch_add(1, Ordering::Relaxed);
        });
    });
    assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
}

#[test]
fn several_threads_may_call_at_once() {
    let pool = pool(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..500 {
                    let sum = AtomicUsize::new(0);
                    pool.run(9, |i| {
                        sum.fetch_add(i, Ordering::Relaxed);
                    });
                    assert_eq!(sum.into_inner(), 36, "round {round}");
                }
            });
        }
    });
}

/// Dropped at once, while the workers spin, and when they sleep.
#[test]
fn dropping_a_pool_ends_its_threads() {
    for threads in [2, 5, 8] {
        for (runs, pause) in [(0, 0), (1, 0), (3, 10), (3, 500)] {
            let pool = pool(threads);
            for _ in 0..runs {
                pool.run(threads, |_| {});
            }
            std::thread::sleep(Duration::from_micros(pause));
            drop(pool);
        }
    }
}

/// The clock of the CPU time of the calling thread, which other threads can read.
fn cpu_clock() -> libc::clockid_t {
    let mut clock = 0;
    // SAFETY: the thread asks about itself, and the pointer is valid for the call.
    assert_eq!(unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) }, 0);
    clock
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call, which writes one timespec.
    assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut t) }, 0);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

#[test]
fn an_idle_worker_uses_no_cpu() {
    let pool = pool(2);
    let me = std::thread::current().id();
    let clock = std::sync::Mutex::new(None);
    let deadline = Instant::now() + Duration::from_secs(60);
    while clock.lock().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the worker took no task for a minute");
        pool.run(16, |_| {
            if std::thread::current().id() != me {
                *clock.lock().unwrap() = Some(cpu_clock());
            }
            std::thread::sleep(Duration::from_micros(50));
        });
    }
    let clock = clock.into_inner().unwrap().unwrap();
    // Its 30 us of spinning may take long on a busy machine; what must end is the use of CPU time.
    while Instant::now() < deadline {
        let before = read(clock);
        std::thread::sleep(Duration::from_millis(50));
        if read(clock) == before {
            return;
        }
    }
    panic!("an idle worker never stopped using CPU time");
}

#[test]
fn workers_are_bound_to_their_cpus_and_the_caller_is_not() {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpus: Vec<u32> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|&c| allowed.is_set(c)).map(|c| c as u32).collect();
    let pool = Pool::pinned(&cpus, Isa::Scalar).expect("threads start");
    assert_eq!((pool.threads(), pool.refusals()), (cpus.len(), &[][..]));
    let me = std::thread::current().id();
    for _ in 0..50 {
        pool.run(64, |_| {
            if std::thread::current().id() != me {
                let mine = rustix::thread::sched_getaffinity(None).unwrap();
                assert_eq!(mine.count(), 1);
                assert!(cpus[1..].iter().any(|&c| mine.is_set(c as usize)));
            }
            std::thread::sleep(Duration::from_micros(20));
        });
    }
    assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), allowed, "the caller stays free");
}

#[test]
fn a_cpu_that_is_not_there_is_told_and_the_thread_computes_anyway() {
    let pool = Pool::pinned(&[0, 1023, 70_000], Isa::Scalar).expect("threads start");
    let mut refused: Vec<_> = pool.refusals().iter().map(|r| (r.thread, r.cpu)).collect();
    refused.sort_unstable();
    assert_eq!(refused, [(1, 1023), (2, 70_000)]);
    assert!(pool.refusals()[0].to_string().contains("could not be bound to CPU"));
    let done = AtomicUsize::new(0);
    pool.run(100, |_| {
        done.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(done.into_inner(), 100);
}
