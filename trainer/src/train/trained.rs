//! A trained model, opened for evaluation or prediction.

use std::path::Path;

use muster_kernels::pool::Pool;
use muster_kernels::{Element, memory};
use muster_proto::run_spec::{Keep, TaskType, Truncation};
use serde::Deserialize;
use serde_json::Value;

use super::error::TrainError;
use super::inspect::read_config;
use super::prepare::problem_type;
use crate::batch::{Encoding, MicroBatch};
use crate::engine::{Engine, Hyper};
use crate::export::CONFIG;
use crate::model::Model;
use crate::tokenizer::{Tokenizer, TruncationRule};
use crate::weights::{HeadRule, LoadRules, WeightFiles, load_into};

/// Longest row of a model folder that does not say how long its training rows were.
const DEFAULT_LENGTH: usize = 512;

/// What a model folder says beside its weights.
pub struct Trained {
    /// Architecture and layout.
    pub model: Model,
    /// Tokenizer.
    pub tokenizer: Tokenizer,
    /// Labels or targets in model order.
    pub names: Vec<String>,
    /// What it answers.
    pub task: TaskType,
    /// Probability from which a label of a multi-label task counts as given.
    pub threshold: f32,
    /// How rows were shortened in training.
    pub rule: TruncationRule,
}

/// The `muster` member of a configuration that this program wrote.
#[derive(Deserialize)]
struct Notes {
    max_length: usize,
    truncation: Truncation,
    keep: Keep,
    threshold: f32,
}

impl Trained {
    /// Reads configuration and tokenizer of a model folder.
    ///
    /// # Errors
    /// A missing or unusable file, or labels that can't be told.
    pub fn open(dir: &Path) -> Result<Self, TrainError> {
        let (value, config) = read_config(dir)?;
        let tokenizer = Tokenizer::load(dir)?;
        tokenizer.check_rows(config.vocab)?;
        let problem = |problem: String| TrainError::ModelFolder { path: dir.join(CONFIG), problem };
        let names = labels(&value).map_err(problem)?;
        let task = task(&value, names.len()).map_err(problem)?;
        let notes: Option<Notes> = serde_json::from_value(value["muster"].clone()).ok();
        let limit = config.max_row().unwrap_or(config.max_positions).min(DEFAULT_LENGTH);
        let rule = match &notes {
            Some(notes) => {
                TruncationRule { max_length: notes.max_length, strategy: notes.truncation, keep: notes.keep }
            }
            None => {
                TruncationRule { max_length: limit, strategy: Truncation::LongestFirst, keep: Keep::Head }
            }
        };
        let threshold = notes.map_or(0.5, |notes| notes.threshold);
        let model = Model::new(config, names.len());
        Ok(Self { model, tokenizer, names, task, threshold, rule })
    }

    /// Sets the longest row in tokens.
    ///
    /// # Errors
    /// If the model has no positions for it.
    pub fn set_max_length(&mut self, max_length: usize) -> Result<(), TrainError> {
        if let Some(limit) = self.model.config().max_row().filter(|&limit| max_length > limit) {
            return Err(TrainError::MaxLength { max_length, limit });
        }
        self.rule.max_length = max_length;
        Ok(())
    }

    /// Reads the weights; every one must be there.
    ///
    /// # Errors
    /// Missing or unreadable weights, or threads that the system refuses.
    pub fn engine<E: Element>(&self, dir: &Path, threads: usize) -> Result<Engine<E>, TrainError> {
        let mut weights = memory::zeroed(self.model.layout().arena_len());
        let files = WeightFiles::open(dir)?;
        load_into(&files, self.model.layout(), &LoadRules::new(HeadRule::Required), &mut weights)?;
        // Nothing is trained: the optimizer's settings don't matter.
        let hyper = Hyper { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 };
        Ok(Engine::new(self.model.clone(), weights, hyper, 0, Pool::new(threads)?))
    }
}

/// Lays encoded rows end to end, without targets. Row ids count from 0.
pub fn collate_encodings<'a>(rows: impl IntoIterator<Item = &'a Encoding>) -> MicroBatch {
    let mut batch = MicroBatch::empty();
    for (row_id, row) in (0..).zip(rows) {
        batch.push(row_id, &row.ids, row.second_from);
    }
    batch
}

/// The names of `id2label` in the order of their numbers, which must be 0, 1, 2, ...
fn labels(config: &Value) -> Result<Vec<String>, String> {
    let map = config["id2label"].as_object().ok_or("has no id2label: it is not a trained classifier")?;
    (0..map.len())
        .map(|id| {
            let name = map.get(&id.to_string()).and_then(Value::as_str);
            name.map(str::to_owned)
                .ok_or_else(|| format!("id2label has {} entries but none for {id}", map.len()))
        })
        .collect()
}

/// The task as the folder names it, or as transformers would take it: one output is regression, more are classes.
fn task(config: &Value, outputs: usize) -> Result<TaskType, String> {
    let all = [TaskType::SingleLabel, TaskType::MultiLabel, TaskType::Regression];
    match config["problem_type"].as_str() {
        Some(name) => all
            .into_iter()
            .find(|kind| problem_type(*kind) == name)
            .ok_or_else(|| format!("problem_type {name:?} is not supported")),
        None if outputs == 1 => Ok(TaskType::Regression),
        None => Ok(TaskType::SingleLabel),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_are_ordered_by_number_not_by_text_and_gaps_are_refused() {
        let many: serde_json::Map<_, _> =
            (0..12).rev().map(|i| (i.to_string(), json!(format!("label{i}")))).collect();
        let names = labels(&json!({ "id2label": many })).unwrap();
        assert_eq!((names[2].as_str(), names[11].as_str()), ("label2", "label11"));
        assert!(labels(&json!({ "id2label": {"0": "a", "2": "b"} })).unwrap_err().contains("none for 1"));
        assert!(labels(&json!({})).is_err());
    }

    #[test]
    fn a_task_that_is_not_named_follows_transformers() {
        assert_eq!(task(&json!({}), 1), Ok(TaskType::Regression));
        assert_eq!(task(&json!({}), 3), Ok(TaskType::SingleLabel));
        assert_eq!(task(&json!({"problem_type": "multi_label_classification"}), 3), Ok(TaskType::MultiLabel));
        assert!(task(&json!({"problem_type": "other"}), 3).is_err());
    }

    #[test]
    fn rows_are_laid_end_to_end_with_types_and_positions() {
        let row = |ids: Vec<u32>, second_from| Encoding { full_len: ids.len() as u32, ids, second_from };
        let batch = collate_encodings(&[row(vec![1, 5, 2], 3), row(vec![1, 2, 7, 2], 2)]);
        assert_eq!(batch.ids, [1, 5, 2, 1, 2, 7, 2]);
        assert_eq!(batch.type_ids, [0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((batch.positions, batch.offsets), (vec![0, 1, 2, 0, 1, 2, 3], vec![0, 3, 7]));
    }
}
