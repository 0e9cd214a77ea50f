//! Element types found in weight files.

use std::fmt;

/// Element type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoredDtype {
    /// 32-bit float.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 64-bit float.
    F64,
    /// Anything else (integers, bools, 8-bit floats): its name and bytes per element.
    Other(&'static str, usize),
}

impl StoredDtype {
    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::F64 => 8,
            Self::Other(_, size) => size,
        }
    }

    /// Tells whether it reads as f32; f16 and bf16 do so exactly, f64 is rounded.
    pub fn is_float(self) -> bool {
        !matches!(self, Self::Other(..))
    }
}

impl fmt::Display for StoredDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
            Self::Other(name, _) => name,
        })
    }
}
