//! Whether compute threads are bound to CPUs (docs/decisions/0010).

use muster_proto::run_spec::Pin;

use super::{CpuBudget, cpulist};

/// Where the compute threads run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinning {
    /// The CPU of each thread; none if the scheduler places them.
    pub cpus: Option<Vec<u32>>,
    /// Why.
    pub reason: String,
    /// Why a wish could not be followed, if it could not.
    pub warning: Option<String>,
}

impl Pinning {
    /// The CPUs in the kernel's notation.
    pub fn describe(&self) -> String {
        match &self.cpus {
            Some(cpus) => {
                let mut sorted = cpus.clone();
                sorted.sort_unstable();
                format!("CPUs {}", cpulist::format(&sorted))
            }
            None => "none".into(),
        }
    }
}

/// Binds threads that fill the cores of the process; with cores to spare, another process may count on them too.
pub fn pinning(budget: &CpuBudget, wanted: Pin) -> Pinning {
    let (threads, physical) = (budget.threads, budget.physical);
    let free = |reason: String| Pinning { cpus: None, reason, warning: None };
    let bound = |reason: String| Pinning { cpus: Some(budget.cpus.clone()), reason, warning: None };
    let enough = budget.cpus.len() == threads;
    match wanted {
        Pin::Never => free("train.pin".into()),
        _ if threads == 1 => free("one thread goes where the scheduler puts it".into()),
        Pin::Always if !enough => Pinning {
            warning: Some(format!(
                "train.pin = \"always\", but {threads} threads have only {} CPUs: they are not bound",
                budget.cpus.len()
            )),
            ..free("fewer CPUs than threads".into())
        },
        Pin::Always => bound("train.pin".into()),
        Pin::Auto if !enough => free(format!("{threads} threads on {} CPUs", budget.cpus.len())),
        Pin::Auto if budget.quota.is_some_and(|quota| quota < physical as f64) => {
            free("a CPU quota below the cores does not say which of them".into())
        }
        Pin::Auto if threads < physical => {
            free(format!("{threads} threads leave some of {physical} cores to others"))
        }
        Pin::Auto => bound(format!("{threads} threads fill the {physical} cores allowed")),
    }
}
