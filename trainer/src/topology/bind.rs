//! Binding this process to CPUs, and reading back what the system made of it.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::cpulist;

/// Binds the calling thread, and all threads it starts from now on, to these CPUs; does nothing for none. Returns why
/// they are not bound, if they are not: by then the process runs wherever it could before.
pub fn bind_process(cpus: &[u32]) -> Option<String> {
    if cpus.is_empty() {
        return None;
    }
    let list = cpulist::format(cpus);
    let mut set = CpuSet::new();
    for &cpu in cpus {
        // `set` panics beyond the size of the set.
        if cpu as usize >= CpuSet::MAX_CPU {
            return Some(format!("CPUs {list} are more than the system call can name"));
        }
        set.set(cpu as usize);
    }
    if let Err(error) = sched_setaffinity(None, &set) {
        return Some(format!("can't bind to CPUs {list}: {error}"));
    }
    // A cpuset may have taken some of them away without an error.
    match sched_getaffinity(None) {
        Ok(bound) if bound == set => None,
        Ok(bound) => {
            let got: Vec<u32> =
                (0..CpuSet::MAX_CPU as u32).filter(|&cpu| bound.is_set(cpu as usize)).collect();
            Some(format!("CPUs {list} were asked for, the system gave {}", cpulist::format(&got)))
        }
        Err(error) => Some(format!("can't read back the binding to CPUs {list}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_bound_and_a_foreign_cpu_is_refused() {
        // In a thread of its own: the test's other threads keep their CPUs.
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU as u32).find(|&cpu| allowed.is_set(cpu as usize)).unwrap();
            assert_eq!(bind_process(&[first]), None);
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            assert!(bind_process(&[u32::MAX]).unwrap().contains("can name"));
            let foreign = CpuSet::MAX_CPU as u32 - 1;
            assert!(bind_process(&[foreign]).unwrap().contains("can't bind"));
            assert_eq!(bind_process(&[]), None);
        })
        .join()
        .unwrap();
    }
}
