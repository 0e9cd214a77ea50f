//! `muster train`, `eval` and `predict` as processes, on the headlines example's small DeBERTa and some of its rows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use muster_tests::headlines::example;
use muster_tests::muster;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const ROWS: usize = 100;

struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        let lab = Self { dir: tempfile::tempdir().unwrap() };
        let rows = fs::read_to_string(example("train.csv")).unwrap();
        // Every third row, so that all labels occur.
        let mut lines = rows.lines();
        let header = lines.next().unwrap();
        let kept: Vec<&str> = [header].into_iter().chain(lines.step_by(3).take(ROWS)).collect();
        fs::write(lab.path("train.csv"), kept.join("\n") + "\n").unwrap();
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a run file; `train` are lines of its `[train]` table.
    fn run_file(&self, name: &str, train: &str) -> String {
        let text = format!(
            "version = 1\nname = \"{name}\"\noutput_dir = \"{name}\"\n[model]\npath = {:?}\ninit = \"random\"\n\
             [task]\ntype = \"single_label\"\n[data]\ntrain = \"train.csv\"\neval_fraction = 0.2\ntest = {:?}\n\
             max_length = 64\ncache_dir = \"cache\"\n[train]\nglobal_batch = 16\nlearning_rate = 1e-3\nthreads = 2\n\
             log_every_steps = 1\n{train}\n",
            example("model"),
            example("test.csv"),
        );
        let path = self.path(&format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = muster(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn log(&self, run: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(run).join("metrics.jsonl")).unwrap();
        text.lines().map(|line| timeless(serde_json::from_str(line).unwrap())).collect()
    }
}

/// Drops the members that depend on the machine.
fn timeless(mut value: Value) -> Value {
    value
        .as_object_mut()
        .unwrap()
        .retain(|key, _| !key.ends_with("_s") && !["model_dir", "name", "ranks"].contains(&key.as_str()));
    value
}

fn failed(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn case_36_two_runs_are_byte_identical_and_what_was_saved_gives_the_same_numbers() {
    let lab = Lab::new();
    let one = lab.json(&["train", &lab.run_file("one", "max_steps = 20"), "--json"]);
    let two = lab.json(&["train", &lab.run_file("two", "max_steps = 20"), "--json"]);
    assert_eq!(timeless(one.clone()), timeless(two));
    assert_eq!(lab.log("one"), lab.log("two"));
    let model = |run: &str| fs::read(lab.path(run).join("final/model.safetensors")).unwrap();
    assert_eq!(model("one"), model("two"));

    // The page for people has the curves and the confusion matrix, and can be written again from the files.
    let page = fs::read_to_string(lab.path("one/report.html")).unwrap();
    for part in ["<svg", "True label by row", "finished"] {
        assert!(page.contains(part), "no {part} in the report");
    }
    lab.json(&["report", lab.path("one").to_str().unwrap(), "--json"]);
    assert_eq!(fs::read_to_string(lab.path("one/report.html")).unwrap(), page);

    // The exported folder, opened by itself, repeats the test of the run.
    let folder = lab.path("one/final");
    let folder = folder.to_str().unwrap();
    let test = example("test.csv");
    let again = lab.json(&["eval", "--model", folder, "--data", test.to_str().unwrap(), "--json"]);
    assert_eq!(again["confusion"], one["test"]["confusion"]);
    let (a, b) = (again["loss"].as_f64().unwrap(), one["test"]["loss"].as_f64().unwrap());
    assert!((a - b).abs() < 1e-6, "other batches, so sums round differently: {a} and {b}");

    // Texts come back in order, one object each, whatever way they come in.
    let texts = ["Profit rose sharply", "", "Shares fell after the warning, analysts said"];
    let predict = |args: &[&str], input: &str| -> Vec<Value> {
        let all = [&["predict", "--model", folder], args].concat();
        let mut child =
            muster(&all).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    };
    let named: Vec<&str> = texts.iter().flat_map(|text| ["--text", text]).collect();
    let by_argument = predict(&named, "");
    assert_eq!(by_argument.iter().map(|o| o["text"].as_str().unwrap()).collect::<Vec<_>>(), texts);
    let scores: f64 =
        by_argument[0]["scores"].as_object().unwrap().values().map(|x| x.as_f64().unwrap()).sum();
    assert!((scores - 1.0).abs() < 1e-5 && by_argument[0]["scores"].as_object().unwrap().len() == 3);
    assert_eq!(predict(&["--file", "-"], &(texts.join("\n") + "\n")), by_argument);
    let rows: String =
        texts.iter().map(|t| serde_json::json!({"id": 1, "text": t}).to_string() + "\n").collect();
    fs::write(lab.path("in.jsonl"), rows).unwrap();
    assert_eq!(predict(&["--file", lab.path("in.jsonl").to_str().unwrap()], ""), by_argument);
}

#[test]
fn case_79_sigterm_finishes_the_step_saves_and_resume_ends_as_if_never_stopped() {
    let lab = Lab::new();
    let whole = lab.json(&["train", &lab.run_file("whole", "max_steps = 60"), "--json"]);
    for at_line in [1, 25] {
        let run = format!("stopped{at_line}");
        let file = lab.run_file(&run, "max_steps = 60");
        let child = muster(&["train", &file]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = lab.path(&run).join("metrics.jsonl");
        let deadline = Instant::now() + Duration::from_secs(60);
        while fs::read_to_string(&log).unwrap_or_default().lines().count() < at_line {
            assert!(Instant::now() < deadline, "no step was logged");
            std::thread::sleep(Duration::from_millis(2));
        }
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
        let output = child.wait_with_output().unwrap();
        let (code, text) = failed(&output);
        assert_eq!(code, Some(75), "{text}");
        assert!(text.contains("--resume"), "{text}");
        let done = lab.log(&run).last().unwrap()["step"].as_u64().unwrap();
        assert!(done < 60, "stopped before the end");
        let resumed = lab.json(&["train", &file, "--resume", "--json"]);
        assert_eq!(timeless(resumed), timeless(whole.clone()), "stopped after step {done}");
        assert_eq!(lab.log(&run), lab.log("whole"), "stopped after step {done}");
    }
}

#[test]
fn a_run_is_neither_overwritten_nor_started_over_silently() {
    let lab = Lab::new();
    let file = lab.run_file("run", "max_steps = 2");
    let (code, text) = failed(&muster(&["train", &file, "--resume"]).output().unwrap());
    assert_eq!(code, Some(2));
    assert!(text.contains("holds no checkpoint to resume") && text.contains("hint: start the run"), "{text}");
    lab.json(&["train", &file, "--json"]);
    let (code, text) = failed(&muster(&["train", &file]).output().unwrap());
    assert_eq!(code, Some(2));
    assert!(text.contains("already holds a run of 2 steps") && text.contains("--resume"), "{text}");
    // Another batch would make the cursor mean other rows (case 50).
    let args = ["train", &file, "--resume", "--set", "train.global_batch=8"];
    let (code, text) = failed(&muster(&args).output().unwrap());
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("run file"), "{text}");
}

#[test]
fn case_1_an_infinite_weight_stops_the_run_with_its_name_and_code_4() {
    let lab = Lab::new();
    lab.json(&["train", &lab.run_file("good", "max_steps = 2"), "--json"]);
    let tensor = "deberta.encoder.layer.1.output.dense.weight";
    set_infinite(&lab.path("good/final/model.safetensors"), tensor);
    let file = lab.run_file("bad", "max_steps = 2");
    let model = format!("model.path={:?}", lab.path("good/final"));
    let args = ["train", &file, "--set", &model, "--set", "model.init=\"pretrained\""];
    let (code, text) = failed(&muster(&args).output().unwrap());
    assert_eq!(code, Some(4), "{text}");
    let expected = format!("first tensor that is not finite: weight {tensor}");
    assert!(text.contains("the loss of step 1 is not finite") && text.contains(&expected), "{text}");
    assert!(text.contains("train.csv:"), "rows are named with their place: {text}");
}

#[test]
fn case_23_labels_are_matched_by_name_and_a_foreign_one_is_an_error_with_its_line() {
    let lab = Lab::new();
    lab.json(&["train", &lab.run_file("run", "max_steps = 5"), "--json"]);
    let folder = lab.path("run/final");
    let eval = |name: &str, lines: &[&str]| {
        let path = lab.path(name);
        fs::write(&path, "text,label\n".to_owned() + &lines.join("\n") + "\n").unwrap();
        let args = ["eval", "--model", folder.to_str().unwrap(), "--data", path.to_str().unwrap(), "--json"];
        muster(&args).output().unwrap()
    };
    let rows = ["Profit rose,positive", "Profit fell,negative", "Profit is stable,neutral"];
    let forward = eval("a.csv", &rows);
    let backward = eval("b.csv", &[rows[2], rows[1], rows[0]]);
    let value =
        |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap()["confusion"].clone();
    assert_eq!(value(&forward), value(&backward));
    let (code, text) = failed(&eval("c.csv", &[rows[0], "Profit rose,bullish"]));
    assert_eq!(code, Some(3));
    let place = format!("{}:3", lab.path("c.csv").display());
    assert!(
        text.contains(&place) && text.contains("\"bullish\" is not among the 3 labels of the model"),
        "{text}"
    );
}

#[test]
fn multi_label_and_regression_go_from_run_file_to_answers_in_f32_and_bf16() {
    let lab = Lab::new();
    let text = fs::read_to_string(lab.path("train.csv")).unwrap();
    let rows: Vec<(&str, &str)> = text.lines().skip(1).filter_map(|line| line.rsplit_once(',')).collect();
    let tags =
        |label: &str, i: usize| if i.is_multiple_of(3) { format!("{label}|third") } else { label.to_owned() };
    let multi: String = rows.iter().enumerate().map(|(i, (t, l))| format!("{t},{}\n", tags(l, i))).collect();
    let values: String = rows.iter().map(|(t, l)| format!("{t},{},{}\n", l.len(), t.len())).collect();
    fs::write(lab.path("multi.csv"), "text,tags\n".to_owned() + &multi).unwrap();
    fs::write(lab.path("values.csv"), "text,a,b\n".to_owned() + &values).unwrap();
    let common = |name: &str, kind: &str, data: &str, precision: &str| {
        let text = format!(
            "version = 1\nname = \"{name}\"\noutput_dir = \"{name}\"\n[model]\npath = {:?}\ninit = \"random\"\n\
             [task]\ntype = \"{kind}\"\n[data]\n{data}\neval_fraction = 0.25\ncache_dir = \"cache\"\n\
             [train]\nmax_steps = 6\nprecision = \"{precision}\"\n[eval]\nevery = 2\n",
            example("model"),
        );
        let path = lab.path(&format!("{name}.toml"));
        fs::write(&path, text).unwrap();
        lab.json(&["train", path.to_str().unwrap(), "--json"])
    };
    let answer = |run: &str| {
        let folder = lab.path(run).join("final");
        lab.json(&["predict", "--model", folder.to_str().unwrap(), "--text", "Profit rose"])
    };
    for precision in ["f32", "bf16"] {
        let run = format!("multi-{precision}");
        let results = common(&run, "multi_label", "train = \"multi.csv\"\nlabel = \"tags\"", precision);
        assert_eq!(results["eval"]["task"], "multi_label");
        let names: Vec<&str> = results["eval"]["labels"]
            .as_array()
            .unwrap()
            .iter()
            .map(|l| l["label"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["negative", "neutral", "positive", "third"]);
        assert_eq!(answer(&run)["scores"].as_object().unwrap().keys().collect::<Vec<_>>(), names);
        let run = format!("values-{precision}");
        let data = "train = \"values.csv\"\nlabel = [\"b\", \"a\"]";
        let results = common(&run, "regression", data, precision);
        assert!(results["eval"]["mse"].as_f64().unwrap() > 0.0);
        assert_eq!(answer(&run)["values"].as_object().unwrap().keys().collect::<Vec<_>>(), ["b", "a"]);
    }
}

/// Overwrites the first number of a tensor with infinity.
fn set_infinite(path: &Path, tensor: &str) {
    let mut bytes = fs::read(path).unwrap();
    let head = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + head]).unwrap();
    let start = 8 + head + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[start..start + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    fs::write(path, bytes).unwrap();
}
