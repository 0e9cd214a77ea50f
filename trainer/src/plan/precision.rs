//! Storage type of weights and activations.

use muster_kernels::DType;
use muster_proto::run_spec::Precision;

use super::CpuFacts;

/// The chosen storage type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrecisionChoice {
    /// What weights and activations are stored in.
    pub dtype: DType,
    /// Why.
    pub reason: String,
    /// What is wrong with a forced choice, if anything is.
    pub warning: Option<String>,
}

/// Chooses bf16 only where the kernels that run multiply it natively, unless the run file forces it.
pub fn choose(wanted: Precision, cpu: &CpuFacts) -> PrecisionChoice {
    let emulated = match (cpu.best.as_str(), cpu.kernels.as_str()) {
        (best, kernels) if best == kernels => format!("this CPU's {kernels} has no bf16 products"),
        (best, kernels) => {
            format!("{kernels} kernels run (the CPU has {best}) and they have no bf16 products")
        }
    };
    match wanted {
        Precision::F32 => {
            PrecisionChoice { dtype: DType::F32, reason: "train.precision".into(), warning: None }
        }
        Precision::Bf16 => PrecisionChoice {
            dtype: DType::Bf16,
            reason: "train.precision".into(),
            warning: cpu
                .bf16_is_emulated
                .then(|| format!("{emulated}: bf16 is widened to f32, slower than precision = \"f32\"")),
        },
        Precision::Auto if cpu.bf16_is_emulated => PrecisionChoice {
            dtype: DType::F32,
            reason: format!("{emulated}; bf16 would be emulated"),
            warning: None,
        },
        Precision::Auto => PrecisionChoice {
            dtype: DType::Bf16,
            reason: format!("{} multiplies bf16 natively; sums and the optimizer stay f32", cpu.kernels),
            warning: None,
        },
    }
}
