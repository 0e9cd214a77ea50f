//! One tensor in one file, and how its elements are read as f32.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::dtype::StoredDtype;
use super::error::WeightsError;

/// Elements converted at a time: the only memory that reading needs besides the destination.
const CHUNK: usize = 128 * 1024;
/// A strided tensor may span at most this many times its own elements.
const MAX_STRIDE_WASTE: usize = 4;

/// Name, shape and element type of a stored tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Shape as stored.
    pub shape: Vec<usize>,
    /// Element type as stored.
    pub dtype: StoredDtype,
}

/// A tensor and where its bytes are.
#[derive(Debug)]
pub(super) struct Entry {
    pub info: TensorInfo,
    /// Index of the file in `WeightFiles`.
    pub file: usize,
    /// Byte of the file where element 0 starts.
    pub start: u64,
    /// Strides in elements, unless the elements lie one after the other.
    pub strides: Option<Vec<usize>>,
}

impl Entry {
    /// Elements of the tensor. Readers check that the product of the shape does not overflow.
    pub fn elements(&self) -> usize {
        self.info.shape.iter().product()
    }

    /// Fills `out` with the elements in row-major order.
    pub fn read_f32(&self, file: &OpenFile, out: &mut [f32]) -> Result<(), WeightsError> {
        if !self.info.dtype.is_float() {
            return Err(WeightsError::Dtype {
                path: file.path.clone(),
                name: self.info.name.clone(),
                dtype: self.info.dtype,
            });
        }
        if out.len() != self.elements() {
            let name = self.info.name.clone();
            return Err(WeightsError::Length { name, stored: self.elements(), wanted: out.len() });
        }
        match &self.strides {
            None => read_run(file, self.info.dtype, self.start, out),
            Some(strides) => self.read_strided(file, strides, out),
        }
    }

    fn read_strided(&self, file: &OpenFile, strides: &[usize], out: &mut [f32]) -> Result<(), WeightsError> {
        if out.is_empty() {
            return Ok(());
        }
        let shape = &self.info.shape;
        let span = 1 + shape.iter().zip(strides).map(|(&size, &stride)| (size - 1) * stride).sum::<usize>();
        if span > out.len().saturating_mul(MAX_STRIDE_WASTE).max(CHUNK) {
            let (path, name) = (file.path.clone(), self.info.name.clone());
            return Err(WeightsError::Strided { path, name, elements: out.len(), span });
        }
        let mut stored = vec![0.0; span];
        read_run(file, self.info.dtype, self.start, &mut stored)?;
        let mut index = vec![0; shape.len()];
        let mut position = 0;
        for value in out {
            *value = stored[position];
            for dim in (0..shape.len()).rev() {
                index[dim] += 1;
                position += strides[dim];
                if index[dim] < shape[dim] {
                    break;
                }
                position -= strides[dim] * shape[dim];
                index[dim] = 0;
            }
        }
        Ok(())
    }
}

/// A weight file and its path, for messages.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub path: PathBuf,
    pub file: File,
    pub len: u64,
}

impl OpenFile {
    /// Opens a weight file and refuses Git LFS pointers.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let io = |action| move |source| WeightsError::Io { action, path: path.to_owned(), source };
        let file = File::open(path).map_err(io("open"))?;
        let len = file.metadata().map_err(io("open"))?.len();
        let opened = Self { path: path.to_owned(), file, len };
        const POINTER: &[u8] = b"version https://git-lfs";
        if len >= POINTER.len() as u64 && len < 1024 {
            let mut head = [0; POINTER.len()];
            opened.read_at(0, &mut head)?;
            if head == POINTER {
                return Err(WeightsError::LfsPointer { path: opened.path });
            }
        }
        Ok(opened)
    }

    /// Fills `out` from byte `start` on.
    pub fn read_at(&self, start: u64, out: &mut [u8]) -> Result<(), WeightsError> {
        self.file.read_exact_at(out, start).map_err(|source| WeightsError::Io {
            action: "read",
            path: self.path.clone(),
            source,
        })
    }
}

/// Reads consecutive elements from byte `start` on.
fn read_run(file: &OpenFile, dtype: StoredDtype, start: u64, out: &mut [f32]) -> Result<(), WeightsError> {
    match dtype {
        StoredDtype::F32 => file.read_at(start, bytemuck::cast_slice_mut(out)),
        StoredDtype::F16 => convert::<f16>(file, start, out, |from, to| from.convert_to_f32_slice(to)),
        StoredDtype::Bf16 => convert::<bf16>(file, start, out, |from, to| from.convert_to_f32_slice(to)),
        StoredDtype::F64 => convert::<f64>(file, start, out, |from, to| {
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = from as f32);
        }),
        StoredDtype::Other(..) => unreachable!("only float tensors are read"),
    }
}

fn convert<S: bytemuck::Pod>(
    file: &OpenFile,
    start: u64,
    out: &mut [f32],
    widen: impl Fn(&[S], &mut [f32]),
) -> Result<(), WeightsError> {
    let mut buffer = vec![S::zeroed(); out.len().min(CHUNK)];
    let mut at = start;
    for part in out.chunks_mut(CHUNK) {
        let stored = &mut buffer[..part.len()];
        file.read_at(at, bytemuck::cast_slice_mut(stored))?;
        widen(stored, part);
        at += size_of_val(stored) as u64;
    }
    Ok(())
}
