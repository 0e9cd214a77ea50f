//! The loop on a tiny BERT and a few dozen rows: stopping and resuming anywhere, poison, patience.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_kernels::pool::Pool;
use muster_proto::run_spec::{EvalEvery, OnLong, OnNonFinite, ReportTo, Schedule};
use serde_json::{Value, json};

use super::*;
use crate::batch::Encoding;
use crate::checkpoint::Fingerprints;
use crate::data::{Budget, BuildOptions, DataSet, Known, Role, RowSet, SourceOptions, Task, TokenStore};
use crate::engine::{Engine, Hyper};
use crate::metrics::Metric;
use crate::model::{Config, Model, random_weights};
use crate::peers::{Peers, Wish};
use crate::schedule::LearningRate;

const CONFIG: &str = r#"{"model_type": "bert", "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32, "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-12}"#;
/// The token that occurs in one row only.
const RARE: u32 = 63;
const RARE_ROW: usize = 17;
const ROWS: usize = 22;
/// Batches of 4: five full ones and one of two rows, six steps per epoch.
const BATCH: u64 = 4;
pub(super) const STEPS: u64 = 12;

fn store(dir: &Path, name: &str, rows: usize) -> Arc<TokenStore> {
    let path = dir.join(format!("{name}.csv"));
    let line = |i: usize| {
        let (word, label) = if i.is_multiple_of(2) { ("good", "up") } else { ("bad", "down") };
        let rare = if i == RARE_ROW { " rare" } else { "" };
        format!("{word}{} w{}{rare},{label}\n", " x".repeat(i % 5), i * 7 % 11)
    };
    fs::write(&path, "text,label\n".to_owned() + &(0..rows).map(line).collect::<String>()).unwrap();
    let encode = |text: &str, _: Option<&str>| {
        let word = |w: &str| if w == "rare" { RARE } else { 3 + w.bytes().map(u32::from).sum::<u32>() % 59 };
        let ids: Vec<u32> = [1].into_iter().chain(text.split(' ').map(word)).chain([2]).collect();
        let len = ids.len() as u32;
        Ok(Encoding { ids, second_from: len, full_len: len })
    };
    let options = SourceOptions::new("text", vec!["label".into()], Task::SingleLabel);
    let set = DataSet { files: &[path], options: &options, role: Role::Train, known: Known::Nothing };
    let build = BuildOptions {
        cache_dir: None,
        threads: 1,
        on_long: OnLong::Error,
        tokenizer_fingerprint: 1,
        rule_fingerprint: 1,
        stop: &AtomicBool::new(false),
        progress: &|_| {},
    };
    Arc::new(TokenStore::open_or_build(&set, &encode, &build).unwrap())
}

pub(super) struct Lab {
    dir: tempfile::TempDir,
    rows: RunRows,
    pub(super) settings: Settings,
    poison: Option<f32>,
    /// Whether ranks begin without weights.
    pub(super) joins: bool,
}

