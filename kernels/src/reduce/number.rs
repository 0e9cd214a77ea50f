//! The element types of a reduction, and the type each is accumulated in.

use half::{bf16, f16};

/// Name of an element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NumberType {
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// 32-bit integer; sums wrap.
    I32,
    /// 64-bit integer; sums wrap.
    I64,
}

impl NumberType {
    /// Every type.
    pub const ALL: [Self; 6] = [Self::F32, Self::F64, Self::Bf16, Self::F16, Self::I32, Self::I64];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Whether it is an integer type: weights other than 0 and 1, and means, are not defined for it.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I32 | Self::I64)
    }

    /// The name as in Rust.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }
}

impl std::fmt::Display for NumberType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// What numbers are accumulated in.
pub trait Accumulator: bytemuck::Pod + PartialOrd + Send + Sync + std::fmt::Debug {
    /// Identity of the sum.
    const ZERO: Self;
    /// Identity of the maximum.
    const LOWEST: Self;
    /// Identity of the minimum.
    const HIGHEST: Self;
    /// Sum, rounded once; integers wrap.
    fn plus(self, other: Self) -> Self;
    /// Product with a weight; for integers the number itself.
    fn weighted(self, weight: f32) -> Self;
    /// Product with the exact inverse of a divisor; for integers the number itself.
    fn times(self, inverse: f32) -> Self;
    /// Quotient; for integers the number itself.
    fn over(self, divisor: f32) -> Self;
    /// Whether it is not a number; integers always are.
    fn is_nan(self) -> bool;
    /// The number itself, or the one quiet NaN that results hold: which operand's payload a sum of two NaN
    /// keeps depends on the order of registers.
    fn canonical(self) -> Self;
}

macro_rules! float {
    ($t:ident, $from:expr) => {
        impl Accumulator for $t {
            const ZERO: Self = 0.0;
            const LOWEST: Self = $t::NEG_INFINITY;
            const HIGHEST: Self = $t::INFINITY;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn weighted(self, weight: f32) -> Self {
                self * $from(weight)
            }
            #[inline(always)]
            fn times(self, inverse: f32) -> Self {
                self * $from(inverse)
            }
            #[inline(always)]
            fn over(self, divisor: f32) -> Self {
                self / $from(divisor)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $t::is_nan(self)
            }
            #[inline(always)]
            fn canonical(self) -> Self {
                if $t::is_nan(self) { $t::NAN } else { self }
            }
        }
    };
}
float!(f32, std::convert::identity);
float!(f64, f64::from);

macro_rules! integer {
    ($t:ident) => {
        impl Accumulator for $t {
            const ZERO: Self = 0;
            const LOWEST: Self = $t::MIN;
            const HIGHEST: Self = $t::MAX;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn weighted(self, _: f32) -> Self {
                self
            }
            #[inline(always)]
            fn times(self, _: f32) -> Self {
                self
            }
            #[inline(always)]
            fn over(self, _: f32) -> Self {
                self
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
            #[inline(always)]
            fn canonical(self) -> Self {
                self
            }
        }
    };
}
integer!(i32);
integer!(i64);

/// An element of a reduction.
pub trait Number: bytemuck::Pod + Send + Sync + PartialEq + std::fmt::Debug + 'static {
    /// What it is accumulated in: f32 for the three small floats, itself otherwise.
    type Acc: Accumulator;
    /// Which type this is.
    const TYPE: NumberType;
    /// Widens; exact.
    fn widen(self) -> Self::Acc;
    /// Rounds to nearest even; every NaN becomes the same one.
    fn narrow(acc: Self::Acc) -> Self;
    /// Whether two neighbours are best taken out of one word and put back: types of half a word then need no
    /// shuffles, which are what limits loops over them.
    const PAIRED: bool = false;
    /// Widens the first of two neighbours.
    #[doc(hidden)]
    #[inline(always)]
    fn first(_word: u32) -> Self::Acc {
        Self::Acc::ZERO
    }
    /// Widens the second of two neighbours.
    #[doc(hidden)]
    #[inline(always)]
    fn second(_word: u32) -> Self::Acc {
        Self::Acc::ZERO
    }
    /// Narrows two neighbours.
    #[doc(hidden)]
    #[inline(always)]
    fn pack(_first: Self::Acc, _second: Self::Acc) -> u32 {
        0
    }
}

macro_rules! itself {
    ($t:ident, $name:ident) => {
        impl Number for $t {
            type Acc = $t;
            const TYPE: NumberType = NumberType::$name;
            #[inline(always)]
            fn widen(self) -> $t {
                self
            }
            #[inline(always)]
            fn narrow(acc: $t) -> $t {
                acc.canonical()
            }
        }
    };
}
itself!(f32, F32);
itself!(f64, F64);
itself!(i32, I32);
itself!(i64, I64);

