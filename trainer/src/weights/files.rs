//! The weight files of a model folder, whatever their format.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use muster_proto::limits::{MAX_SHARD_INDEX_BYTES, MAX_SHARDS};
use serde::Deserialize;

use super::entry::{Entry, OpenFile, TensorInfo};
use super::error::WeightsError;
use super::{safetensors_read, torch_read};

/// File names looked for, best first.
pub const LOOKED_FOR: [&str; 4] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];
/// Weight files of other frameworks, mentioned when nothing else is there.
pub(crate) const FOREIGN: [&str; 4] = ["tf_model.h5", "rust_model.ot", "flax_model.msgpack", "model.onnx"];

/// The tensors of a model folder. Opening reads headers only; elements are read one tensor at a time.
#[derive(Debug)]
pub struct WeightFiles {
    origin: String,
    files: Vec<OpenFile>,
    entries: Vec<Entry>,
    by_name: HashMap<String, usize>,
}

impl WeightFiles {
    /// Opens the weights of a model folder: safetensors before PyTorch, one file before shards.
    ///
    /// # Errors
    /// No weights in the folder, or damaged, hostile or unsupported files.
    pub fn open(dir: &Path) -> Result<Self, WeightsError> {
        let Some(name) = LOOKED_FOR.into_iter().find(|name| dir.join(name).exists()) else {
            let foreign =
                FOREIGN.into_iter().filter(|name| dir.join(name).exists()).map(str::to_owned).collect();
            return Err(WeightsError::NotFound {
                dir: dir.to_owned(),
                looked_for: LOOKED_FOR.to_vec(),
                foreign,
            });
        };
        let path = dir.join(name);
        if name.ends_with(".index.json") { Self::open_shards(dir, &path) } else { Self::open_file(&path) }
    }

    /// Opens one weight file; the format goes by its name: `.safetensors`, anything else is PyTorch's.
    ///
    /// # Errors
    /// As [`WeightFiles::open`].
    pub fn open_file(path: &Path) -> Result<Self, WeightsError> {
        let (file, entries) = open_one(path, 0)?;
        Ok(Self::new(path.display().to_string(), vec![file], entries))
    }

    fn open_shards(dir: &Path, index_path: &Path) -> Result<Self, WeightsError> {
        let wrong = |reason: String| WeightsError::Index { path: index_path.to_owned(), reason };
        let index = read_index(index_path)?;
        let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, shard) in &index {
            shards.entry(shard).or_default().push(tensor);
        }
        if shards.len() > MAX_SHARDS {
            return Err(wrong(format!(
                "it names {} shards, more than the limit of {MAX_SHARDS}",
                shards.len()
            )));
        }
        let (mut files, mut entries) = (Vec::new(), Vec::new());
        for (shard, tensors) in shards {
            if !is_plain_name(shard) {
                return Err(wrong(format!("shard `{shard}` is not a plain file name")));
            }
            if !dir.join(shard).exists() {
                return Err(wrong(format!("shard `{shard}` is missing from the folder")));
            }
            let (file, found) = open_one(&dir.join(shard), files.len())?;
            let mut found: HashMap<String, Entry> =
                found.into_iter().map(|entry| (entry.info.name.clone(), entry)).collect();
            for tensor in tensors {
                let entry = found.remove(tensor);
                entries.push(entry.ok_or_else(|| wrong(format!("shard `{shard}` lacks tensor `{tensor}`")))?);
            }
            files.push(file);
        }
        let origin = format!("{} ({} shards)", index_path.display(), files.len());
        Ok(Self::new(origin, files, entries))
    }

    fn new(origin: String, files: Vec<OpenFile>, entries: Vec<Entry>) -> Self {
        let by_name =
            entries.iter().enumerate().map(|(index, entry)| (entry.info.name.clone(), index)).collect();
        Self { origin, files, entries, by_name }
    }

    /// Every tensor, in no particular order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.entries.iter().map(|entry| &entry.info)
    }

    /// The tensor with this name.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.entries[index].info)
    }

    /// Reads a tensor into `out`, row-major, as f32. Memory besides `out` stays below 1 MiB unless it is stored
    /// with strides.
    ///
    /// # Errors
    /// Unknown name, another element count, an element type that is no float, or a failed read.
    pub fn read_f32(&self, name: &str, out: &mut [f32]) -> Result<(), WeightsError> {
        let entry = self.by_name.get(name).map(|&index| &self.entries[index]);
        let entry = entry.ok_or_else(|| WeightsError::UnknownTensor {
            name: name.to_owned(),
            origin: self.origin.clone(),
        })?;
        entry.read_f32(&self.files[entry.file], out)
    }

    /// Position of a tensor in the files, to read many in the order they are stored.
    pub(super) fn position(&self, name: &str) -> (usize, u64) {
        self.by_name
            .get(name)
            .map_or((usize::MAX, 0), |&index| (self.entries[index].file, self.entries[index].start))
    }

    /// Names the file or the shard index, for messages.
    pub fn describe(&self) -> &str {
        &self.origin
    }
}

fn open_one(path: &Path, file_idx: usize) -> Result<(OpenFile, Vec<Entry>), WeightsError> {
    let file = OpenFile::open(path)?;
    let is_safetensors = path.extension().is_some_and(|extension| extension == "safetensors");
    let read = if is_safetensors { safetensors_read::entries } else { torch_read::entries };
    let entries = read(&file, file_idx)?;
    Ok((file, entries))
}

/// Reads which shard holds which tensor.
///
/// # Errors
/// A file that can't be read or is no shard index.
pub fn read_index(path: &Path) -> Result<BTreeMap<String, String>, WeightsError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let wrong = |reason: String| WeightsError::Index { path: path.to_owned(), reason };
    let file = OpenFile::open(path)?;
    if file.len > MAX_SHARD_INDEX_BYTES {
        return Err(wrong(format!(
            "it has {} bytes, more than the limit of {MAX_SHARD_INDEX_BYTES}",
            file.len
        )));
    }
    let mut text = vec![0; file.len as usize];
    file.read_at(0, &mut text)?;
    let index: Index = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    if index.weight_map.is_empty() {
        return Err(wrong("weight_map is empty".into()));
    }
    Ok(index.weight_map)
}

/// Tells whether `name` is a file name and nothing more: no folder, no way up.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(part)), None) if part == name)
}
