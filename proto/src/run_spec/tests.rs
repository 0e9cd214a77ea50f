use std::fs;
use std::path::{Path, PathBuf};

use super::*;

const MINIMAL: &str = r#"version = 1
[model]
path = "org/name"
[task]
type = "single_label"
[data]
train = "train.csv"
[train]
epochs = 3
"#;

fn parse(text: &str) -> Result<RunSpec, SpecError> {
    RunSpec::parse(text, Path::new("dir/sentiment.toml"))
}

fn problems(text: &str) -> Vec<String> {
    match parse(text) {
        Err(SpecError::Invalid { problems, .. }) => problems.iter().map(ToString::to_string).collect(),
        other => panic!("expected problems, got {other:?}"),
    }
}

fn with(old: &str, new: &str) -> String {
    assert!(MINIMAL.contains(old), "the edit must apply");
    MINIMAL.replace(old, new)
}

#[test]
fn a_minimal_file_gets_every_documented_default() {
    let spec = parse(MINIMAL).unwrap();
    assert_eq!(spec.name, "sentiment");
    assert_eq!(spec.seed, 42);
    assert_eq!(spec.output_dir, PathBuf::from("dir/runs/sentiment"));
    assert_eq!(spec.model.path, "org/name");
    assert_eq!(spec.model.init, Init::Pretrained);
    assert_eq!(spec.data.train, [PathBuf::from("dir/train.csv")]);
    assert_eq!(spec.data.label, Columns(vec!["label".into()]));
    assert_eq!(spec.data.label_separator, None);
    assert_eq!(spec.data.max_length, 256);
    assert_eq!((spec.data.truncation, spec.data.keep), (Truncation::LongestFirst, Keep::Head));
    let train = &spec.train;
    assert_eq!((train.epochs, train.max_steps, train.global_batch), (Some(3.0), None, 32));
    assert_eq!((train.learning_rate, train.weight_decay), (2e-5, 0.01));
    assert_eq!((train.beta1, train.beta2, train.epsilon), (0.9, 0.999, 1e-8));
    assert_eq!((train.max_grad_norm, train.warmup_ratio, train.warmup_steps), (Some(1.0), Some(0.1), None));
    assert_eq!((train.micro_batch_tokens, train.threads), (None, None));
    assert_eq!(spec.eval.every, EvalEvery::Epoch);
    assert_eq!(spec.eval.metric_or_default(spec.task.kind), "accuracy");
    assert_eq!((spec.checkpoint.every_steps, spec.checkpoint.keep_last), (None, 2));
}

#[test]
fn every_value_of_a_full_file_is_read() {
    let text = r#"
version = 1
name = "full run"
seed = 7
output_dir = "/out"
[model]
path = "./model"
revision = "abc"
init = "random"
hidden_dropout = 0
attention_dropout = 0.25
classifier_dropout = 0.5
[task]
type = "multi_label"
labels = ["a", "b"]
threshold = 0.4
[data]
train = ["a.jsonl", "b.jsonl"]
eval = "eval.jsonl"
test = ["test.jsonl"]
format = "jsonl"
text = "headline"
text_pair = "body"
label = "tags"
label_separator = ","
max_length = 64
truncation = "only_second"
keep = "head_tail"
on_long = "error"
cache_dir = "cache"
[train]
max_steps = 1_000
global_batch = 16
micro_batch_tokens = 2048
learning_rate = 1
schedule = "cosine"
warmup_steps = 10
weight_decay = 0
beta1 = 0.8
beta2 = 0.99
epsilon = 1e-6
max_grad_norm = 0
precision = "bf16"
threads = 3
pin = "never"
recompute = "layers"
on_non_finite = "skip"
log_every_steps = 1
[eval]
every = 50
metric = "f1_b"
early_stopping_patience = 4
early_stopping_min_delta = 0.001
[checkpoint]
every_steps = 20
keep_last = 5
"#;
    let spec = parse(text).unwrap();
    assert_eq!(spec.output_dir, PathBuf::from("/out"));
    assert_eq!(spec.model.path, "dir/./model");
    assert_eq!(spec.model.hidden_dropout, Some(0.0));
    assert_eq!(spec.task.kind, TaskType::MultiLabel);
    assert_eq!(spec.data.train, [PathBuf::from("dir/a.jsonl"), PathBuf::from("dir/b.jsonl")]);
    assert_eq!(spec.data.label_separator.as_deref(), Some(","));
    assert_eq!((spec.data.truncation, spec.data.keep), (Truncation::OnlySecond, Keep::HeadTail));
    assert_eq!((spec.train.max_steps, spec.train.learning_rate), (Some(1000), 1.0));
    assert_eq!((spec.train.warmup_steps, spec.train.warmup_ratio), (Some(10), None));
    assert_eq!(spec.train.max_grad_norm, None, "0 turns clipping off");
    assert_eq!(spec.train.recompute, Recompute::Layers);
    assert_eq!(spec.eval.every, EvalEvery::Steps(50));
    assert_eq!(spec.checkpoint.keep_last, 5);
}

