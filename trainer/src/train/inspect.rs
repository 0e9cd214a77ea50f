//! Everything a run needs short of weights: files, labels, tokenizer, tokens, the model's shape.
//!
//! Problems are found in the order of their price: data files and columns, then the model's folder (which may be a
//! download), its configuration and tokenizer, then every row. Weights are not touched here.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use muster_proto::limits::MAX_CONFIG_BYTES;
use muster_proto::run_spec::{ModelSpec, RunSpec, TaskType};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::error::TrainError;
use super::evaluate::Rows;
use super::settings::RunRows;
use crate::bounded;
use crate::data::{
    self, BuildOptions, BuildProgress, DataError, DataSet, Known, Labels, Reader, Role, RowSet,
    SourceOptions, Task, TokenStore,
};
use crate::export::CONFIG;
use crate::hub::{HubEvent, HubOptions, resolve_model};
use crate::model::{Config, Model};
use crate::params::ParamKind;
use crate::plan::{self, DatasetStats, ModelDims};
use crate::tokenizer::{Texts, Tokenizer, TruncationRule};

/// What is lent to the inspection of a run.
pub struct InspectContext<'a> {
    /// Where models by name come from.
    pub hub: &'a HubOptions,
    /// Token cache, unless the run file names one.
    pub cache_dir: Option<PathBuf>,
    /// Tokenising threads.
    pub threads: usize,
    /// Set by a signal.
    pub stop: &'a AtomicBool,
    /// Told how far tokenising is, and of which set.
    pub progress: &'a (dyn Fn(&'static str, BuildProgress) + Sync),
    /// Told how far a download is.
    pub downloading: &'a mut dyn FnMut(HubEvent),
}

/// A run with valid data, labels, tokenizer and model shape.
pub struct Inspected {
    /// Folder of the model to start from.
    pub model_dir: PathBuf,
    /// Its `config.json`.
    pub source_config: Value,
    /// Architecture and layout.
    pub model: Model,
    /// Tokenizer.
    pub tokenizer: Tokenizer,
    /// Rows to train, evaluate and test on.
    pub rows: RunRows,
    /// Labels or targets in model order.
    pub names: Vec<String>,
    /// Sizes of the model.
    pub dims: ModelDims,
    /// Sizes of the data.
    pub stats: DatasetStats,
}

/// Inspects a run.
///
/// # Errors
/// Whatever is wrong with data, labels, model configuration or tokenizer.
pub fn inspect(spec: &RunSpec, cx: InspectContext) -> Result<Inspected, TrainError> {
    let options = source_options(spec);
    for files in
        [Some(&spec.data.train), spec.data.eval.as_ref(), spec.data.test.as_ref()].into_iter().flatten()
    {
        check_files(files, &options)?;
    }
    let given = spec.task.labels.as_deref().map(Labels::explicit).transpose().map_err(DataError::from)?;
    let model_dir = resolve_model(&spec.model.path, spec.model.revision.as_deref(), cx.hub, cx.downloading)?;
    let (source_config, mut config) = read_config(&model_dir)?;
    override_dropouts(&mut config, &spec.model);
    check_length(spec.data.max_length, &config)?;
    let tokenizer = Tokenizer::load(&model_dir)?;
    let rule = truncation_rule(spec);
    let texts = if spec.data.text_pair.is_some() { Texts::Pair } else { Texts::One };
    tokenizer.check_rule(&rule, texts)?;
    tokenizer.check_rows(config.vocab)?;
    let sets = Sets { spec, options: &options, tokenizer: &tokenizer, rule: &rule, cx: &cx };
    let rows = sets.rows(given.as_ref())?;
    let shape = rows.train.store.shape();
    let names = names(spec, &rows.train.store, shape.outputs());
    let model = Model::new(config, shape.outputs());
    let dims = dims(&model, &source_config);
    let stats = stats(spec, &rows);
    Ok(Inspected { model_dir, source_config, model, tokenizer, rows, names, dims, stats })
}

