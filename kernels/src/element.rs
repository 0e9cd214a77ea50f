//! Storage types of activations and weights. Arithmetic is always f32.

use half::bf16;

/// A storage type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// bfloat16: eight exponent bits, seven fraction bits.
    Bf16,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// A number as it is stored; `from_f32` rounds to nearest even.
pub trait Element: bytemuck::Pod + Send + Sync + 'static {
    /// Which storage type this is.
    const DTYPE: DType;
    /// Widens to f32; exact.
    fn to_f32(self) -> f32;
    /// Rounds to the storage type, to nearest even.
    fn from_f32(x: f32) -> Self;
    /// The slice itself where the storage is f32.
    fn as_f32(s: &[Self]) -> Option<&[f32]>;
    /// The slice itself where the storage is f32.
    fn as_f32_mut(s: &mut [Self]) -> Option<&mut [f32]>;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
    fn as_f32(s: &[Self]) -> Option<&[f32]> {
        Some(s)
    }
    fn as_f32_mut(s: &mut [Self]) -> Option<&mut [f32]> {
        Some(s)
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        // A NaN stays a NaN: adding to its payload could carry into infinity.
        let quiet = (bits >> 16) | 0x40;
        Self::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
    }
    fn as_f32(_: &[Self]) -> Option<&[f32]> {
        None
    }
    fn as_f32_mut(_: &mut [Self]) -> Option<&mut [f32]> {
        None
    }
}
