//! Finds the tensors of a PyTorch zip file (`pytorch_model.bin`).
//!
//! The zip directory says where the storages lie, the pickle says how tensors use them. Every range is checked
//! against the file before anything is read; entry names are looked up, never used as paths.

use std::collections::HashMap;

use muster_proto::limits::MAX_ZIP_ENTRIES;
use zip::{CompressionMethod, ZipArchive};

use super::dtype::StoredDtype;
use super::entry::{Entry, OpenFile, TensorInfo};
use super::error::WeightsError;
use super::pickle::{self, MAX_PICKLE_BYTES, TensorRecord};

#[derive(Debug, Clone, Copy)]
struct Place {
    start: u64,
    len: u64,
}

/// Lists the tensors of `file`, the `file_idx`-th of the model.
pub(super) fn entries(file: &OpenFile, file_idx: usize) -> Result<Vec<Entry>, WeightsError> {
    let mut magic = [0; 4];
    if file.len < 4 || file.read_at(0, &mut magic).is_err() || &magic[..2] != b"PK" {
        return Err(WeightsError::NotZip { path: file.path.clone() });
    }
    let container = |reason: String| WeightsError::Container { path: file.path.clone(), reason };
    let places = directory(file).map_err(container)?;
    let root = root(&places).map_err(container)?;
    if let Some(order) = places.get(&format!("{root}byteorder")) {
        let mut text = vec![0; order.len.min(16) as usize];
        file.read_at(order.start, &mut text)?;
        if text != b"little" {
            return Err(container("its numbers are not stored little-endian".into()));
        }
    }
    let table = places[&format!("{root}data.pkl")];
    if table.len > MAX_PICKLE_BYTES as u64 {
        return Err(container(format!(
            "data.pkl has {} bytes, more than the limit of {MAX_PICKLE_BYTES}",
            table.len
        )));
    }
    let mut bytes = vec![0; table.len as usize];
    file.read_at(table.start, &mut bytes)?;
    let records = pickle::read_state_dict(&bytes)
        .map_err(|source| WeightsError::Pickle { path: file.path.clone(), source })?;
    let mut declared: HashMap<String, (StoredDtype, u64)> = HashMap::new();
    records
        .into_iter()
        .map(|record| {
            let storage = &record.storage;
            let first = *declared.entry(storage.key.clone()).or_insert((storage.dtype, storage.numel));
            if first != (storage.dtype, storage.numel) {
                return Err(container(format!(
                    "storage `{}` is declared with two types or sizes",
                    storage.key
                )));
            }
            let place = places.get(&format!("{root}data/{}", storage.key)).copied();
            entry(record, place, file_idx).map_err(container)
        })
        .collect()
}

/// Reads the zip directory: where the bytes of each entry lie.
fn directory(file: &OpenFile) -> Result<HashMap<String, Place>, String> {
    let handle = file.file.try_clone().map_err(|error| error.to_string())?;
    let mut zip = ZipArchive::new(std::io::BufReader::new(handle)).map_err(|error| error.to_string())?;
    if zip.len() > MAX_ZIP_ENTRIES {
        return Err(format!("it has {} entries, more than the limit of {MAX_ZIP_ENTRIES}", zip.len()));
    }
    let mut places = HashMap::with_capacity(zip.len());
    for index in 0..zip.len() {
        let entry = zip.by_index_raw(index).map_err(|error| error.to_string())?;
        let name = entry.name().map_err(|error| error.to_string())?.into_owned();
        if entry.encrypted()
            || entry.compression() != CompressionMethod::Stored
            || entry.size() != entry.compressed_size()
        {
            return Err(format!("entry `{name}` is compressed or encrypted"));
        }
        let start = entry.data_start().ok_or_else(|| format!("entry `{name}` has no data"))?;
        let end = start.checked_add(entry.size());
        if end.is_none_or(|end| end > file.len) {
            return Err(format!("entry `{name}` ends behind the end of the file; the file is truncated"));
        }
        let place = Place { start, len: entry.size() };
        if places.insert(name.clone(), place).is_some() {
            return Err(format!("entry `{name}` occurs twice"));
        }
    }
    refuse_overlaps(&places)?;
    Ok(places)
}

fn refuse_overlaps(places: &HashMap<String, Place>) -> Result<(), String> {
    let mut sorted: Vec<_> = places.iter().filter(|(_, place)| place.len > 0).collect();
    sorted.sort_by_key(|(_, place)| place.start);
    for pair in sorted.windows(2) {
        let ((first, a), (second, b)) = (pair[0], pair[1]);
        if a.start + a.len > b.start {
            return Err(format!("entries `{first}` and `{second}` overlap"));
        }
    }
    Ok(())
}

/// The folder inside the zip that all entries share, e.g. `archive/`.
fn root(places: &HashMap<String, Place>) -> Result<String, String> {
    let mut roots = places.keys().filter_map(|name| name.strip_suffix("data.pkl"));
    match (roots.next(), roots.next()) {
        (Some(root), None) => Ok(root.to_owned()),
        (None, _) => Err("it has no data.pkl".into()),
        (Some(_), Some(_)) => Err("it has more than one data.pkl".into()),
    }
}

/// Checks a tensor against its storage and the storage against the zip entry.
fn entry(record: TensorRecord, place: Option<Place>, file_idx: usize) -> Result<Entry, String> {
    let TensorRecord { name, storage, offset, shape, strides } = record;
    let place =
        place.ok_or_else(|| format!("tensor `{name}` needs storage `{}`, which is missing", storage.key))?;
    let size = storage.dtype.size_bytes() as u64;
    if storage.numel.checked_mul(size).is_none_or(|bytes| bytes > place.len) {
        return Err(format!(
            "storage `{}` claims {} elements of {}, its entry holds {} bytes",
            storage.key, storage.numel, storage.dtype, place.len
        ));
    }
    let elements = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
    let elements = elements.ok_or_else(|| format!("tensor `{name}` has the impossible shape {shape:?}"))?;
    let last = shape.iter().zip(&strides).try_fold(offset, |last, (&size, &stride)| {
        let step = (size.saturating_sub(1) as u64).checked_mul(stride as u64)?;
        last.checked_add(step)
    });
    let outside = elements > 0 && last.is_none_or(|last| last >= storage.numel);
    if outside || offset > storage.numel {
        return Err(format!(
            "tensor `{name}` of shape {shape:?}, strides {strides:?} and offset {offset} leaves its storage of {} elements",
            storage.numel
        ));
    }
    let strides = if elements == 0 || is_row_major(&shape, &strides) { None } else { Some(strides) };
    let start = place.start + offset * size;
    Ok(Entry { info: TensorInfo { name, shape, dtype: storage.dtype }, file: file_idx, start, strides })
}

fn is_row_major(shape: &[usize], strides: &[usize]) -> bool {
    let mut expected = 1;
    shape.iter().zip(strides).rev().all(|(&size, &stride)| {
        let fits = size <= 1 || stride == expected;
        expected *= size;
        fits
    })
}