/// The rule by which a run shortens rows.
pub fn truncation_rule(spec: &RunSpec) -> TruncationRule {
    TruncationRule { max_length: spec.data.max_length, strategy: spec.data.truncation, keep: spec.data.keep }
}

/// Reads and checks the configuration of a model folder.
///
/// # Errors
/// An unreadable file, or a model that the engine can't compute.
pub fn read_config(dir: &Path) -> Result<(Value, Config), TrainError> {
    let path = dir.join(CONFIG);
    let text = bounded::read(&path, MAX_CONFIG_BYTES)
        .map_err(io::Error::from)
        .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other))
        .map_err(|source| TrainError::Read { path: path.clone(), source })?;
    let unusable = |source| TrainError::Config { path: path.clone(), source };
    let config = Config::parse(&text).map_err(unusable)?;
    let value = serde_json::from_str(&text).map_err(|e| unusable(crate::model::ConfigError::Json(e)))?;
    Ok((value, config))
}

fn check_length(max_length: usize, config: &Config) -> Result<(), TrainError> {
    match config.max_row() {
        Some(limit) if max_length > limit => Err(TrainError::MaxLength { max_length, limit }),
        _ => Ok(()),
    }
}

fn override_dropouts(config: &mut Config, spec: &ModelSpec) {
    let rates = &mut config.dropouts;
    rates.hidden = spec.hidden_dropout.unwrap_or(rates.hidden);
    rates.attention = spec.attention_dropout.unwrap_or(rates.attention);
    rates.classifier = spec.classifier_dropout.unwrap_or(rates.classifier);
}

fn source_options(spec: &RunSpec) -> SourceOptions {
    let task = Task::of(spec.task.kind, spec.data.label_separator.as_deref());
    let mut options = SourceOptions::new(spec.data.text.clone(), spec.data.label.names().to_vec(), task);
    options.text_pair.clone_from(&spec.data.text_pair);
    options.format = spec.data.format;
    options
}

/// Opens every file: a missing one, or one without the columns, is found before anything is downloaded.
fn check_files(files: &[PathBuf], options: &SourceOptions) -> Result<(), TrainError> {
    if files.is_empty() {
        Reader::open(files, options)?;
    }
    for file in files {
        Reader::open(std::slice::from_ref(file), options)?;
    }
    Ok(())
}

/// Builds the token stores of a run.
struct Sets<'a, 'c> {
    spec: &'a RunSpec,
    options: &'a SourceOptions,
    tokenizer: &'a Tokenizer,
    rule: &'a TruncationRule,
    cx: &'a InspectContext<'c>,
}

impl Sets<'_, '_> {
    fn rows(&self, given: Option<&Labels>) -> Result<RunRows, TrainError> {
        let data = &self.spec.data;
        let known = given.map_or(Known::Nothing, Known::Labels);
        let train = self.store("training", &data.train, Role::Train, known)?;
        let settled = match self.spec.task.kind {
            TaskType::Regression => Known::Width(train.shape().outputs()),
            _ => Known::Labels(train.labels()),
        };
        let other = |name, files: &Option<Vec<PathBuf>>| match files {
            Some(files) => {
                let store = self.store(name, files, Role::Evaluate, settled)?;
                Ok(Some(Rows { store, set: RowSet::All }))
            }
            None => Ok::<_, TrainError>(None),
        };
        let mut eval = other("evaluation", &data.eval)?;
        let test = other("test", &data.test)?;
        let mut set = RowSet::All;
        if let Some(fraction) = data.eval_fraction {
            let split = data::split(&train, fraction, self.spec.seed).map_err(DataError::from)?;
            set = RowSet::Some(split.train.into());
            eval = Some(Rows { store: train.clone(), set: RowSet::Some(split.eval.into()) });
        }
        Ok(RunRows { train: Rows { store: train, set }, eval, test })
    }

