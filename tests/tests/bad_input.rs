//! Every kind of bad input: what it says, where, what to do, with which code, and before any weight is read.

use std::fs;
use std::path::{Path, PathBuf};

use muster_tests::headlines::example;
use muster_tests::muster;

/// A run file's parts that a case replaces.
struct Case {
    name: &'static str,
    /// (table, lines) to add; `model`, `train` (the file) and `out` are replaced as a whole.
    lines: &'static [(&'static str, &'static str)],
    code: i32,
    says: &'static [&'static str],
}

const CASES: &[Case] = &[
    case(
        "unknown key",
        &[("train", "epocs = 1")],
        2,
        &["line 18", "`train.epocs`", "did you mean `train.epochs`?"],
    ),
    case("wrong type", &[("train", "learning_rate = \"fast\"")], 2, &["line 18", "must be a finite number"]),
    case(
        "missing column",
        &[("data", "label = \"lable\"")],
        3,
        &["t.csv: has no column \"lable\"", "did you mean \"label\"?"],
    ),
    case("missing file", &[("file", "nope.csv")], 3, &["can't open", "nope.csv", "hint: check the path"]),
    case("directory as file", &[("file", "folder.csv")], 3, &["is a directory", "hint: "]),
    case("empty file", &[("file", "empty.csv")], 3, &["empty.csv: is empty"]),
    case("header only", &[("file", "header.csv")], 3, &["header.csv: has a header but no rows", "hint: "]),
    case(
        "one class",
        &[("file", "one.csv")],
        3,
        &["all 2 training rows have the label \"a\"", "hint: is data.label"],
    ),
    case(
        "label not in the list",
        &[("task", "labels = [\"a\", \"c\"]")],
        3,
        &["t.csv:3: column \"label\": label \"b\"", "hint: "],
    ),
    case(
        "row too long",
        &[("data", "max_length = 5\non_long = \"error\"")],
        3,
        &["t.csv:2: has ", "max_length is 5", "hint: raise"],
    ),
    case(
        "unseen label in eval",
        &[("data", "eval = \"eval.csv\"")],
        3,
        &["eval.csv:2: column \"label\": label \"z\"", "hint: "],
    ),
    case("unknown model folder", &[("model", "./none")], 3, &["neither a folder nor a hub name", "hint: "]),
    case(
        "unreachable hub",
        &[("model", "no/model")],
        3,
        &["can't reach http://127.0.0.1:9", "hint: set HF_ENDPOINT"],
    ),
    case("no config", &[("model", "no-config")], 3, &["no-config/config.json", "hint: "]),
    case(
        "damaged config",
        &[("model", "bad-config")],
        3,
        &["can't use ", "bad-config/config.json", "line 2"],
    ),
    case("no tokenizer", &[("model", "no-tokenizer")], 3, &["no tokenizer in ", "hint: "]),
    case(
        "no weights",
        &[("init", "pretrained")],
        3,
        &["no weights in ", "looked for model.safetensors", "hint: "],
    ),
    case(
        "damaged weights",
        &[("model", "garbage"), ("init", "pretrained")],
        3,
        &["garbage/model.safetensors", "hint: "],
    ),
    case("output is a file", &[("out", "t.csv")], 1, &["t.csv", "Not a directory", "hint: a file is where"]),
    case(
        "output can't be made",
        &[("out", "/proc/muster")],
        1,
        &["/proc/muster", "hint: choose an `output_dir`"],
    ),
    case("model too large", &[("model", "huge")], 5, &["a training step needs ", "can be used", "hint: "]),
];

const fn case(
    name: &'static str,
    lines: &'static [(&'static str, &'static str)],
    code: i32,
    says: &'static [&'static str],
) -> Case {
    Case { name, lines, code, says }
}

fn example_model() -> PathBuf {
    example("model")
}

fn model(dir: &Path, name: &str, without: &str) {
    fs::create_dir(dir.join(name)).unwrap();
    for entry in fs::read_dir(example_model()).unwrap() {
        let entry = entry.unwrap();
        if !entry.file_name().to_string_lossy().starts_with(without) || without.is_empty() {
            fs::copy(entry.path(), dir.join(name).join(entry.file_name())).unwrap();
        }
    }
}

