//! What can go wrong while weights are read.

use std::fmt;
use std::path::PathBuf;

use super::dtype::StoredDtype;
use super::pickle::PickleError;

/// Reasons why weights can't be read or don't fit the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The folder holds none of the weight files Muster reads.
    #[error("no weights in {dir}: looked for {looked_for}{foreign}", dir = dir.display(),
        looked_for = looked_for.join(", "), foreign = ForeignNote(foreign))]
    NotFound {
        /// Folder that was searched.
        dir: PathBuf,
        /// File names in the order they were looked for.
        looked_for: Vec<&'static str>,
        /// Weight files of other frameworks that are there.
        foreign: Vec<String>,
    },
    /// A file could not be opened or read.
    #[error("can't {action} {path}", path = path.display())]
    Io {
        /// What was attempted: `open` or `read`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The file is a pointer left by `git clone` without Git LFS.
    #[error("{path} is a Git LFS pointer, not the weights themselves", path = path.display())]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// The file is a `torch.save` from before PyTorch 1.6, which is one stream of pickles and no zip.
    #[error("{path} is not a zip archive: it was saved by PyTorch before 1.6, or is damaged", path = path.display())]
    NotZip {
        /// The file.
        path: PathBuf,
    },
    /// The zip container is damaged or uses what `torch.save` never writes.
    #[error("{path} is not a file that torch.save wrote: {reason}", path = path.display())]
    Container {
        /// The file.
        path: PathBuf,
        /// What was found instead.
        reason: String,
    },
    /// The pickle inside a PyTorch file is damaged or holds something other than tensors.
    #[error("{path} holds a pickle that is not a plain table of tensors", path = path.display())]
    Pickle {
        /// The file.
        path: PathBuf,
        /// Where and why reading stopped.
        #[source]
        source: PickleError,
    },
    /// The header of a safetensors file is damaged.
    #[error("{path} has a damaged safetensors header: {reason}", path = path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What was expected and found.
        reason: String,
    },
    /// The index of a sharded model is damaged or names shards that don't match.
    #[error("{path} is not a usable shard index: {reason}", path = path.display())]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The stored element type can't be trained with.
    #[error("tensor `{name}` in {path} is stored as {dtype}, expected f32, f16, bf16 or f64", path = path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// How it is stored.
        dtype: StoredDtype,
    },
    /// The tensor asked for is not in the files.
    #[error("no tensor `{name}` in {origin}")]
    UnknownTensor {
        /// The tensor.
        name: String,
        /// The file or files searched.
        origin: String,
    },
    /// The memory given for a tensor has another size than the tensor.
    #[error("tensor `{name}` has {stored} elements, the memory for it {wanted}")]
    Length {
        /// The tensor.
        name: String,
        /// Elements in the file.
        stored: usize,
        /// Elements asked for.
        wanted: usize,
    },
    /// A tensor is spread so thinly over its storage that reading it would need unbounded memory.
    #[error("tensor `{name}` in {path} uses {elements} of {span} stored elements through strides", path = path.display())]
    Strided {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Elements of the tensor.
        elements: usize,
        /// Elements between its first and its last one.
        span: usize,
    },
    /// Parameters of the model are missing from the file.
    #[error("{origin} lacks {count} of the {total} tensors this model needs: {list}",
        list = NameList { names: missing, count: *count })]
    Missing {
        /// The file or files.
        origin: String,
        /// The first missing names.
        missing: Vec<String>,
        /// How many are missing.
        count: usize,
        /// How many the model needs.
        total: usize,
        /// A few names that the file holds instead.
        present: Vec<String>,
    },
    /// A tensor has another shape than the model's parameter.
    #[error("tensor `{name}` in {origin} has shape {stored:?}, the model of config.json needs {wanted:?}")]
    Shape {
        /// The file or files.
        origin: String,
        /// The tensor.
        name: String,
        /// Shape in the file.
        stored: Vec<usize>,
        /// Shape of the parameter.
        wanted: Vec<usize>,
    },
}

impl WeightsError {
    /// Gives the fix for the user, where there is one.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotFound { foreign, .. } if !foreign.is_empty() => {
                "save the model as safetensors first: AutoModel.from_pretrained(...).save_pretrained(DIR)"
                    .into()
            }
            Self::NotFound { .. } => {
                "`model.path` must name a folder with config.json and weights, or a hub model; \
                 use `init = \"random\"` to train from scratch"
                    .into()
            }
            Self::LfsPointer { .. } => "run `git lfs pull` in that folder".into(),
            Self::NotZip { .. } | Self::Pickle { .. } => {
                "load and save the model once with transformers to get model.safetensors".into()
            }
            Self::Missing { present, .. } if !present.is_empty() => {
                format!(
                    "the file holds other names, such as {}; does config.json belong to these weights?",
                    present.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
                )
            }
            Self::Missing { .. } => "does config.json belong to these weights?".into(),
            Self::Shape { name, stored, wanted, .. } if name.contains("word_embeddings") => format!(
                "set vocab_size = {} in config.json ({} now); the table may have more rows than the tokenizer \
                 has tokens, don't resize it",
                stored.first().copied().unwrap_or(0),
                wanted.first().copied().unwrap_or(0)
            ),
            Self::Shape { .. } => "config.json and the weights are of different models".into(),
            Self::Container { .. } | Self::Header { .. } => {
                "the download may be incomplete; fetch the file again".into()
            }
            _ => return None,
        };
        Some(hint)
    }
}

struct ForeignNote<'a>(&'a [String]);

impl fmt::Display for ForeignNote<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, "; found only {}, which Muster doesn't read", self.0.join(", "))
    }
}

struct NameList<'a> {
    names: &'a [String],
    count: usize,
}

impl fmt::Display for NameList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(", "))?;
        match self.count - self.names.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