#[test]
fn multi_label_in_one_column_is_separated_by_a_bar() {
    let spec = parse(&with("single_label", "multi_label")).unwrap();
    assert_eq!(spec.data.label_separator.as_deref(), Some("|"));
    let spec = parse(
        &with("train = \"train.csv\"", "train = \"t.csv\"\nlabel = [\"x\", \"y\"]")
            .replace("single_label", "multi_label"),
    )
    .unwrap();
    assert_eq!((spec.data.label_separator, spec.data.label.names().len()), (None, 2));
}

#[test]
fn case_26_a_missing_task_type_is_explained_and_never_guessed() {
    let found = problems(&with("type = \"single_label\"", "labels = [\"yes\"]"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("line 4, column 2: `task.type` is required"), "{found:?}");
    for kind in TaskType::NAMES {
        assert!(found[0].contains(kind), "{kind} must be offered: {found:?}");
    }
    assert!(found[0].contains("never guessed from the number of labels"), "{found:?}");
    let found = problems(&with("type = \"single_label\"", "type = \"single_label\"\nlabels = [\"yes\"]"));
    assert!(found[0].contains("at least 2 labels") && found[0].contains("regression"), "{found:?}");
}

#[test]
fn case_82_another_version_is_told_with_the_way_out() {
    let missing = problems(&with("version = 1\n", ""));
    assert_eq!(missing.len(), 1);
    assert!(missing[0].contains("`version` is missing"), "{missing:?}");
    assert!(missing[0].contains("add `version = 1` as the first line"), "{missing:?}");

    let newer = parse(&with("version = 1", "version = 2\nfuture_key = true")).unwrap_err();
    let text = newer.to_string();
    assert!(text.contains("dir/sentiment.toml:1:11"), "{text}");
    assert!(text.contains("written for a newer Muster; this one reads version 1"), "{text}");
    assert!(newer.hint().unwrap().contains("release"), "{newer:?}");

    let older = parse(&with("version = 1", "version = 0")).unwrap_err();
    assert!(older.to_string().contains("never existed"), "{older}");
    assert!(older.hint().unwrap().contains("version = 1"));

    let text = problems(&with("version = 1", "version = \"1\""));
    assert!(text[0].contains("must be a whole number"), "{text:?}");
}

#[test]
fn case_82_files_of_every_released_version_still_load() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/versions");
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        RunSpec::load(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        count += 1;
    }
    assert!(count >= VERSION as usize, "each version has its file");
}

#[test]
fn an_unknown_key_names_its_place_and_the_nearest_valid_one() {
    let found = problems(&with("epochs = 3", "epochs = 3\n  learnig_rate = 1e-5"));
    assert_eq!(
        found,
        [
            "line 10, column 3: `train.learnig_rate` is not a key of a run file; did you mean `train.learning_rate`?"
        ]
    );
    let found = problems(&with("[train]", "batch_size = 3\nepochs = 4\n[train]"));
    assert!(
        found[1].contains("`data.epochs`") && found[1].contains("did you mean `train.epochs`?"),
        "{found:?}"
    );
    let found = problems(&with("[train]", "[trian]"));
    assert!(
        found.iter().any(|p| p.contains("`trian` is not a section") && p.contains("[train]")),
        "{found:?}"
    );
    let found = problems(&with("[model]\npath = \"org/name\"", "model = \"org/name\""));
    assert!(found.iter().any(|p| p.contains("must be a table: [model]")), "{found:?}");
}

