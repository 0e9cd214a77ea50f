//! From an inspected run and its plan to an engine at the right step: space, weights, resume.

use std::path::PathBuf;

use muster_kernels::{Element, memory};
use muster_proto::limits::LOADER_QUEUE_STEPS;
use muster_proto::run_spec::{EvalEvery, Init, Recompute, RunSpec, TaskType};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::error::TrainError;
use super::inspect::Inspected;
use super::pace::Pace;
use super::progress::{BestRule, LoopState};
use super::rebind::start_pool;
use super::runner::Trainer;
use super::settings::{Hooks, RunRows, Settings};
use super::store::{Identity, RunStore, STORED};
use crate::checkpoint::{self, Fingerprints, layout_fingerprint};
use crate::data::Budget;
use crate::engine::{Engine, Hyper};
use crate::export::{ConfigFields, finish_config};
use crate::metrics::Metric;
use crate::model::{Architecture, Model, random_head, random_weights};
use crate::plan::DerivedPlan;
use crate::schedule::LearningRate;
use crate::weights::{HeadRule, LoadReport, LoadRules, WeightFiles, load_into};

/// Whether a run starts or goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// From step 0; an output directory with checkpoints is refused.
    Fresh,
    /// From the newest whole checkpoint; none is an error.
    Resume,
    /// From the newest whole checkpoint if there is one, else from step 0.
    ResumeOrFresh,
    /// From the ranks that are there already: this process reads no weights.
    Peers,
}

/// A run whose output directory is held and whose settings are derived; weights are not read yet.
pub struct Prepared {
    settings: Settings,
    rows: RunRows,
    model: Model,
    model_dir: PathBuf,
    store: RunStore,
    start: Start,
    init: Init,
    hyper: Hyper,
    recompute: Recompute,
    /// Tokens of the longest row that the data may have.
    longest: usize,
    threads: usize,
    /// The CPU of each thread, if they are bound.
    pinned: Option<Vec<u32>>,
}

/// What was read before the first step.
pub struct Loaded<E: Element> {
    engine: Engine<E>,
    /// None if weights come from peers.
    state: Option<LoopState>,
    /// What came from the weight file; none after a resume or a random start.
    pub report: Option<LoadReport>,
    /// Damaged checkpoints that were passed over.
    pub skipped: Vec<String>,
}

/// Who writes checkpoints, the log and the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// This process, from the start.
    ThisProcess,
    /// One of several ranks: the first of each generation.
    FirstRank,
}

/// Derives the settings; the writer takes the output directory and checks its space.
///
/// # Errors
/// An unknown metric, a run that is there already or is not there, too little space.
pub fn prepare(
    spec: &RunSpec,
    run: Inspected,
    plan: &DerivedPlan,
    (start, writer): (Start, Writer),
) -> Result<Prepared, TrainError> {
    let settings = settings(spec, &run, plan)?;
    let identity = identity(spec, &run, plan)?;
    let existing = checkpoint::list(&spec.output_dir)?.last().map(|entry| entry.step);
    let dir = spec.output_dir.clone();
    let start = match (start, existing) {
        (Start::Fresh, Some(step)) => return Err(TrainError::RunExists { dir, step }),
        (Start::Resume, None) => return Err(TrainError::NothingToResume { dir }),
        (Start::ResumeOrFresh, None) => Start::Fresh,
        (Start::ResumeOrFresh, Some(_)) => Start::Resume,
        (start, _) => start,
    };
    let mut store = RunStore::new(&spec.output_dir, spec.checkpoint.keep_last, identity);
    if writer == Writer::ThisProcess {
        store.hold()?;
        check_space(spec, &run.model, start, &store)?;
    }
    let train = &spec.train;
    let hyper = Hyper {
        beta1: train.beta1 as f32,
        beta2: train.beta2 as f32,
        eps: train.epsilon as f32,
        weight_decay: train.weight_decay as f32,
    };
    Ok(Prepared {
        settings,
        rows: run.rows,
        model: run.model,
        model_dir: run.model_dir,
        store,
        start,
        init: spec.model.init,
        hyper,
        recompute: train.recompute,
        longest: spec.data.max_length,
        threads: plan.cpus.threads,
        pinned: plan.pinning.cpus.clone(),
    })
}

