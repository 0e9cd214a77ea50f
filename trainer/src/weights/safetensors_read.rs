//! Finds the tensors of a safetensors file; reads its header only.

use muster_proto::limits::MAX_TENSOR_HEADER_BYTES;
use safetensors::tensor::{Dtype, Metadata};

use super::dtype::StoredDtype;
use super::entry::{Entry, OpenFile, TensorInfo};
use super::error::WeightsError;

/// Lists the tensors of `file`, the `file_idx`-th of the model.
pub(super) fn entries(file: &OpenFile, file_idx: usize) -> Result<Vec<Entry>, WeightsError> {
    let wrong = |reason: String| WeightsError::Header { path: file.path.clone(), reason };
    if file.len < 8 {
        return Err(wrong(format!("the file has {} bytes", file.len)));
    }
    let mut prefix = [0; 8];
    file.read_at(0, &mut prefix)?;
    let header_bytes = u64::from_le_bytes(prefix);
    if header_bytes > MAX_TENSOR_HEADER_BYTES || header_bytes > file.len - 8 {
        return Err(wrong(format!(
            "it claims {header_bytes} bytes of header in a file of {} bytes",
            file.len
        )));
    }
    let mut header = vec![0; header_bytes as usize];
    file.read_at(8, &mut header)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| wrong(error.to_string()))?;
    let data_start = 8 + header_bytes;
    let expected = data_start.checked_add(metadata.data_len() as u64);
    if expected != Some(file.len) {
        return Err(wrong(format!(
            "it describes {} bytes of tensors, the file holds {}",
            metadata.data_len(),
            file.len - data_start
        )));
    }
    let list = metadata.tensors().into_iter().map(|(name, info)| Entry {
        info: TensorInfo { name, shape: info.shape.clone(), dtype: stored(info.dtype) },
        file: file_idx,
        start: data_start + info.data_offsets.0 as u64,
        strides: None,
    });
    Ok(list.collect())
}

fn stored(dtype: Dtype) -> StoredDtype {
    match dtype {
        Dtype::F32 => StoredDtype::F32,
        Dtype::F16 => StoredDtype::F16,
        Dtype::BF16 => StoredDtype::Bf16,
        Dtype::F64 => StoredDtype::F64,
        Dtype::I64 => StoredDtype::Other("i64", 8),
        Dtype::I32 => StoredDtype::Other("i32", 4),
        Dtype::U8 => StoredDtype::Other("u8", 1),
        Dtype::BOOL => StoredDtype::Other("bool", 1),
        _ => StoredDtype::Other("an unsupported type", 1),
    }
}
