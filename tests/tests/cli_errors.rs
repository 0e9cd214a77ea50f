//! How commands fail: what they say, where, and with which code.

use std::fs;
use std::process::Output;

use muster_tests::muster;

fn fails(args: &[&str]) -> (i32, String) {
    let output = muster(args).output().unwrap();
    assert!(output.stdout.is_empty(), "errors go to stderr: {output:?}");
    (code(&output), String::from_utf8(output.stderr).unwrap())
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code, no signal")
}

#[test]
fn a_bad_run_file_lists_all_problems_with_a_hint_and_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    fs::write(&file, "version = 1\n[model]\npath = \"a/b\"\n[data]\ntrain = \"x.csv\"\n[train]\nepoch = 1\n")
        .unwrap();
    let path = file.to_str().unwrap();
    let (code, text) = fails(&["plan", path]);
    assert_eq!(code, 2);
    let expected = format!(
        "error: {path} has 3 problems\n  \
         line 1, column 1: `task.type` is required: \"single_label\" (one of several labels), \"multi_label\" (any \
         number of labels) or \"regression\" (numbers). It is never guessed from the number of labels: two labels \
         are still \"single_label\"\n  \
         line 6, column 2: `train.epochs` or `train.max_steps` is required: how long to train\n  \
         line 7, column 1: `train.epoch` is not a key of a run file; did you mean `train.epochs`?\n\
         hint: docs/run-file.md lists all keys with their types and defaults\n"
    );
    assert_eq!(text, expected);
}

#[test]
fn errors_are_json_where_logs_are() {
    let (code, text) = fails(&["plan", "no-such.toml", "--log-format", "json"]);
    let json: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    assert_eq!((code, json["exit_code"].as_i64()), (2, Some(2)));
    assert_eq!(json["error"], "can't read the run file no-such.toml");
    assert_eq!(json["caused_by"][0], "No such file or directory (os error 2)");
}

#[test]
fn case_82_a_newer_run_file_is_refused_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    fs::write(&file, "version = 9\n").unwrap();
    let (code, text) = fails(&["plan", file.to_str().unwrap()]);
    assert_eq!(code, 2);
    assert!(text.contains("version = 9 was written for a newer Muster; this one reads version 1"), "{text}");
    assert!(text.contains("\nhint: use the release of Muster that wrote it"), "{text}");
}

#[test]
fn wrong_arguments_end_with_code_2_and_the_usage() {
    for args in [&["train"][..], &["trian", "x"], &["predict", "--model", "m"], &["doctor", "-v", "-q"]] {
        let (code, text) = fails(args);
        assert_eq!(code, 2, "{args:?}");
        assert!(text.starts_with("error: ") && text.contains("muster"), "{args:?}: {text}");
    }
}

#[test]
fn an_override_is_checked_like_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    let text = "version = 1\n[model]\npath = \"a/b\"\n[task]\ntype = \"regression\"\n[data]\ntrain = \"x.csv\"\n[train]\nepochs = 1\n";
    fs::write(&file, text).unwrap();
    let (code, text) = fails(&["plan", file.to_str().unwrap(), "--set", "train.learning_rate=fast"]);
    assert_eq!(code, 2);
    assert!(
        text.contains("--set train.learning_rate=fast: `train.learning_rate` must be a finite number"),
        "{text}"
    );
}

#[test]
fn a_bad_log_filter_or_instruction_cap_is_an_error() {
    let output = muster(&["doctor"]).env("MUSTER_LOG", "a=b=c").output().unwrap();
    assert_eq!(code(&output), 1);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("error: MUSTER_LOG=\"a=b=c\" is not a log filter")
    );
    let output = muster(&["doctor"]).env("MUSTER_MAX_ISA", "sse9").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(code(&output), 2);
    assert!(
        text.contains(
            "error: MUSTER_MAX_ISA can't be used\ncaused by: unknown instruction set \"sse9\"\nhint: "
        ),
        "{text}"
    );
}
