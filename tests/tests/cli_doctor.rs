//! `muster doctor` on this machine.

use std::process::Command;

use muster_tests::{muster, muster_bin};

fn json(command: &mut Command) -> serde_json::Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn value<'j>(report: &'j serde_json::Value, what: &str) -> &'j serde_json::Value {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|f| f["what"] == what).unwrap_or_else(|| panic!("{what} in {report:#}"))
}

#[test]
fn the_report_names_features_kernels_limits_and_what_is_slow() {
    let output = muster(&["doctor"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    for part in [
        "CPU features",
        "kernels",
        "compute threads",
        "CPU quota",
        "NUMA nodes",
        "memory",
        "huge pages",
        "what would be slow",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let report = json(&mut muster(&["doctor", "--json"]));
    assert!(value(&report, "compute threads")["value"].as_str().unwrap().parse::<usize>().unwrap() >= 1);
}

#[test]
fn case_62_threads_follow_a_real_taskset() {
    let first = first_allowed_cpu();
    let mut command = Command::new("taskset");
    command.args(["-c", &first.to_string()]).arg(muster_bin()).args(["doctor", "--json"]);
    if command.output().is_err() {
        eprintln!("skipped: no taskset on this machine");
        return;
    }
    let report = json(&mut command);
    let threads = value(&report, "compute threads");
    assert_eq!(threads["value"], "1");
    assert!(
        threads["detail"].as_str().unwrap().starts_with(&format!("one CPU allowed ({first})")),
        "{threads}"
    );
}

/// A CPU that this process may run on.
fn first_allowed_cpu() -> usize {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| set.is_set(cpu)).unwrap()
}

#[test]
fn case_8_a_cap_below_the_cpu_is_obeyed_and_reported() {
    let report = json(muster(&["doctor", "--json"]).env("MUSTER_MAX_ISA", "scalar"));
    assert_eq!(value(&report, "kernels")["value"], "scalar");
}
