//! Binding threads of this process to CPUs, and reading back what the system made of it.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use super::cpulist;

/// Beginning of the names of compute threads (`muster_kernels::pool`), which bind themselves.
const COMPUTE: &str = "muster-compute";
/// Beginnings of the names of threads that carry sums and commands (`muster_allreduce`, `crate::rank`).
const COMMUNICATION: [&str; 5] =
    ["muster-sum", "muster-comm", "muster-shm", "muster-control", "muster-leave"];

/// Binds all threads of this process to these CPUs; does nothing for none. Returns why they are not bound, if they are
/// not: by then the process runs wherever it could before, or on those of the CPUs that the system gave.
///
/// Call it before threads that bind themselves are started.
pub fn bind_process(cpus: &[u32]) -> Option<String> {
    if cpus.is_empty() {
        return None;
    }
    let cpus = &sorted(cpus)[..];
    let list = cpulist::format(cpus);
    if cpus.iter().any(|&cpu| cpu as usize >= CpuSet::MAX_CPU) {
        return Some(format!("CPUs {list} are more than the system call can name"));
    }
    for (thread, _) in threads() {
        match bind_thread(thread, cpus) {
            // A thread that has ended needs no CPU.
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Some(format!("can't bind to CPUs {list}: {error}")),
        }
    }
    // A cpuset may have taken some of them away without an error.
    match affinity(None) {
        Some(got) if got == cpus => None,
        Some(got) => Some(format!("CPUs {list} were asked for, the system gave {}", cpulist::format(&got))),
        None => Some(format!("can't read back the binding to CPUs {list}")),
    }
}

/// Places every thread of this process by what it does: threads of the communication on `spare` CPUs, all others but
/// compute threads on `own` ones. Compute threads stay where they are bound.
///
/// A CPU that may not be used any more is no error: threads stay where the system lets them.
pub(super) fn place_threads(own: &[u32], spare: &[u32]) {
    let own = sorted(own);
    let spare = if spare.is_empty() { own.clone() } else { sorted(spare) };
    for (thread, name) in threads() {
        if name.starts_with(COMPUTE) {
            continue;
        }
        let communicates = COMMUNICATION.iter().any(|begin| name.starts_with(begin));
        let cpus = if communicates { &spare } else { &own };
        if let Err(error) = bind_thread(thread, cpus).or_else(|_| bind_thread(thread, &own)) {
            tracing::debug!("thread {name} stays where it is: {error}");
        }
    }
}

/// Binds every thread but the first one to these CPUs. The first one keeps saying what the process may use.
pub fn bind_other_threads(cpus: &[u32]) {
    let first = rustix::process::getpid();
    for (thread, name) in threads().into_iter().filter(|(thread, _)| *thread != first) {
        if let Err(error) = bind_thread(thread, cpus) {
            tracing::debug!("thread {name} stays where it is: {error}");
        }
    }
}

/// The CPUs of a thread, ascending; of the calling one for none. `None` if it is gone, or on machines with more CPUs
/// than the system call's set holds.
pub(super) fn affinity(thread: Option<Pid>) -> Option<Vec<u32>> {
    let set = sched_getaffinity(thread).ok()?;
    Some((0..CpuSet::MAX_CPU as u32).filter(|&cpu| set.is_set(cpu as usize)).collect())
}

/// A set for the system call; numbers that it can't hold are left out.
pub fn cpu_set(cpus: &[u32]) -> CpuSet {
    let mut set = CpuSet::new();
    // `set` panics beyond the size of the set.
    cpus.iter().filter(|&&cpu| (cpu as usize) < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu as usize));
    set
}

/// Binds a thread; does nothing where it is bound so already.
fn bind_thread(thread: Pid, cpus: &[u32]) -> Result<(), Errno> {
    if affinity(Some(thread)).is_some_and(|now| now == cpus) {
        return Ok(());
    }
    sched_setaffinity(Some(thread), &cpu_set(cpus))
}

/// The threads of this process with their names, which the system cuts to 15 bytes.
fn threads() -> Vec<(Pid, String)> {
    let entries = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let id = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        Some((id, thread_name(&entry.path())))
    });
    named.collect()
}

fn thread_name(task: &Path) -> String {
    fs::read_to_string(task.join("comm")).unwrap_or_default().trim_end().to_owned()
}

/// CPUs, ascending.
pub(super) fn sorted(cpus: &[u32]) -> Vec<u32> {
    let mut cpus = cpus.to_vec();
    cpus.sort_unstable();
    cpus
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_is_bound_and_a_foreign_cpu_is_refused() {
        // In a thread of its own: the test's other threads keep their CPUs.
        std::thread::spawn(|| {
            let me = rustix::thread::gettid();
            let first = affinity(None).unwrap()[0];
            bind_thread(me, &[first]).unwrap();
            assert_eq!(affinity(None).unwrap(), [first]);
            let foreign = CpuSet::MAX_CPU as u32 - 1;
            assert_eq!(bind_thread(me, &[foreign]), Err(Errno::INVAL));
            assert!(bind_process(&[u32::MAX]).unwrap().contains("can name"));
            assert!(bind_process(&[foreign]).unwrap().contains("can't bind"));
            assert_eq!(bind_process(&[]), None);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn threads_go_by_what_they_do() {
        let all = affinity(None).unwrap();
        let (own, spare) = (&all[..1], &all[all.len() - 1..]);
        let names = ["muster-sum-0", "muster-compute-1", "muster-loader"];
        let (tell, hear) = channel();
        let (end, ended) = channel::<()>();
        let ended = std::sync::Mutex::new(ended);
        std::thread::scope(|scope| {
            for name in names {
                let (tell, ended) = (tell.clone(), &ended);
                let body = move || {
                    tell.send((name, rustix::thread::gettid())).unwrap();
                    let _ = ended.lock().unwrap().recv();
                };
                std::thread::Builder::new().name(name.into()).spawn_scoped(scope, body).unwrap();
            }
            let started: Vec<_> = names.iter().map(|_| hear.recv().unwrap()).collect();
            place_threads(own, spare);
            for (name, thread) in started {
                let expected = match name {
                    "muster-sum-0" => spare,
                    "muster-loader" => own,
                    _ => &all[..],
                };
                assert_eq!(affinity(Some(thread)).unwrap(), expected, "{name}");
            }
            place_threads(&all, &[]);
            drop(end);
        });
    }
}