impl Prepared {
    /// Reads or draws the weights, and the moments and the state of a resumed run.
    ///
    /// # Errors
    /// Unusable weights or checkpoints, or threads that the system refuses.
    pub fn load<E: Element>(&self) -> Result<Loaded<E>, TrainError> {
        let pool = start_pool(self.threads, self.pinned.as_deref())?;
        let seed = self.settings.seed;
        let layout = self.model.layout().clone();
        let engine = |weights, pool| {
            let mut engine = Engine::new(self.model.clone(), weights, self.hyper, seed, pool);
            engine.recompute(self.recompute);
            // A row has at least one token, so there are never more rows.
            let tokens = self.settings.budget.tokens;
            engine.reserve(tokens, tokens, self.longest);
            engine
        };
        if self.start == Start::Peers {
            let engine = engine(memory::zeroed(layout.arena_len()), pool);
            return Ok(Loaded { engine, state: None, report: None, skipped: Vec::new() });
        }
        if self.start == Start::Resume {
            let empty = memory::zeroed(layout.arena_len());
            let mut engine = engine(empty, pool);
            let restored = self.store.restore_newest(&mut engine, &self.settings.best)?;
            let dir = self.store.dir().to_owned();
            let restored = restored.ok_or(TrainError::NothingToResume { dir })?;
            let state = Some(restored.state);
            return Ok(Loaded { engine, state, report: None, skipped: restored.skipped });
        }
        let (weights, report) = match self.init {
            Init::Random => (random_weights(&pool, &self.model, seed), None),
            Init::Pretrained => {
                let files = WeightFiles::open(&self.model_dir)?;
                let mut weights = random_head(&pool, &self.model, seed);
                let rules = LoadRules::new(HeadRule::MayBeNew);
                let report = load_into(&files, &layout, &rules, &mut weights)?;
                (weights, Some(report))
            }
        };
        let state = Some(LoopState::default());
        Ok(Loaded { engine: engine(weights, pool), state, report, skipped: Vec::new() })
    }

