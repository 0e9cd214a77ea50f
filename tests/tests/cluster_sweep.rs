//! Sweeps and tenants through a coordinator.

use std::path::Path;
use std::process::Output;

use muster_tests::cluster::Cluster;
use muster_tests::headlines;
use serde_json::Value;

fn rank() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_fake_rank"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_grid_queues_by_itself_and_tenants_have_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator) = Cluster::start_with(dir.path(), rank(), &["--tenant-limit", "1"], &[]);
    let _agents = ["a", "b"].map(|name| cluster.agent(name));
    cluster.until_nodes(2);
    let file = cluster.run_file("grid", 30, "nodes = 1");
    let file = file.to_string_lossy();
    let grid = ["--sweep", "learning_rate=1e-5,2e-5", "--sweep", "seed=1,2"];
    let sweep = cluster.ask(&[&["submit", &file, "--tenant", "desk"], &grid[..]].concat());
    let sweep = sweep.as_array().unwrap();
    assert_eq!(sweep.len(), 4);
    let id = sweep[0]["sweep"].as_str().unwrap();
    assert_eq!(sweep[2]["name"], format!("grid-{id}-003"));
    assert!(sweep[2]["overrides"].as_array().unwrap().iter().any(|set| set == "train.learning_rate=2e-5"));
    // One node is free, and yet the tenant gets no second one.
    let second = sweep[1]["id"].as_str().unwrap();
    cluster.until(second, "the limit", |run| {
        run["reason"] == "desk has 1 runs at work; a tenant may have 1 at once"
    });
    let other = cluster.submit(&cluster.run_file("other", 5, "nodes = 1"));
    cluster.until_state(&other, "succeeded");
    for run in sweep {
        cluster.until_state(run["id"].as_str().unwrap(), "succeeded");
    }
    let done = cluster.ask(&["runs", "--sweep", id]);
    assert_eq!(done.as_array().unwrap().len(), 4, "and not the other run");
    for number in ["001", "002", "003", "004"] {
        let output = format!("grid/sweep-{id}/{number}");
        assert_eq!(cluster.steps(&output), (1..=30).collect::<Vec<u64>>(), "{output} is its own");
    }

    for (args, text) in [
        (&["--sweep", "train.learning_rate=-1,1e-5"][..], "run 001 of the sweep: train.learning_rate=-1"),
        (&["--sweep", "seed"], "--sweep \"seed\" is not KEY=VALUE,VALUE..."),
        (&["--sweep", "output_dir=a,b"], "a sweep can't set output_dir"),
    ] {
        let output = cluster.command(&[&["submit", &file], args].concat()).output().unwrap();
        assert!(!output.status.success() && stderr(&output).contains(text), "{}", stderr(&output));
    }
    assert_eq!(cluster.ask(&["runs", "--all"]).as_array().unwrap().len(), 5, "nothing of them was queued");
}

#[test]
fn the_best_run_of_a_sweep_is_marked() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator) = Cluster::of_muster(dir.path());
    let _agent = cluster.agent("a");
    cluster.until_nodes(1);
    let file =
        headlines::run_file(dir.path(), "tune", "max_steps = 25\n[eval]\nevery = \"end\"\nmetric = \"loss\"");
    let values = dir.path().join("values.txt");
    std::fs::write(&values, "# too slow, and about right\nlearning_rate=1e-7\nlearning_rate=3e-3 seed=7\n")
        .unwrap();
    let output = cluster
        .command(&["submit", &file.to_string_lossy(), "--wait", "--sweep-file", &values.to_string_lossy()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let runs: Value = serde_json::from_slice(&output.stdout).unwrap();
    let id = runs[0]["sweep"].as_str().unwrap();
    let ranked = cluster.ask(&["runs", "--sweep", id]);
    let loss = |run: &Value| run["results"]["eval"]["loss"].as_f64().unwrap();
    assert!(loss(&ranked[0]) < loss(&ranked[1]), "the lower loss comes first");
    let text = cluster.text(&["runs", "--sweep", id]);
    let best = text.lines().find(|line| line.contains("best")).unwrap_or_else(|| panic!("{text}"));
    assert!(best.contains("train.learning_rate=3e-3 seed=7"), "{text}");
}