#[test]
fn all_problems_are_reported_together_in_order_of_their_place() {
    let text = r#"version = 1
seed = "x"
[model]
hidden_dropout = 1.0
[task]
type = "singel_label"
[data]
train = []
eval = "e.csv"
eval_fraction = 0.1
max_length = 2
label = 3
[train]
epochs = 1
max_steps = 5
learning_rate = 0
warmup_steps = 1
warmup_ratio = 0.1
beta2 = 1.0
global_batch = 0
micro_batch_tokens = "fast"
precision = 16
max_grad_norm = -1
nonsense = 1
[checkpoint]
keep_last = 0
"#;
    let found = problems(text);
    let expected = [
        "line 2, column 1: `seed` must be a whole number, not the text \"x\"",
        "line 3, column 2: `model.path` is required",
        "line 4, column 1: `model.hidden_dropout` must be at least 0 and below 1, not 1",
        "line 6, column 1: `task.type` must be one of \"single_label\", \"multi_label\", \"regression\", not \"singel_label\"; did you mean \"single_label\"?",
        "line 8, column 1: `data.train` must not be an empty list",
        "line 10, column 1: `data.eval_fraction` excludes `data.eval`: remove one of them",
        "line 11, column 1: `data.max_length` must be from 5 to 32768, not 2",
        "line 12, column 1: `data.label` must be a text in quotes, not the number 3",
        "line 15, column 1: `train.max_steps` excludes `train.epochs`: remove one of them",
        "line 16, column 1: `train.learning_rate` must be above 0, not 0",
        "line 18, column 1: `train.warmup_ratio` excludes `train.warmup_steps`: remove one of them",
        "line 19, column 1: `train.beta2` must be at least 0 and below 1, not 1",
        "line 20, column 1: `train.global_batch` must be from 1 to 1048576, not 0",
        "line 21, column 1: `train.micro_batch_tokens` must be \"auto\" or a whole number, not the text \"fast\"",
        "line 22, column 1: `train.precision` must be one of \"auto\", \"f32\", \"bf16\", not the number 16",
        "line 23, column 1: `train.max_grad_norm` must be at least 0, not -1",
        "line 24, column 1: `train.nonsense` is not a key of a run file",
        "line 26, column 1: `checkpoint.keep_last` must be from 1 to 10000, not 0",
    ];
    assert_eq!(found, expected);
    let message = parse(text).unwrap_err().to_string();
    assert!(message.starts_with("dir/sentiment.toml has 18 problems\n  line 2"), "{message}");
}

#[test]
fn rules_between_values_are_checked() {
    let cases = [
        ("epochs = 3", "log_every_steps = 5", "`train.max_steps` is required"),
        ("epochs = 3", "epochs = inf", "must be a finite number"),
        ("epochs = 3", "max_steps = 5\nwarmup_steps = 6", "more than the 5 steps"),
        ("epochs = 3", "epochs = 3\nlearning_rate = 3", "must be at most 1"),
        ("[task]", "[task]\nlabels = [\"a\", \"b\", \"a\"]", "has \"a\" twice: items 1 and 3"),
        ("[task]", "[task]\nlabels = [\"a\", 2]", "must hold texts; item 2 is the number 2"),
        ("[task]", "[task]\nthreshold = 0.3", "belongs to multi-label tasks"),
        ("[data]", "[data]\nlabel = [\"a\", \"b\"]", "a single-label task has one"),
        ("[data]", "[data]\nlabel = \"text\"", "names the column \"text\", and so does `data.text`"),
        ("[data]", "[data]\ntruncation = \"only_first\"", "is a rule for pairs"),
        ("[data]", "[data]\neval = \"train.csv\"", "which is also in `data.train`"),
        ("[data]", "[data]\neval_fraction = 1", "must be above 0 and below 1"),
        (
            "[train]",
            "eval_fraction = 0.1\n[eval]\nmetric = \"f1\"\n[train]",
            "is not a metric of a single_label task",
        ),
        ("[train]", "[eval]\nearly_stopping_patience = 3\n[train]", "needs evaluation data"),
        ("[train]", "eval_fraction = 0.1\n[eval]\nevery = \"day\"\n[train]", "must be \"epoch\", \"end\""),
        ("version = 1", "version = 1\nname = \"../x\"", "is part of a file name"),
        ("\"single_label\"", "\"regression\"\nlabels = [\"a\"]", "has no meaning for regression"),
    ];
    for (old, new, expected) in cases {
        let found = problems(&with(old, new));
        assert!(found.len() == 1 && found[0].contains(expected), "{new:?}: {found:?}");
    }
}

