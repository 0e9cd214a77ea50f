//! `muster bench`, `muster tune` and `muster plan --measured` as users start them, on small work.

use std::fs;
use std::path::Path;
use std::process::Output;

use muster_tests::headlines::{example, run_file};
use muster_tests::muster;
use serde_json::Value;

fn run(dir: &Path, args: &[&str]) -> Output {
    muster(args).current_dir(dir).output().expect("muster starts")
}

fn done(dir: &Path, args: &[&str]) -> String {
    let output = run(dir, args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("a file")).expect("JSON")
}

fn metric<'a>(point: &'a Value, name: &str) -> &'a Value {
    let metrics = point["metrics"].as_array().expect("metrics");
    metrics.iter().find(|metric| metric["name"] == name).unwrap_or_else(|| panic!("no {name} in {point}"))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

const SHORT: [&str; 12] =
    ["bench", "scaling", "--model", "tiny", "--batch", "8", "--rounds", "2", "--steps", "3", "--warmup", "1"];

#[test]
fn a_scaling_curve_is_measured_reported_and_compared() {
    let dir = tempfile::tempdir().expect("a directory");
    let ranks = if cores() >= 2 { "1,2" } else { "1" };
    let files = ["--ranks", ranks, "--series", "strong", "--output", "a.json", "--report", "a.html"];
    let text = done(dir.path(), &[&SHORT[..], &files].concat());
    assert!(text.contains("| 1 rank | strong | muster | 8 |"), "{text}");
    let file = json(&dir.path().join("a.json"));
    assert_eq!(
        (&file["schema"], &file["version"], &file["kind"]),
        (&"muster-bench".into(), &1.into(), &"scaling".into())
    );
    assert!(
        file["machine"]["cores"].as_u64() > Some(0)
            && file["command"].as_str().is_some_and(|c| c.contains("--model tiny"))
    );
    let points = file["points"].as_array().expect("points");
    for point in points.iter().filter(|point| point["series"] == "strong") {
        let rates = metric(point, "samples_per_s");
        let samples: Vec<usize> = rates["samples"]
            .as_array()
            .expect("rounds")
            .iter()
            .map(|r| r.as_array().map_or(0, Vec::len))
            .collect();
        assert_eq!(samples, [3, 3], "every sample is kept");
        assert!(
            rates["low"].as_f64() <= rates["value"].as_f64()
                && rates["value"].as_f64() <= rates["high"].as_f64()
        );
        // bf16 activations round differently in another order of rows.
        assert!(metric(point, "loss_difference")["value"].as_f64() < Some(2e-2), "{point}");
        assert!(metric(point, "peak_bytes")["value"].as_f64() > Some(1e6));
        assert!(metric(point, "compute_s")["value"].as_f64() > Some(0.0));
    }
    assert!(text.contains("no forecast: a forecast needs 4 points"), "{text}");
    let page = fs::read_to_string(dir.path().join("a.html")).expect("a page");
    assert!(
        page.contains("<svg") && !page.replace("http://www.w3.org", "").contains("http"),
        "a page of its own"
    );
    // A file against itself is the same; against a slower one it is not.
    assert!(done(dir.path(), &["bench", "compare", "a.json", "a.json"]).contains(" 0 worse"));
    let mut slower = file.clone();
    for point in slower["points"].as_array_mut().expect("points") {
        for metric in point["metrics"]
            .as_array_mut()
            .expect("metrics")
            .iter_mut()
            .filter(|m| m["name"] == "samples_per_s")
        {
            metric["samples"] = serde_json::json!([[0.1, 0.1, 0.1], [0.1, 0.1, 0.1]]);
        }
    }
    fs::write(dir.path().join("b.json"), slower.to_string()).expect("written");
    let output = run(dir.path(), &["bench", "compare", "a.json", "b.json"]);
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("WORSE"));
    let charts = done(dir.path(), &["bench", "report", "a.json", "--charts", "charts", "--markdown", "a.md"]);
    assert!(charts.contains("wrote charts/step-split.svg") && dir.path().join("a.md").is_file(), "{charts}");
}