impl Number for bf16 {
    type Acc = f32;
    const TYPE: NumberType = NumberType::Bf16;
    const PAIRED: bool = cfg!(target_endian = "little");
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(acc: f32) -> Self {
        Self::from_bits((round_bf16(acc) >> 16) as u16)
    }
    #[inline(always)]
    fn first(word: u32) -> f32 {
        f32::from_bits(word << 16)
    }
    #[inline(always)]
    fn second(word: u32) -> f32 {
        f32::from_bits(word & 0xffff_0000)
    }
    #[inline(always)]
    fn pack(first: f32, second: f32) -> u32 {
        round_bf16(first) >> 16 | round_bf16(second) & 0xffff_0000
    }
}

/// Rounds to the upper half of a word; the lower half is noise.
#[inline(always)]
fn round_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    if x.is_nan() { 0x7fc0_0000 } else { rounded }
}

/// Written with integers, because the conversions of `half` ask for the CPU's features once per number, and no
/// loop over them becomes vector code.
impl Number for f16 {
    type Acc = f32;
    const TYPE: NumberType = NumberType::F16;
    const PAIRED: bool = cfg!(target_endian = "little");
    #[inline(always)]
    fn widen(self) -> f32 {
        widen_f16(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(acc: f32) -> Self {
        Self::from_bits(round_f16(acc) as u16)
    }
    #[inline(always)]
    fn first(word: u32) -> f32 {
        widen_f16(word << 16)
    }
    #[inline(always)]
    fn second(word: u32) -> f32 {
        widen_f16(word & 0xffff_0000)
    }
    #[inline(always)]
    fn pack(first: f32, second: f32) -> u32 {
        round_f16(first) | round_f16(second) << 16
    }
}

/// Widens the half in the upper half of a word.
#[inline(always)]
fn widen_f16(bits: u32) -> f32 {
    let (sign, rest) = (bits & 0x8000_0000, bits >> 3 & 0x0fff_e000);
    // Exponents have another bias; the product also makes subnormal halves normal. Infinities and NaN keep the
    // largest exponent.
    let scaled = (f32::from_bits(rest) * f32::from_bits((254 - 15) << 23)).to_bits();
    let special = rest | 0x7f80_0000;
    f32::from_bits(sign | if rest >= 0x7c00 << 13 { special } else { scaled })
}

/// Rounds to a half in the lower half of a word.
#[inline(always)]
fn round_f16(x: f32) -> u32 {
    let bits = x.to_bits();
    let (sign, rest) = (bits >> 16 & 0x8000, bits & 0x7fff_ffff);
    // Adding 1/2 makes the unit in the last place that of a subnormal half (2^-24), rounded as f32 sums are.
    let subnormal = (f32::from_bits(rest) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let normal = rest.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + (rest >> 13 & 1)) >> 13;
    let finite = if rest < 113 << 23 { subnormal } else { normal };
    // From 65520 on, rounding gives infinity.
    let number = sign | if rest >= 0x477f_f000 { 0x7c00 } else { finite };
    if x.is_nan() { 0x7e00 } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_and_narrows_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let x = f16::from_bits(bits);
            let wide = x.widen();
            if x.is_nan() {
                assert!(wide.is_nan());
                assert_eq!(f16::narrow(wide).to_bits(), 0x7e00);
                continue;
            }
            assert_eq!(wide.to_bits(), x.to_f32().to_bits(), "{bits:#x}");
            assert_eq!(f16::narrow(wide).to_bits(), bits);
            // Midpoints to both neighbours, and a hair beside them.
            for near in [wide * (1.0 + 1.0 / 2048.0), wide * (1.0 - 1.0 / 4096.0), wide + 2.98e-8, wide * 1.7]
            {
                for step in [-1_i32, 0, 1] {
                    let y = f32::from_bits(near.to_bits().wrapping_add_signed(step));
                    if !y.is_nan() {
                        let want = f16::from_f32_const(y).to_bits();
                        assert_eq!(f16::narrow(y).to_bits(), want, "{y:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_nan_becomes_one() {
        let odd = f32::from_bits(0xffa1_2345);
        assert_eq!(f32::narrow(odd).to_bits(), f32::NAN.to_bits());
        assert_eq!(bf16::narrow(odd).to_bits(), 0x7fc0);
        assert_eq!(f16::narrow(odd).to_bits(), 0x7e00);
    }
}
