//! Runs of the headlines example with other settings, and their logs.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// A file of the example.
pub fn example(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/headlines").join(name);
    path.canonicalize().expect("the example has this file")
}

/// Writes a run file of one-threaded ranks in f32; `train` are more lines of its `[train]` table, or further tables.
pub fn run_file(dir: &Path, name: &str, train: &str) -> PathBuf {
    run_file_at(dir, name, 1e-3, train)
}

/// As [`run_file`], with another learning rate. At a small one, what sums in another order round differently stays
/// small over many steps.
///
/// # Panics
/// If the file can't be written.
pub fn run_file_at(dir: &Path, name: &str, learning_rate: f64, train: &str) -> PathBuf {
    let text = format!(
        "version = 1\nname = \"{name}\"\noutput_dir = \"{name}\"\n[model]\npath = {:?}\ninit = \"random\"\n\
         [task]\ntype = \"single_label\"\n[data]\ntrain = {:?}\neval_fraction = 0.2\ntest = {:?}\n\
         max_length = 64\ncache_dir = \"cache\"\n[train]\nglobal_batch = 16\nlearning_rate = {learning_rate:e}\nthreads = 1\n\
         precision = \"f32\"\nlog_every_steps = 1\n{train}\n",
        example("model"),
        example("train.csv"),
        example("test.csv"),
    );
    let path = dir.join(format!("{name}.toml"));
    fs::write(&path, text).expect("a run file");
    path
}

/// The lines of a run's log.
pub fn log(dir: &Path, run: &str) -> Vec<Value> {
    let text = fs::read_to_string(dir.join(run).join("metrics.jsonl")).expect("a log");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Compares two logs: what must be exactly equal, and what sums in another order may round differently.
///
/// # Panics
/// Where they differ.
pub fn compare(one: &[Value], many: &[Value], tolerance: f64) {
    assert_eq!(one.len(), many.len(), "lines");
    for (a, b) in one.iter().zip(many) {
        for key in ["kind", "step", "epoch", "learning_rate", "rows", "tokens"] {
            assert_eq!(a[key], b[key], "{key} of {a} and {b}");
        }
        for key in ["loss", "grad_norm"].iter().filter(|key| a[**key].is_number()) {
            let (x, y) = (a[key].as_f64().expect("a number"), b[key].as_f64().expect("a number"));
            assert!((x - y).abs() <= tolerance * x.abs().max(1.0), "{key} of {a} and {b}");
        }
    }
}