fn lay_out(dir: &Path) {
    let files = [
        ("t.csv", "text,label\nup and up,a\ndown,b\nflat,a\nhigh,b\n"),
        ("empty.csv", ""),
        ("header.csv", "text,label\n"),
        ("one.csv", "text,label\nup,a\ndown,a\n"),
        ("eval.csv", "text,label\nup,z\n"),
    ];
    fs::create_dir(dir.join("folder.csv")).unwrap();
    for (name, text) in files {
        fs::write(dir.join(name), text).unwrap();
    }
    for (name, without) in [
        ("model", ""),
        ("no-config", "config"),
        ("no-tokenizer", "spm"),
        ("bad-config", ""),
        ("garbage", ""),
        ("huge", ""),
    ] {
        model(dir, name, without);
    }
    fs::write(dir.join("bad-config/config.json"), "{\n").unwrap();
    fs::write(dir.join("garbage/model.safetensors"), "x".repeat(1000)).unwrap();
    let config = fs::read_to_string(dir.join("huge/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    for (key, value) in [
        ("hidden_size", 16_384),
        ("pooler_hidden_size", 16_384),
        ("intermediate_size", 65_536),
        ("num_attention_heads", 128),
        ("num_hidden_layers", 200),
    ] {
        config[key] = value.into();
    }
    fs::write(dir.join("huge/config.json"), config.to_string()).unwrap();
}

fn run_file(dir: &Path, case: &Case) -> String {
    let of = |table: &str| case.lines.iter().find(|(name, _)| *name == table).map(|(_, lines)| *lines);
    let (model, file, out) =
        (of("model").unwrap_or("model"), of("file").unwrap_or("t.csv"), of("out").unwrap_or("out"));
    let text = format!(
        "version = 1\noutput_dir = \"{out}\"\n[model]\npath = \"{model}\"\ninit = \"{}\"\n[task]\n\
         type = \"single_label\"\n{}\n[data]\ntrain = \"{file}\"\ncache_dir = \"cache\"\n{}\n\n[train]\n\
         max_steps = 2\n\n\n{}\n",
        of("init").unwrap_or("random"),
        of("task").unwrap_or_default(),
        of("data").unwrap_or_default(),
        of("train").unwrap_or_default(),
    );
    let path = dir.join("run.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_bad_input_names_place_and_way_out_before_a_step_is_done() {
    let dir = tempfile::tempdir().unwrap();
    lay_out(dir.path());
    for case in CASES {
        let file = run_file(dir.path(), case);
        let mut command = muster(&["train", &file, "-q"]);
        let output = command.env("HF_ENDPOINT", "http://127.0.0.1:9").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(case.code), "{}: {text}", case.name);
        for part in case.says {
            assert!(text.contains(part), "{}: no {part:?} in {text}", case.name);
        }
        assert!(!text.contains("panicked"), "{}: {text}", case.name);
        let error = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        assert_eq!(text.matches(error).count(), 1, "{}: said twice: {text}", case.name);
        assert!(!dir.path().join("out/metrics.jsonl").exists(), "{}: training began", case.name);
    }
}

#[test]
fn dropout_overrides_are_those_of_the_exported_model_and_predict_refuses_what_it_cannot_read() {
    let dir = tempfile::tempdir().unwrap();
    lay_out(dir.path());
    let file = run_file(dir.path(), &case("fine", &[], 0, &[]));
    let set = ["model.hidden_dropout=0.2", "model.attention_dropout=0.3", "model.classifier_dropout=0.4"];
    let args: Vec<&str> =
        ["train", &file, "-q"].into_iter().chain(set.iter().flat_map(|value| ["--set", value])).collect();
    assert!(muster(&args).output().unwrap().status.success());
    let folder = dir.path().join("out/final");
    let config: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["hidden_dropout_prob"], 0.2);
    assert_eq!(config["attention_probs_dropout_prob"], 0.3);
    assert_eq!(config["cls_dropout"], 0.4);

    let changed = [&args[..], &["--resume", "--set", "train.learning_rate=1e-5"]].concat();
    let output = muster(&changed).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));

    fs::write(dir.path().join("latin.txt"), b"fine\n\xe9t\xe9\n").unwrap();
    let folder = folder.to_str().unwrap();
    for (name, code, says) in [
        ("latin.txt", 3, "latin.txt:2: the line is not UTF-8"),
        ("none.txt", 3, "none.txt"),
        ("one.csv", 3, "has no column \"body\""),
    ] {
        let input = dir.path().join(name);
        let args = ["predict", "--model", folder, "--text-column", "body", "--file", input.to_str().unwrap()];
        let output = muster(&args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(says), "{text}");
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = muster(&["predict", "--model", folder, "--text", "up"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "a full disk is lack of a resource");
}