    fn store(
        &self,
        name: &'static str,
        files: &[PathBuf],
        role: Role,
        known: Known,
    ) -> Result<Arc<TokenStore>, TrainError> {
        let encode = |text: &str, pair: Option<&str>| {
            self.tokenizer.encode(text, pair, self.rule).map_err(|error| error.to_string())
        };
        let cache_dir = self.spec.data.cache_dir.as_deref().or(self.cx.cache_dir.as_deref());
        let build = BuildOptions {
            cache_dir,
            threads: self.cx.threads,
            on_long: self.spec.data.on_long,
            tokenizer_fingerprint: self.tokenizer.fingerprint(),
            rule_fingerprint: xxh3_64(format!("{:?}", self.rule).as_bytes()),
            stop: self.cx.stop,
            progress: &|progress| (self.cx.progress)(name, progress),
        };
        let set = DataSet { files, options: self.options, role, known };
        Ok(Arc::new(TokenStore::open_or_build(&set, &encode, &build)?))
    }
}

/// Labels in class order; for regression the columns, or numbered values of a list column.
fn names(spec: &RunSpec, store: &TokenStore, outputs: usize) -> Vec<String> {
    let columns = spec.data.label.names();
    match spec.task.kind {
        TaskType::Regression if columns.len() == outputs => columns.to_vec(),
        TaskType::Regression => (0..outputs).map(|i| format!("{}_{i}", columns[0])).collect(),
        _ => store.labels().names().to_vec(),
    }
}

fn dims(model: &Model, source: &Value) -> ModelDims {
    let config = model.config();
    let tables = model.layout().params().iter().filter(|p| p.kind == ParamKind::Embedding);
    let (relative, tables): (Vec<_>, Vec<_>) = tables.partition(|p| p.name.contains("rel_embeddings"));
    ModelDims {
        architecture: source["model_type"].as_str().unwrap_or_default().to_owned(),
        hidden: config.hidden,
        layers: config.layers,
        heads: config.heads,
        intermediate: config.intermediate,
        relative_rows: relative.first().map_or(0, |p| p.shape[0]),
        conv_kernel: config.conv.as_ref().map_or(0, |conv| conv.kernel),
        max_row: config.max_row(),
        outputs: model.outputs(),
        parameters: model.layout().param_count() as u64,
        embedding_parameters: tables.iter().map(|p| p.range.len() as u64).sum(),
    }
}

fn stats(spec: &RunSpec, rows: &RunRows) -> DatasetStats {
    let lengths: Vec<usize> =
        rows.train.indices().map(|row| rows.train.store.row_tokens(row as usize)).collect();
    DatasetStats {
        rows: lengths.len() as u64,
        tokens: lengths.iter().map(|&len| len as u64).sum(),
        longest: lengths.iter().copied().max().unwrap_or(0),
        largest_step: largest_step(spec, &lengths),
        truncated: rows.train.store.truncated_rows(),
        eval_rows: rows.eval.as_ref().map_or(0, |rows| rows.len() as u64),
    }
}

/// Rows whose order is drawn in advance to find the largest step; more would take over a second.
const FORESEEN_ROWS: u64 = 20_000_000;

/// Tokens of the largest global batch. The order of a run is known before it starts, so this is what will happen, and
/// not the bound of a batch full of longest rows; a very long run gets that bound.
fn largest_step(spec: &RunSpec, lengths: &[usize]) -> usize {
    let (rows, batch) = (lengths.len() as u64, spec.train.global_batch as u64);
    let total = plan::steps(&spec.train, rows).total;
    if rows == 0 || total.saturating_mul(batch) > FORESEEN_ROWS {
        let mut longest = lengths.to_vec();
        longest.sort_unstable_by(|a, b| b.cmp(a));
        return longest.iter().take(batch as usize).sum();
    }
    let sampler = data::Sampler::new(spec.seed, rows, batch);
    let steps =
        |epoch: u64| epoch * sampler.steps_per_epoch()..((epoch + 1) * sampler.steps_per_epoch()).min(total);
    let epochs = 0..=sampler.epoch_of_step(total - 1);
    let largest = epochs.flat_map(|epoch| {
        let order = sampler.epoch_order(epoch);
        let tokens = |step| order.rows_of_step(step).map(|row| lengths[row as usize]).sum::<usize>();
        steps(epoch).map(tokens).max()
    });
    largest.max().unwrap_or(0)
}