#[test]
fn broken_toml_is_told_with_line_and_column() {
    let found = problems("version = 1\n[model\npath = \"a\"\nepochs = = 3\n");
    assert!(found.iter().any(|p| p.starts_with("line 2, column 7: ")), "{found:?}");
    assert!(found.iter().any(|p| p.starts_with("line 4, column 10: ")), "all mistakes: {found:?}");
    let found = problems(&with("epochs = 3", "epochs = 3\nepochs = 4"));
    assert!(found[0].starts_with("line 10, column 1: duplicate key"), "{found:?}");
}

#[test]
fn columns_count_characters_and_not_bytes() {
    let found = problems(&with("version = 1", "version = 1\nname = \"Zürich\"\n\"größe\" = 1"));
    assert!(found[0].starts_with("line 3, column 1: `größe` is not a key"), "{found:?}");
    let found = problems("version = 1\nmodel = { path = \"ü\", pathh = 1 }\n");
    assert!(found.iter().any(|p| p.starts_with("line 2, column 23: `model.pathh`")), "{found:?}");
}

#[test]
fn overrides_replace_values_and_their_mistakes_name_the_override() {
    let set = |list: &[&str]| {
        let list: Vec<_> = list.iter().map(|s| (*s).to_owned()).collect();
        RunSpec::parse_with(MINIMAL, Path::new("dir/run.toml"), &list)
    };
    let spec =
        set(&["train.learning_rate=1e-4", "output_dir=out/x", "task.labels=[\"a\",\"b\"]", "seed=0x10"])
            .unwrap();
    assert_eq!((spec.train.learning_rate, spec.seed), (1e-4, 16));
    assert_eq!(spec.output_dir, PathBuf::from("out/x"), "relative to the working directory, not to the file");
    assert_eq!(spec.task.labels.unwrap(), ["a", "b"]);

    let error = set(&["train.lr=3", "train.epochs=-1", "seed"]).unwrap_err().to_string();
    assert!(error.contains("--set train.epochs=-1: `train.epochs` must be above 0"), "{error}");
    assert!(error.contains("--set train.lr=3: `train.lr` is not a key"), "{error}");
    assert!(error.contains("--set seed: must be key=value"), "{error}");
}