#[test]
fn emulated_nodes_give_a_forecast_that_plans_use() {
    let dir = tempfile::tempdir().expect("a directory");
    let emulate = ["--emulate", "nodes=2,gbit=1", "--emulate", "nodes=3,gbit=10", "--output", "a.json"];
    let rows = [
        "bench", "scaling", "--model", "tiny", "--batch", "12", "--rounds", "1", "--steps", "3", "--warmup",
        "1",
    ];
    let output = run(dir.path(), &[&rows[..], &emulate].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    // What a machine may lack; anything else is a failure.
    for lack in ["need root", "install iproute2", "can't shape", "Operation not permitted", "Not supported"] {
        if !output.status.success() && errors.contains(lack) {
            eprintln!("skipped: no emulated nodes here: {errors}");
            return;
        }
    }
    assert!(output.status.success(), "{errors}");
    let file = json(&dir.path().join("a.json"));
    let points = file["points"].as_array().expect("points");
    let emulated: Vec<&Value> =
        points.iter().filter(|p| p["dims"]["gbit"].as_f64() > Some(0.0) && p["series"] != "sum").collect();
    assert_eq!(emulated.len(), 4, "two places, strong and weak");
    for point in &emulated {
        assert!(metric(point, "loss_difference")["value"].as_f64() < Some(2e-2), "{point}");
        assert!(metric(point, "busbw")["value"].as_f64() > Some(0.0));
    }
    assert_eq!(file["forecast"]["held_out"].as_array().map(Vec::len), Some(4), "{}", file["forecast"]);
    assert_eq!(orphans(), [] as [String; 0], "namespaces go with their maker");
    let plan = run_file(dir.path(), "planned", "max_steps = 5");
    let text = done(dir.path(), &["plan", &plan.to_string_lossy(), "--measured", "a.json"]);
    assert!(text.contains("Forecast for weak scaling") && text.contains("| 1024 |"), "{text}");
    let none = run(
        dir.path(),
        &["plan", &plan.to_string_lossy(), "--measured", &example("train.csv").to_string_lossy()],
    );
    assert!(
        !none.status.success()
            && String::from_utf8_lossy(&none.stderr).contains("not the JSON of a benchmark"),
        "{none:?}"
    );
}

/// Namespaces of benchmarks whose process is gone.
fn orphans() -> Vec<String> {
    let entries = fs::read_dir("/var/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let maker = |name: &String| name.strip_prefix("muster-bench-")?.split('-').next().map(ToOwned::to_owned);
    names.filter(|name| maker(name).is_some_and(|pid| !Path::new("/proc").join(pid).exists())).collect()
}

#[test]
fn tuning_writes_a_run_file_that_trains() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = run_file(dir.path(), "plain", "max_steps = 8");
    let text = done(dir.path(), &["tune", &path.to_string_lossy(), "--budget", "5s"]);
    assert!(text.contains("rule of thumb: 1 rank") && text.contains("measured best"), "{text}");
    let tuned = fs::read_to_string(dir.path().join("plain.tuned.toml")).expect("a run file");
    assert!(tuned.contains("micro_batch_tokens") && tuned.contains("# muster tune"), "{tuned}");
    done(dir.path(), &["plan", "plain.tuned.toml"]);
    let same = run(dir.path(), &["tune", "plain.toml", "--output", "plain.toml"]);
    assert!(String::from_utf8_lossy(&same.stderr).contains("is the run file itself"), "{same:?}");
}

#[test]
fn kernels_are_shares_of_the_peak_measured_beside_them() {
    let dir = tempfile::tempdir().expect("a directory");
    done(
        dir.path(),
        &[
            "bench",
            "gemm",
            "--only",
            "f32 forward 512 384",
            "--rounds",
            "2",
            "--threads",
            "1",
            "--output",
            "k.json",
        ],
    );
    let file = json(&dir.path().join("k.json"));
    let share = metric(&file["points"][0], "of_fma_peak");
    assert_eq!(share["unit"], "ratio");
    assert!(share["value"].as_f64().is_some_and(|share| share > 0.02 && share < 1.2), "{share}");
    let unknown = run(dir.path(), &["bench", "gemm", "--only", "nothing"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("muster bench kernels --list"), "{unknown:?}");
}

#[test]
fn sums_are_measured_by_processes_and_checked() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = [
        "bench",
        "allreduce",
        "--sizes",
        "4096:20:1,262144:10:1",
        "--paths",
        "world,foreign",
        "--output",
        "s.json",
    ];
    done(dir.path(), &args);
    let file = json(&dir.path().join("s.json"));
    assert_eq!(file["points"].as_array().map(Vec::len), Some(4));
    assert!(metric(&file["points"][1], "busbw")["value"].as_f64() > Some(0.0));
}
