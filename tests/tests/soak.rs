//! Long and cruel runs of the real program: memory over 2,000 steps, kill -9 at any moment, both precisions, and the
//! plan's memory against the truth.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use muster_tests::headlines::example;
use muster_tests::muster;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The example's model with other sizes.
    fn model(&self, name: &str, sizes: &[(&str, u64)]) -> PathBuf {
        let dir = self.path(name);
        fs::create_dir(&dir).unwrap();
        for entry in fs::read_dir(example("model")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
        }
        let mut config: Value = serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap();
        for (key, value) in sizes {
            config[*key] = json!(value);
        }
        config["pooler_hidden_size"] = config["hidden_size"].clone();
        fs::write(dir.join("config.json"), config.to_string()).unwrap();
        dir
    }

    fn tiny_model(&self) -> PathBuf {
        let sizes = [("hidden_size", 16), ("num_attention_heads", 2), ("intermediate_size", 32)];
        self.model("tiny", &[&sizes[..], &[("num_hidden_layers", 1)]].concat())
    }

    /// Writes rows of 1 to `longest` words, the lengths as uneven as they can be.
    fn rows(&self, name: &str, count: usize, longest: usize) {
        let mut text = "text,label\n".to_owned();
        for row in 0..count {
            let words = 1 + row * 7919 % longest;
            let line: Vec<&str> = (0..words).map(|i| WORDS[(row + i * i) % WORDS.len()]).collect();
            text += &format!("{},{}\n", line.join(" "), if row % 2 == 0 { "up" } else { "down" });
        }
        fs::write(self.path(name), text).unwrap();
    }

    fn run_file(&self, name: &str, model: &Path, tables: &str) -> String {
        let text = format!(
            "version = 1\nname = \"{name}\"\noutput_dir = \"{name}\"\n[model]\npath = {model:?}\ninit = \"random\"\n\
             [task]\ntype = \"single_label\"\n[data]\ncache_dir = \"cache\"\n{tables}\n"
        );
        let path = self.path(&format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

const WORDS: [&str; 12] = [
    "profit", "fell", "rose", "sharply", "outlook", "bank", "merger", "cash", "dividend", "loss", "guidance",
    "up",
];

fn start(args: &[&str]) -> Child {
    muster(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn json_of(args: &[&str]) -> Value {
    success(args, muster(args).output().unwrap())
}

fn success(args: &[&str], output: Output) -> Value {
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

/// A field of /proc/PID/status in bytes; none once the process has ended.
fn memory(child: &Child, field: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Steps of the last line of a metrics log.
fn logged_step(log: &Path) -> u64 {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
    line.and_then(|line| line["step"].as_u64()).unwrap_or(0)
}

#[test]
fn resident_memory_is_flat_over_2000_steps_of_random_lengths() {
    let lab = Lab::new();
    let model =
        lab.model("model", &[("hidden_size", 32), ("num_attention_heads", 2), ("intermediate_size", 64)]);
    lab.rows("train.csv", 997, 120);
    let tables = "train = \"train.csv\"\nmax_length = 128\n[train]\nmax_steps = 2000\nglobal_batch = 4\n\
        micro_batch_tokens = 256\nthreads = 2\nlog_every_steps = 20\n[checkpoint]\nevery_steps = 500\n";
    let file = lab.run_file("run", &model, tables);
    let child = start(&["train", &file, "--json", "-q"]);
    let log = lab.path("run/metrics.jsonl");
    let mut seen: Vec<(u64, u64)> = Vec::new();
    while let Some(bytes) = memory(&child, "VmRSS") {
        // A zombie has no memory any more.
        let step = logged_step(&log);
        if bytes > 0 {
            seen.push((step, bytes));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    success(&["train"], child.wait_with_output().unwrap());
    // By step 300 every length has been seen; the first checkpoint (step 500) leaves its write buffers, below 2 MiB.
    let early = seen.iter().filter(|(step, _)| (600..1000).contains(step)).map(|(_, bytes)| *bytes).max();
    let late = seen.iter().filter(|(step, _)| *step >= 1700).map(|(_, bytes)| *bytes).max();
    let (early, late) = (early.expect("samples before step 1000"), late.expect("samples after step 1700"));
    // A leak of one page of 4 KiB a step would be 2.8 MiB by then. On a loaded machine the save's buffers may come late.
    assert!(late <= early + (5 << 19), "{early} bytes before step 1000, {late} at the end");
    println!("resident: {early} bytes before step 1000, {late} after step 1700");
}

#[test]
fn case_42_kill_9_at_random_moments_of_50_runs_loses_nothing() {
    let lab = Lab::new();
    let model = lab.tiny_model();
    lab.rows("train.csv", 60, 20);
    let tables = "train = \"train.csv\"\neval_fraction = 0.2\nmax_length = 32\n[train]\nmax_steps = 60\n\
        global_batch = 8\nthreads = 1\nlog_every_steps = 1\n[eval]\nevery = 20\n[checkpoint]\nevery_steps = 3\n";
    let whole = json_of(&["train", &lab.run_file("whole", &model, tables), "--json", "-q"]);
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let (mut killed, mut resumed) = (0, 0);
    for run in 0..50 {
        let name = format!("run{run}");
        let file = lab.run_file(&name, &model, tables);
        let out = lab.path(&name);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut child = start(&["train", &file, "--json", "-q"]);
        // Moments from the first file to the last step by what the run has done, and some chance: its pace changes with what
        // else the machine does.
        let (step, after) = ((seed >> 33) % 60, Duration::from_micros((seed >> 20) % 5_000));
        while logged_step(&out.join("metrics.jsonl")) < step && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(500));
        }
        std::thread::sleep(after);
        child.kill().unwrap();
        killed += usize::from(!child.wait().unwrap().success());
        // What the log says was saved: every third step whose successor was begun.
        let newest = newest_checkpoint(&out);
        let due = logged_step(&out.join("metrics.jsonl")).saturating_sub(1) / 3 * 3;
        assert!(
            newest.unwrap_or(0) >= due,
            "run {run}: step {due} was saved before its successor, found {newest:?}"
        );
        let args: &[&str] = match newest {
            Some(_) => &["train", &file, "--json", "--resume"],
            None => &["train", &file, "--json"],
        };
        resumed += usize::from(newest.is_some());
        let output = muster(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!text.contains("damaged"), "run {run}: {text}");
        if let Some(step) = newest.filter(|step| *step < 60) {
            assert!(text.contains(&format!("resumed after step {step}")), "run {run}: {text}");
        }
        let ended = success(args, output);
        assert_eq!(
            ended["weights_digest"], whole["weights_digest"],
            "run {run}, killed behind step {newest:?}"
        );
        assert_eq!(ended["eval"], whole["eval"], "run {run}");
        fs::remove_dir_all(out).unwrap();
    }
    println!("{killed} of 50 runs were killed before their end, {resumed} went on from a checkpoint");
    assert!(killed >= 30 && resumed >= 5, "the moments miss the runs: {killed} killed, {resumed} resumed");
}

fn newest_checkpoint(out: &Path) -> Option<u64> {
    let names = fs::read_dir(out).ok()?.map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.to_str()?.strip_prefix("checkpoint-")?.parse().ok()).max()
}

#[test]
fn f32_and_bf16_end_within_noise_of_each_other() {
    let lab = Lab::new();
    let mean = |precision: &str| -> f64 {
        let tables = format!(
            "train = {:?}\ntest = {:?}\nmax_length = 64\n[train]\nepochs = 12\nlearning_rate = 1e-3\nthreads = 2\n\
             precision = \"{precision}\"\n",
            example("train.csv"),
            example("test.csv"),
        );
        let file = lab.run_file(precision, &example("model"), &tables);
        let accuracy = |seed: usize| {
            let out = format!("output_dir={}", lab.path(&format!("{precision}-{seed}")).display());
            let seed = format!("seed={seed}");
            let results = json_of(&["train", &file, "--json", "-q", "--set", &seed, "--set", &out]);
            results["test"]["accuracy"].as_f64().unwrap()
        };
        (1..=3).map(accuracy).sum::<f64>() / 3.0
    };
    let (f32s, bf16s) = (mean("f32"), mean("bf16"));
    println!("mean test accuracy of 3 seeds: f32 {f32s:.4}, bf16 {bf16s:.4}");
    // 84 test rows at about 0.8: one run scatters by sqrt(0.8 * 0.2 / 84) = 0.044, the mean of three by 0.025, the
    // difference of two such means by 0.036 if they were independent. Both runs see the same rows in the same order,
    // so one such deviation is generous.
    assert!((f32s - bf16s).abs() <= 0.036, "f32 {f32s}, bf16 {bf16s}");
    assert!(f32s > 0.6, "a third of the rows has the most frequent label: {f32s}");
}

#[test]
fn case_69_the_planned_peak_is_not_below_the_real_one_nor_far_above() {
    let lab = Lab::new();
    lab.rows("train.csv", 300, 60);
    // Big enough that the process itself does not decide.
    let sizes = [("hidden_size", 256), ("num_attention_heads", 4), ("intermediate_size", 1024)];
    let model =
        lab.model("model", &[&sizes[..], &[("num_hidden_layers", 4), ("vocab_size", 30_000)]].concat());
    for (precision, micro, recompute) in [
        ("f32", "\"auto\"", "never"),
        ("bf16", "\"auto\"", "never"),
        ("f32", "512", "never"),
        ("f32", "\"auto\"", "layers"),
    ] {
        let tables = format!(
            "train = \"train.csv\"\neval_fraction = 0.1\nmax_length = 128\n[train]\nmax_steps = 4\nthreads = 2\n\
             precision = \"{precision}\"\nmicro_batch_tokens = {micro}\nrecompute = \"{recompute}\"\n[eval]\nevery = 2\n"
        );
        let name = format!("{precision}-{}-{recompute}", micro.trim_matches('"'));
        let file = lab.run_file(&name, &model, &tables);
        let planned = json_of(&["plan", &file, "--json"])["peak_memory_bytes"].as_u64().unwrap();
        let real = peak(&["train", &file, "--json", "-q"]);
        // Resuming reads a whole checkpoint and must not need more than the run did.
        let again = format!("output_dir={}", lab.path(&format!("{name}-again")).display());
        let stopped =
            start(&["train", &file, "--json", "-q", "--set", &again, "--set", "checkpoint.every_steps=1"]);
        let saved = lab.path(&format!("{name}-again/checkpoint-00000001"));
        let deadline = Instant::now() + Duration::from_secs(60);
        while !saved.exists() {
            assert!(Instant::now() < deadline, "no checkpoint");
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&stopped, Signal::TERM);
        assert_eq!(stopped.wait_with_output().unwrap().status.code(), Some(75));
        let resumed = peak(&[
            "train",
            &file,
            "--json",
            "-q",
            "--resume",
            "--set",
            &again,
            "--set",
            "checkpoint.every_steps=1",
        ]);
        println!("{name}: planned {planned}, real {real}, resumed {resumed}");
        assert!(planned >= real, "{name}: planned {planned}, real {real}: a run would be killed");
        assert!(
            planned as f64 <= 1.1 * real as f64,
            "{name}: planned {planned}, real {real}: a run would be refused"
        );
        // A second copy of weights or moments would be 1.3 times the plan here.
        assert!(resumed as f64 <= 1.05 * planned as f64, "{name}: planned {planned}, resumed {resumed}");
    }
}

/// The most memory that a command had resident.
fn peak(args: &[&str]) -> u64 {
    let mut child = start(args);
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        // The kernel keeps the high-water mark; only growth in the last 5 ms can be missed.
        peak = memory(&child, "VmHWM").unwrap_or(0).max(peak);
        std::thread::sleep(Duration::from_millis(5));
    }
    success(args, child.wait_with_output().unwrap());
    peak
}

#[test]
fn a_second_signal_ends_the_process_at_once_with_130() {
    let lab = Lab::new();
    let model = lab.tiny_model();
    lab.rows("train.csv", 60, 20);
    let tables = "train = \"train.csv\"\nmax_length = 32\n[train]\nmax_steps = 1000000\nthreads = 1\n\
        log_every_steps = 1\n[checkpoint]\nevery_steps = 1000\n";
    let child = start(&["train", &lab.run_file("run", &model, tables)]);
    let log = lab.path("run/metrics.jsonl");
    let deadline = Instant::now() + Duration::from_secs(60);
    while logged_step(&log) == 0 {
        assert!(Instant::now() < deadline, "no step was logged");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Both are pending when the process goes on, so it can't finish its step between them.
    for kind in [Signal::STOP, Signal::INT, Signal::TERM, Signal::CONT] {
        signal(&child, kind);
    }
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
}