#[test]
fn unreadable_files_are_told_apart() {
    let dir = tempdir();
    let missing = RunSpec::load(&dir.join("none.toml")).unwrap_err();
    assert!(matches!(missing, SpecError::Read { .. }) && missing.hint().is_some());

    let latin = dir.join("latin.toml");
    fs::write(&latin, b"version = 1\nname = \"Z\xfcrich\"\n").unwrap();
    let error = RunSpec::load(&latin).unwrap_err();
    assert!(matches!(error, SpecError::NotUtf8 { line: 2, column: 10, .. }), "{error:?}");

    let large = dir.join("large.toml");
    fs::write(&large, vec![b'#'; crate::limits::MAX_RUN_FILE_BYTES as usize + 1]).unwrap();
    assert!(matches!(RunSpec::load(&large).unwrap_err(), SpecError::TooLarge { .. }));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_model_directory_beside_the_run_file_is_taken_before_a_hub_name() {
    let dir = tempdir();
    fs::create_dir_all(dir.join("org/name")).unwrap();
    let file = dir.join("run.toml");
    fs::write(&file, MINIMAL).unwrap();
    let spec = RunSpec::load(&file).unwrap();
    assert_eq!(Path::new(&spec.model.path), dir.join("org/name"));
    fs::remove_dir_all(dir).unwrap();
}

/// A spec in which every optional field is present, so that serializing it shows every key.
fn complete() -> RunSpec {
    let mut spec = parse(MINIMAL).unwrap();
    spec.model.revision = Some("r".into());
    spec.model.hidden_dropout = Some(0.0);
    spec.model.attention_dropout = Some(0.0);
    spec.model.classifier_dropout = Some(0.0);
    spec.task.labels = Some(vec![]);
    spec.data.eval = Some(vec![]);
    spec.data.eval_fraction = Some(0.5);
    spec.data.test = Some(vec![]);
    spec.data.text_pair = Some("p".into());
    spec.data.label_separator = Some("|".into());
    spec.data.cache_dir = Some("c".into());
    spec.train.max_steps = Some(1);
    spec.train.micro_batch_tokens = Some(1);
    spec.train.warmup_steps = Some(1);
    spec.train.threads = Some(1);
    spec.eval.metric = Some("m".into());
    spec.eval.early_stopping_patience = Some(1);
    spec.checkpoint.every_steps = Some(1);
    spec.ranks = RanksSpec {
        per_node: PerNode::Numa,
        nodes: Some(1),
        min: Some(1),
        max: Some(1),
        patience_s: 9,
        membind: Membind::Off,
    };
    spec
}

#[test]
fn the_table_of_keys_and_the_reference_page_hold_exactly_the_fields() {
    let toml::Value::Table(top) = toml::Value::try_from(complete()).unwrap() else { panic!("a table") };
    let mut fields = Vec::new();
    for (key, value) in &top {
        match value {
            toml::Value::Table(section) => fields.extend(section.keys().map(|k| format!("{key}.{k}"))),
            _ => fields.push(key.clone()),
        }
    }
    fields.sort();
    let mut keys: Vec<_> = KEYS.iter().map(|k| k.name.to_owned()).collect();
    keys.sort();
    assert_eq!(fields, keys);

    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/run-file.md");
    let page = fs::read_to_string(page).unwrap();
    for key in KEYS {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", key.name)));
        let row = row.unwrap_or_else(|| panic!("docs/run-file.md has no row for {}", key.name));
        let plain = row.replace(['`', '"', '\\'], "");
        assert!(plain.contains(key.default), "{}: default `{}` in {row}", key.name, key.default);
    }
}

#[test]
fn ranks_are_numa_nodes_packages_or_a_number() {
    let ranks = |text: &str| parse(&format!("{MINIMAL}\n[ranks]\n{text}\n")).map(|spec| spec.ranks);
    assert_eq!(parse(MINIMAL).unwrap().ranks, RanksSpec::default());
    assert_eq!(ranks("per_node = \"package\"").unwrap().per_node, PerNode::Package);
    let all = ranks("per_node = 4\nnodes = 2\nmin = 3\nmax = 8").unwrap();
    assert_eq!(
        all,
        RanksSpec {
            per_node: PerNode::Ranks(4),
            nodes: Some(2),
            min: Some(3),
            max: Some(8),
            patience_s: 60,
            membind: Membind::Auto
        }
    );
    let error = ranks("per_node = \"socket\"\nmin = 9\nmax = 8").unwrap_err().to_string();
    assert!(error.contains("must be \"numa\", \"package\" or a number of ranks, not \"socket\""), "{error}");
    assert!(error.contains("`ranks.min` is 9, more than `ranks.max`, which is 8"), "{error}");
}

#[test]
fn a_spec_survives_serializing() {
    let spec = parse(MINIMAL).unwrap();
    let text = toml::to_string(&spec).unwrap();
    let back: RunSpec = toml::from_str(&text).unwrap();
    assert_eq!(back, spec);
}

fn tempdir() -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("muster-proto-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = std::env::temp_dir().join(name);
    fs::create_dir_all(&dir).unwrap();
    dir
}
