//! Says that a read hangs (a dead NFS server, a disk that spins up) instead of hanging in silence (case 65).
//!
//! The watch reports and never interrupts: a stalled read in the kernel can't be cancelled, but the user can see
//! which file it is.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

struct Shared {
    start: Instant,
    /// Milliseconds since `start` + 1 at which the current read began; 0 when none is under way.
    busy_since_ms: AtomicU64,
    stop: AtomicBool,
}

/// A thread that looks every now and then whether a read is still under way.
pub struct StallWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl StallWatch {
    /// Watches the reads of `path` and logs a warning for each `interval` that one of them lasts.
    pub fn log(path: &Path, interval: Duration) -> Self {
        let path = path.to_path_buf();
        Self::new(interval, move |waited| {
            tracing::warn!("waiting for {} for {} s", path.display(), waited.as_secs());
        })
    }

    /// Calls `report` with the time waited, once per `interval`.
    pub fn new(interval: Duration, report: impl Fn(Duration) + Send + 'static) -> Self {
        let shared = Arc::new(Shared {
            start: Instant::now(),
            busy_since_ms: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("muster-watch".into()).spawn(move || {
            let mut reported = (0, 0);
            while !seen.stop.load(Ordering::Acquire) {
                std::thread::park_timeout(interval / 2);
                let busy = seen.busy_since_ms.load(Ordering::Acquire);
                if busy == 0 {
                    continue;
                }
                let waited = seen.start.elapsed().saturating_sub(Duration::from_millis(busy - 1));
                let count = waited.as_millis() / interval.as_millis().max(1);
                if count > 0 && reported != (busy, count) {
                    reported = (busy, count);
                    report(waited);
                }
            }
        });
        // Without a thread nothing is reported; reading still works.
        Self { shared, thread: thread.ok() }
    }

    /// Runs `work` under the watch.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let now_ms = self.shared.start.elapsed().as_millis() as u64;
        self.shared.busy_since_ms.store(now_ms + 1, Ordering::Release);
        let result = work();
        self.shared.busy_since_ms.store(0, Ordering::Release);
        result
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the reporter is no reason to fail the read.
            let _ = thread.join();
        }
    }
}

/// A reader whose reads are watched.
pub struct Watched<R> {
    inner: R,
    watch: StallWatch,
}

impl<R> Watched<R> {
    /// Puts `inner` under `watch`.
    pub fn new(inner: R, watch: StallWatch) -> Self {
        Self { inner, watch }
    }
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let inner = &mut self.inner;
        self.watch.during(|| inner.read(buf))
    }
}

impl<R: Seek> Seek for Watched<R> {
    fn seek(&mut self, pos: SeekFrom) -> io::Result<u64> {
        self.inner.seek(pos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn case_65_a_read_that_does_not_deliver_is_reported_while_it_waits() {
        let (said, heard) = mpsc::channel();
        let watch = StallWatch::new(Duration::from_millis(20), move |waited| {
            let _ = said.send(waited);
        });
        // The read ends only after the second report: the reports come while it waits.
        let mut waits = Vec::new();
        watch.during(|| {
            for _ in 0..2 {
                waits.push(heard.recv_timeout(Duration::from_secs(20)).expect("a report while waiting"));
            }
        });
        assert!(waits[0] >= Duration::from_millis(20) && waits[1] > waits[0], "{waits:?}");
    }

    #[test]
    fn reads_that_deliver_are_not_reported() {
        let (said, heard) = mpsc::channel();
        let watch = StallWatch::new(Duration::from_secs(3600), move |waited| {
            let _ = said.send(waited);
        });
        let mut reader = Watched::new(&b"abc"[..], watch);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("a slice reads");
        drop(reader);
        assert_eq!((text.as_str(), heard.try_recv().ok()), ("abc", None));
    }
}