    /// Joins both into a run that is ready to meet its peers.
    pub fn trainer<E: Element>(self, loaded: Loaded<E>, hooks: Hooks<'_>) -> Trainer<'_, E> {
        Trainer::new(loaded.engine, self.settings, self.rows, (self.store, loaded.state), hooks)
    }
}

fn settings(spec: &RunSpec, run: &Inspected, plan: &DerivedPlan) -> Result<Settings, TrainError> {
    let name = spec.eval.metric_or_default(spec.task.kind).to_owned();
    let metric = Metric::parse(&name, spec.task.kind, &run.names)?;
    let steps = plan.steps;
    let evaluate = if run.rows.eval.is_some() { spec.eval.every } else { EvalEvery::End };
    Ok(Settings {
        seed: spec.seed,
        global_batch: spec.train.global_batch as u64,
        pace: Pace {
            total_steps: steps.total,
            steps_per_epoch: steps.per_epoch,
            evaluate,
            save_every: spec.checkpoint.every_steps,
            log_every: spec.train.log_every_steps,
        },
        learning_rate: LearningRate::new(
            spec.train.schedule,
            spec.train.learning_rate,
            steps.warmup,
            steps.total,
        ),
        max_grad_norm: spec.train.max_grad_norm,
        on_non_finite: spec.train.on_non_finite,
        budget: Budget::tokens(plan.micro_batch_tokens),
        eval_budget: Budget::tokens(plan.micro_batch_tokens),
        load_ahead: LOADER_QUEUE_STEPS,
        best: BestRule {
            metric,
            name: metric.name(&run.names),
            patience: spec.eval.early_stopping_patience,
            min_delta: spec.eval.early_stopping_min_delta,
        },
        names: run.names.clone(),
        threshold: spec.task.threshold,
        report_to: spec.train.report_to,
    })
}

fn identity(spec: &RunSpec, run: &Inspected, plan: &DerivedPlan) -> Result<Identity, TrainError> {
    let hash = |value: &Value| xxh3_64(value.to_string().as_bytes());
    let train = &run.rows.train;
    let mut train_spec = json!(spec.train);
    // None of these changes a weight.
    for key in ["threads", "pin", "recompute", "log_every_steps", "precision"] {
        train_spec.as_object_mut().and_then(|map| map.shift_remove(key));
    }
    let evaluation = json!([spec.eval.every, spec.eval.metric_or_default(spec.task.kind)]);
    let run_parts = json!([
        spec.seed,
        spec.task.kind,
        [spec.model.hidden_dropout, spec.model.attention_dropout, spec.model.classifier_dropout],
        train_spec,
        plan.precision(),
        evaluation,
        [json!(spec.eval.early_stopping_patience), json!(spec.eval.early_stopping_min_delta)],
    ]);
    let data = json!([train.store.fingerprint().to_string(), spec.data.eval_fraction, train.len()]);
    Ok(Identity {
        config: final_config(spec, run),
        tokenizer_files: run.tokenizer.files(spec.data.max_length)?,
        fingerprints: Fingerprints {
            run: hash(&run_parts),
            data: hash(&data),
            tokenizer: run.tokenizer.fingerprint(),
            labels: hash(&json!(run.names)),
            layout: layout_fingerprint(run.model.layout()),
        },
        seed: spec.seed,
        global_batch: spec.train.global_batch as u64,
        train_rows: train.len() as u64,
    })
}

/// The configuration of the trained model; `muster` holds what transformers has no name for.
fn final_config(spec: &RunSpec, run: &Inspected) -> Value {
    let fields = ConfigFields {
        architecture: class_name(run.model.config().architecture),
        labels: &run.names,
        problem_type: problem_type(spec.task.kind),
        dtype: STORED,
    };
    let mut config = finish_config(&run.source_config, &fields);
    // Whoever trains on with transformers gets the rates of this run, as HF Trainer would have stored them.
    let classifier = match run.model.config().architecture {
        Architecture::DebertaV2 => "cls_dropout",
        _ => "classifier_dropout",
    };
    let rates = [
        ("hidden_dropout_prob", spec.model.hidden_dropout),
        ("attention_probs_dropout_prob", spec.model.attention_dropout),
        (classifier, spec.model.classifier_dropout),
    ];
    for (name, rate) in rates {
        if let Some(rate) = rate {
            // Through its text: 0.1 shall not become 0.10000000149.
            config[name] = rate.to_string().parse::<f64>().map_or(json!(rate), |exact| json!(exact));
        }
    }
    config["muster"] = json!({
        "max_length": spec.data.max_length,
        "truncation": spec.data.truncation,
        "keep": spec.data.keep,
        "threshold": spec.task.threshold,
    });
    config
}

fn class_name(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Bert => "BertForSequenceClassification",
        Architecture::Roberta => "RobertaForSequenceClassification",
        Architecture::XlmRoberta => "XLMRobertaForSequenceClassification",
        Architecture::DebertaV2 => "DebertaV2ForSequenceClassification",
    }
}

/// The name of a task in a Hugging Face configuration.
pub(super) fn problem_type(kind: TaskType) -> &'static str {
    match kind {
        TaskType::SingleLabel => "single_label_classification",
        TaskType::MultiLabel => "multi_label_classification",
        TaskType::Regression => "regression",
    }
}

/// Space for every checkpoint that will exist at once (the kept ones, the best, the one being written) and the model.
fn check_space(spec: &RunSpec, model: &Model, start: Start, store: &RunStore) -> Result<(), TrainError> {
    let one = checkpoint::estimated_bytes(model.layout(), STORED);
    let copies = match start {
        Start::Fresh => spec.checkpoint.keep_last as u64 + 2,
        // The others are there already.
        _ => 1,
    };
    let exported = model.layout().arena_len() as u64 * 4;
    Ok(checkpoint::check_space(store.dir(), one * copies + exported)?)
}