impl Lab {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let all = |name, rows| Rows { store: store(dir.path(), name, rows), set: RowSet::All };
        let rows =
            RunRows { train: all("train", ROWS), eval: Some(all("eval", 9)), test: Some(all("test", 5)) };
        let best = BestRule { metric: Metric::Loss, name: "loss".into(), patience: None, min_delta: 0.0 };
        let settings = Settings {
            seed: 7,
            global_batch: BATCH,
            pace: Pace {
                total_steps: STEPS,
                steps_per_epoch: 6,
                evaluate: EvalEvery::Steps(4),
                save_every: Some(5),
                log_every: 1,
            },
            learning_rate: LearningRate::new(Schedule::Linear, 5e-3, 3, STEPS),
            max_grad_norm: Some(1.0),
            on_non_finite: OnNonFinite::Stop,
            budget: Budget::tokens(16),
            eval_budget: Budget::tokens(32),
            load_ahead: 2,
            best,
            names: rows.train.store.labels().names().to_vec(),
            threshold: 0.5,
            report_to: ReportTo::Tensorboard,
        };
        Self { dir, rows, settings, poison: None, joins: false }
    }

    pub(super) fn out(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs in the directory `name`, from its newest checkpoint if it has one; `stop_when` sets the stop flag.
    pub(super) fn run(
        &self,
        name: &str,
        stop_when: impl Fn(&Event) -> bool,
    ) -> Result<Option<Results>, TrainError> {
        self.run_with(name, 2, stop_when)
    }

    fn run_with(
        &self,
        name: &str,
        threads: usize,
        stop_when: impl Fn(&Event) -> bool,
    ) -> Result<Option<Results>, TrainError> {
        self.train(name, threads, stop_when, |trainer| {
            trainer.join(Peers::alone())?;
            let ending = trainer.run()?;
            Ok(trainer.finish("lab", ending)?.results())
        })
    }

    /// Makes a trainer of the directory `name` and lets `drive` run it.
    pub(super) fn train<T>(
        &self,
        name: &str,
        threads: usize,
        stop_when: impl Fn(&Event) -> bool,
        drive: impl FnOnce(&mut Trainer<'_, f32>) -> T,
    ) -> T {
        let model = Model::new(Config::parse(CONFIG).unwrap(), 2);
        let layout = model.layout().clone();
        let pool = Pool::new(threads).unwrap();
        let mut weights = random_weights(&pool, &model, 7);
        if let Some(value) = self.poison {
            weights[table(&model).start + RARE as usize * 16] = value;
        }
        let hyper = Hyper { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
        let mut engine = Engine::<f32>::new(model, weights, hyper, 7, pool);
        let identity = Identity {
            config: serde_json::from_str(CONFIG).unwrap(),
            tokenizer_files: Vec::new(),
            fingerprints: Fingerprints {
                layout: crate::checkpoint::layout_fingerprint(&layout),
                ..Fingerprints::default()
            },
            seed: 7,
            global_batch: BATCH,
            train_rows: ROWS as u64,
        };
        let store = RunStore::new(&self.out(name), 2, identity);
        let saved = store.restore_newest(&mut engine, &self.settings.best).unwrap();
        let state = (!self.joins).then(|| saved.map(|saved| saved.state).unwrap_or_default());
        let stop = AtomicBool::new(false);
        let ticks = Cell::new(0);
        let clock = || {
            ticks.set(ticks.get() + 1);
            Duration::from_millis(ticks.get())
        };
        let mut observe =
            |event: &Event| stop.store(stop.load(Ordering::Relaxed) || stop_when(event), Ordering::Relaxed);
        let wish = || if stop.load(Ordering::Relaxed) { Wish::SaveAndStop } else { Wish::GoOn };
        let hooks = Hooks { wish: &wish, clock: &clock, observe: &mut observe };
        let parts = (store, state);
        drive(&mut Trainer::new(engine, self.settings.clone(), self.rows.clone(), parts, hooks))
    }

    /// The metrics log without what depends on time.
    pub(super) fn log(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.out(name).join("metrics.jsonl")).unwrap();
        text.lines().map(|line| timeless(serde_json::from_str(line).unwrap())).collect()
    }
}

fn table(model: &Model) -> std::ops::Range<usize> {
    let named = |p: &&crate::params::Param| p.name.ends_with("word_embeddings.weight");
    model.layout().params().iter().find(named).unwrap().range.clone()
}

fn timeless(mut value: Value) -> Value {
    value.as_object_mut().unwrap().retain(|key, _| !key.ends_with("_s"));
    value
}

/// Results without time and place.
pub(super) fn essence(results: &Results) -> Value {
    let mut value = timeless(json!(results));
    value.as_object_mut().unwrap().remove("model_dir");
    value
}

pub(super) fn never(_: &Event) -> bool {
    false
}

pub(super) fn at_step(k: u64) -> impl Fn(&Event) -> bool {
    move |event| matches!(event, Event::StepDone(record, _) if record.step == k)
}

#[test]
fn case_39_a_run_stopped_at_any_step_and_resumed_ends_bit_for_bit_as_one_that_never_stopped() {
    let lab = Lab::new();
    let whole = lab.run("whole", never).unwrap().expect("finished");
    let log = lab.log("whole");
    assert_eq!(log.iter().filter(|line| line["kind"] == "eval").count(), 3);
    for k in 1..=STEPS {
        let name = format!("stop{k}");
        assert!(lab.run(&name, at_step(k)).unwrap().is_none(), "interrupted at step {k}");
        let resumed = lab.run(&name, never).unwrap().expect("finished");
        assert_eq!(essence(&resumed), essence(&whole), "stopped at step {k}");
        assert_eq!(lab.log(&name), log, "stopped at step {k}");
    }
}

#[test]
fn case_36_neither_a_second_run_nor_other_threads_change_a_bit() {
    let lab = Lab::new();
    let one = lab.run_with("one", 1, never).unwrap().unwrap();
    let three = lab.run_with("three", 3, never).unwrap().unwrap();
    assert_eq!(essence(&one), essence(&three));
    assert_eq!(lab.log("one"), lab.log("three"));
}

#[test]
fn a_stop_during_an_evaluation_repeats_it_and_leaves_one_line() {
    let lab = Lab::new();
    let whole = lab.run("whole", never).unwrap().unwrap();
    // The evaluations after steps 4, 8 and 12, each interrupted once.
    let in_evaluation =
        |event: &Event| matches!(event, Event::EvalProgress { rows_done, rows } if rows_done < rows);
    let mut ended = None;
    for _ in 0..4 {
        ended = lab.run("parts", in_evaluation).unwrap();
        assert!(ended.is_none(), "each run stops in its first evaluation");
        lab.run("parts", at_step(1)).unwrap();
    }
    let resumed = ended.or_else(|| lab.run("parts", never).unwrap()).unwrap();
    assert_eq!(essence(&resumed), essence(&whole));
    assert_eq!(lab.log("parts"), lab.log("whole"));
}

#[test]
fn case_10_a_poisoned_row_stops_the_run_and_is_named_with_step_and_tensor() {
    let mut lab = Lab::new();
    lab.poison = Some(f32::NAN);
    let error = lab.run("poison", never).expect_err("stops").to_string();
    let sampler = crate::data::Sampler::new(7, ROWS as u64, BATCH);
    let step = (0..6).find(|&s| sampler.rows_of_step(s).contains(&(RARE_ROW as u64))).unwrap() + 1;
    let place = lab.rows.train.store.place(RARE_ROW);
    assert_eq!(
        error,
        format!(
            "the loss of step {step} is not finite; row {RARE_ROW} ({place}); first tensor that is not finite: weight \
             bert.embeddings.word_embeddings.weight"
        )
    );
}

#[test]
fn case_10_skipping_counts_shows_and_leaves_the_other_weights_finite() {
    let mut lab = Lab::new();
    lab.poison = Some(f32::INFINITY);
    lab.settings.on_non_finite = OnNonFinite::Skip;
    lab.rows.test = None;
    lab.rows.eval = None;
    let warnings = std::cell::RefCell::new(Vec::new());
    let results = lab.run("skip", |event| {
        if let Event::Warning(text) = event {
            warnings.borrow_mut().push(text.clone());
        }
        false
    });
    let results = results.unwrap().expect("finished");
    assert_eq!(results.skipped_steps, 2, "the row is met once per epoch");
    assert!(warnings.borrow()[1].contains("the step is skipped (2 so far)"), "{warnings:?}");
    let skipped: Vec<Value> = lab.log("skip").into_iter().filter(|line| line["loss"].is_null()).collect();
    assert_eq!(skipped.len(), 2);
}

#[test]
fn early_stopping_ends_after_the_evaluations_without_improvement_and_exports_the_best() {
    let mut lab = Lab::new();
    lab.settings.pace.evaluate = EvalEvery::Steps(1);
    lab.settings.best.patience = Some(2);
    // No loss falls by a thousand: only the first evaluation counts.
    lab.settings.best.min_delta = 1e3;
    let results = lab.run("early", never).unwrap().unwrap();
    assert_eq!((results.steps, results.stopped_early), (3, true));
    assert!(lab.out("early/final/model.safetensors").is_file() && lab.out("early/results.json").is_file());
    let again = lab.run("early", never).unwrap().unwrap();
    assert_eq!(essence(&again), essence(&results), "resuming a finished run trains no further");
}
