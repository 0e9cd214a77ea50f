//! Writes safetensors files straight from arenas.
//!
//! The `safetensors` crate wants each tensor as one slice of bytes and gives no handle to sync and checksum; this
//! writer converts in small pieces and writes to any [`Write`], so neither a second copy nor a second pass is needed.

use std::io::{self, Write};

use half::bf16;
use half::slice::HalfFloatSliceExt;
use serde_json::{Map, Value, json};

/// Elements converted at a time.
const CHUNK: usize = 64 * 1024;

/// Element type of a file that Muster writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileDtype {
    /// 32-bit float: the master weights, bit by bit.
    F32,
    /// bfloat16, rounded to nearest even: half the size.
    Bf16,
}

impl FileDtype {
    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Name in `config.json` (`dtype`).
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::Bf16 => "bfloat16",
        }
    }

    fn safetensors_name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
        }
    }
}

/// A tensor to write.
#[derive(Debug, Clone, Copy)]
pub struct TensorOut<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// Shape; its product is the length of `data`.
    pub shape: &'a [usize],
    /// Elements, row-major.
    pub data: &'a [f32],
}

/// A safetensors file about to be written: the header is ready, so its size is known.
#[derive(Debug)]
pub struct SafetensorsWriter<'a> {
    tensors: Vec<TensorOut<'a>>,
    dtype: FileDtype,
    header: Vec<u8>,
}

impl<'a> SafetensorsWriter<'a> {
    /// Prepares a file with these tensors in this order.
    ///
    /// # Panics
    /// If the data of a tensor doesn't fill its shape.
    pub fn new(tensors: Vec<TensorOut<'a>>, dtype: FileDtype) -> Self {
        let mut header = Map::new();
        // transformers refuses files without it.
        header.insert("__metadata__".into(), json!({ "format": "pt" }));
        let mut end = 0;
        for tensor in &tensors {
            let count: usize = tensor.shape.iter().product();
            assert_eq!(count, tensor.data.len(), "`{}` must fill its shape {:?}", tensor.name, tensor.shape);
            let start = end;
            end += count * dtype.size_bytes();
            let info = json!({
                "dtype": dtype.safetensors_name(), "shape": tensor.shape, "data_offsets": [start, end],
            });
            header.insert(tensor.name.to_owned(), info);
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        Self { tensors, dtype, header }
    }

    /// Size of the file in bytes.
    pub fn len_bytes(&self) -> u64 {
        let data: usize = self.tensors.iter().map(|tensor| tensor.data.len() * self.dtype.size_bytes()).sum();
        (8 + self.header.len() + data) as u64
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&(self.header.len() as u64).to_le_bytes())?;
        out.write_all(&self.header)?;
        let mut rounded = vec![bf16::ZERO; if self.dtype == FileDtype::Bf16 { CHUNK } else { 0 }];
        for tensor in &self.tensors {
            match self.dtype {
                FileDtype::F32 => out.write_all(bytemuck::cast_slice(tensor.data))?,
                FileDtype::Bf16 => {
                    for part in tensor.data.chunks(CHUNK) {
                        let rounded = &mut rounded[..part.len()];
                        rounded.convert_from_f32_slice(part);
                        out.write_all(bytemuck::cast_slice(rounded))?;
                    }
                }
            }
        }
        Ok(())
    }
}
