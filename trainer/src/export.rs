//! Saves a model as a Hugging Face folder that `transformers` loads unchanged.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::checkpoint::CheckpointError;
use crate::checkpoint::check_space;
use crate::checkpoint::durable::{install_dir, sync_dir, write_file, write_tokenizer_file};
use crate::params::Layout;
use crate::tokenizer::TokenizerFile;
use crate::weights::{FileDtype, SafetensorsWriter, TensorOut};

/// Name of the configuration file.
pub const CONFIG: &str = "config.json";
/// Name of the weight file.
pub const WEIGHTS: &str = "model.safetensors";
/// Room for directory blocks and the configuration.
const SLACK_BYTES: u64 = 256 * 1024;

/// Reasons why a model can't be saved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The folder holds something that is not part of a model and would be lost.
    #[error("{dir} holds `{found}`, which is not part of a model saved by Muster", dir = dir.display())]
    Occupied {
        /// The folder.
        dir: PathBuf,
        /// What would be lost.
        found: String,
    },
    /// A file or folder operation failed, or space ran out.
    #[error("can't save the model in {dir}", dir = dir.display())]
    Write {
        /// The folder.
        dir: PathBuf,
        /// Why.
        #[source]
        source: CheckpointError,
    },
}

impl ExportError {
    /// Gives the fix for the user, where there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Occupied { .. } => Some("choose an empty or new folder".into()),
            Self::Write { source, .. } => source.hint(),
        }
    }
}

/// What a model folder is made of, borrowed from the run.
#[derive(Debug, Clone, Copy)]
pub struct ModelExport<'a> {
    /// Final `config.json`; see [`finish_config`].
    pub config: &'a Value,
    /// Names and shapes.
    pub layout: &'a Layout,
    /// f32 weights, arena order.
    pub master: &'a [f32],
    /// Element type of the file.
    pub dtype: FileDtype,
    /// Tokenizer files.
    pub tokenizer_files: &'a [TokenizerFile],
}

/// Writes the folder under a temporary name beside `dir`, syncs it and renames it. An earlier model there is
/// replaced in one step.
///
/// Cost: writes every byte once; memory below 2 MiB.
///
/// # Errors
/// `dir` holds other files, space runs out, or a write fails; an earlier model is then untouched.
pub fn export_model(dir: &Path, model: &ModelExport) -> Result<(), ExportError> {
    let write_error = |source| ExportError::Write { dir: dir.to_owned(), source };
    refuse_occupied(dir, model)?;
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let temp = parent.join(format!(".tmp-{name}-{}", std::process::id()));
    let save = || {
        fs::create_dir_all(parent).map_err(CheckpointError::io("create", parent))?;
        let weights = SafetensorsWriter::new(model_tensors(model.layout, model.master), model.dtype);
        check_space(parent, weights.len_bytes() + SLACK_BYTES)?;
        fs::create_dir(&temp).map_err(CheckpointError::io("create", temp.as_path()))?;
        let config = config_text(model.config);
        write_file(&temp, CONFIG, |out| out.write_all(&config))?;
        write_file(&temp, WEIGHTS, |mut out| weights.write_to(&mut out))?;
        for file in model.tokenizer_files {
            write_tokenizer_file(file, &temp)?;
        }
        sync_dir(&temp)?;
        install_dir(&temp, dir)?;
        sync_dir(parent)
    };
    let saved = save();
    // After success this is the model that was replaced, after an error what was begun.
    let _ = fs::remove_dir_all(&temp);
    saved.map_err(write_error)
}

/// Refuses to replace a folder with anything in it that this export wouldn't write.
fn refuse_occupied(dir: &Path, model: &ModelExport) -> Result<(), ExportError> {
    let ours = |name: &str| {
        let tokenizer = model.tokenizer_files.iter().any(|file| file.name() == name);
        name == CONFIG || name == WEIGHTS || tokenizer
    };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(|error| ExportError::Write {
            dir: dir.to_owned(),
            source: CheckpointError::io("list", dir)(error),
        })?,
    };
    let mut names =
        entries.filter_map(Result::ok).map(|entry| entry.file_name().to_string_lossy().into_owned());
    match names.find(|name| !ours(name)) {
        Some(found) => Err(ExportError::Occupied { dir: dir.to_owned(), found }),
        None => Ok(()),
    }
}

/// What training adds to a source configuration.
#[derive(Debug, Clone, Copy)]
pub struct ConfigFields<'a> {
    /// Class in `transformers`, e.g. `DebertaV2ForSequenceClassification`.
    pub architecture: &'a str,
    /// Label names in order; one per output.
    pub labels: &'a [String],
    /// `single_label_classification`, `multi_label_classification` or `regression`.
    pub problem_type: &'a str,
    /// Element type of the weights.
    pub dtype: FileDtype,
}

/// Completes a source `config.json`: architecture, labels both ways, problem type and element type.
///
/// The number of labels follows from `id2label`; a stale count is dropped.
pub fn finish_config(source: &Value, fields: &ConfigFields) -> Value {
    let mut config = source.as_object().cloned().unwrap_or_default();
    for stale in ["num_labels", "_num_labels", "_name_or_path", "torch_dtype", "transformers_version"] {
        config.shift_remove(stale);
    }
    let id2label: Map<_, _> =
        fields.labels.iter().enumerate().map(|(id, name)| (id.to_string(), json!(name))).collect();
    let label2id: Map<_, _> =
        fields.labels.iter().enumerate().map(|(id, name)| (name.clone(), json!(id))).collect();
    config.insert("architectures".into(), json!([fields.architecture]));
    config.insert("id2label".into(), Value::Object(id2label));
    config.insert("label2id".into(), Value::Object(label2id));
    config.insert("problem_type".into(), json!(fields.problem_type));
    // transformers 5 reads `dtype`, older versions `torch_dtype`.
    config.insert("dtype".into(), json!(fields.dtype.torch_name()));
    config.insert("torch_dtype".into(), json!(fields.dtype.torch_name()));
    Value::Object(config)
}

/// The parameters of an arena as tensors to write.
pub(crate) fn model_tensors<'a>(layout: &'a Layout, master: &'a [f32]) -> Vec<TensorOut<'a>> {
    assert_eq!(master.len(), layout.arena_len(), "weights must fill the arena");
    layout
        .params()
        .iter()
        .map(|param| TensorOut { name: &param.name, shape: &param.shape, data: &master[param.range.clone()] })
        .collect()
}

pub(crate) fn config_text(config: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(config).expect("a JSON value has text keys");
    text.push(b'\n');
    text
}
