//! Muster in its image under the restrictions of the chart: read-only root, a user that isn't root, no new privileges,
//! refused system calls (`mbind` among them), 64 MiB of /dev/shm, a CPU quota below the core count, a memory limit.
//! Linux with root and `unshare` makes the containers; elsewhere these tests say that they are skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use muster_tests::headlines::example;
use muster_tests::manifests;
use muster_tests::sandbox::{CACHE_BYTES, CPUS, MEMORY_BYTES, Sandbox};
use serde_json::Value;

fn sandbox(dir: &Path) -> Option<Sandbox> {
    match Sandbox::new(dir, Path::new(env!("CARGO_BIN_EXE_enter"))) {
        Ok(sandbox) => Some(sandbox),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// Copies the example into `/shared` and writes a run file there.
fn prepare(sandbox: &Sandbox, name: &str, train: &str) -> PathBuf {
    let shared = sandbox.shared();
    fs::create_dir_all(shared.join("model")).unwrap();
    for entry in fs::read_dir(example("model")).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, shared.join("model").join(from.file_name().unwrap())).unwrap();
    }
    fs::copy(example("train.csv"), shared.join("train.csv")).unwrap();
    let text = format!(
        "version = 1\nname = {name:?}\noutput_dir = \"/shared/runs/{name}\"\n[model]\npath = \"/shared/model\"\n\
         init = \"random\"\n[task]\ntype = \"single_label\"\n[data]\ntrain = \"/shared/train.csv\"\n\
         eval_fraction = 0.2\nmax_length = 64\n[train]\nmax_steps = 6\nglobal_batch = 16\n{train}\n"
    );
    let path = shared.join(format!("{name}.toml"));
    fs::write(&path, text).unwrap();
    path
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn two_ranks_train_under_the_restrictions_and_a_second_pod_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let Some(sandbox) = sandbox(dir.path()) else { return };
    prepare(&sandbox, "job", "");

    if sandbox.is_limited() {
        let plan = json(&sandbox.run(&["plan", "/shared/job.toml", "--json"]));
        assert_eq!(plan["threads"], 1, "the floor of a quota of {CPUS} CPUs");
        let usable = plan["usable_memory_bytes"].as_u64().unwrap();
        assert!(usable <= MEMORY_BYTES - CACHE_BYTES, "{usable}: the limit less the volume in memory");
        assert!(usable > MEMORY_BYTES / 2, "{usable}");
    } else {
        println!("skipped: limits of CPU time and memory (no control groups to make)");
    }

    // The arguments of the chart's Job.
    let manifest =
        fs::read_to_string(manifests::files().iter().find(|file| file.ends_with("job.yaml")).unwrap())
            .unwrap();
    let commands = manifests::commands(&manifest);
    let args: Vec<&str> = commands[0].iter().map(String::as_str).collect();
    assert_eq!(args[..2], ["train", "/etc/muster/run/run.toml"]);
    let args = |more: &[&'static str]| [&["train", "/shared/job.toml", "--json"], &args[2..], more].concat();

    let first = json(&sandbox.run(&args(&[])));
    assert_eq!(first["steps"], 6, "{first}");
    assert!(sandbox.shared().join("runs/job/final/model.safetensors").exists());
    // Another pod of the same Job finds what the first one left.
    let again = json(&sandbox.run(&args(&[])));
    assert_eq!(again["steps"], first["steps"]);
}

#[test]
fn every_crate_of_the_binary_has_its_licence_text() {
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/image/licences.sh");
    let output = Command::new("bash").arg(script).arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let table = fs::read_to_string(dir.path().join("crates.tsv")).unwrap();
    let crates = fs::read_dir(dir.path().join("crates")).unwrap().count();
    // One line is Rust's own library.
    assert_eq!(crates + 1, table.lines().count());
    assert!(crates > 100, "{crates}");
}
