//! The operations of a reduction, and what element types mean to it.

use muster_kernels::reduce::ReduceOp;
pub use muster_kernels::reduce::{Number as Element, NumberType as DataType};

/// The type in which sums of a type are kept, and in which partial sums travel.
pub(crate) fn accumulator(dtype: DataType) -> DataType {
    match dtype {
        DataType::F32 | DataType::Bf16 | DataType::F16 => DataType::F32,
        other => other,
    }
}

/// How contributions are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// `SUM w_i x_i`; integers wrap.
    Sum,
    /// `SUM w_i x_i / SUM w_i`; floats only.
    Mean,
    /// The least; weights only tell who takes part.
    Min,
    /// The greatest; weights only tell who takes part.
    Max,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Mean, Self::Min, Self::Max];

    /// The name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
        }
    }

    /// What the kernels do for it; a mean is a sum with a divisor.
    pub(crate) const fn reduction(self) -> ReduceOp {
        match self {
            Self::Sum | Self::Mean => ReduceOp::Sum,
            Self::Min => ReduceOp::Min,
            Self::Max => ReduceOp::Max,
        }
    }
}
