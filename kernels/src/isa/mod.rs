//! Instruction sets: what the CPU has, what is used, and how a kernel reaches it.
//!
//! A kernel is a value that implements [`Kernel`]; its body is ordinary Rust, generic over a token of [`Simd`].
//! [`dispatch`] calls it inside a function compiled for the chosen instruction set, so that LLVM vectorises one
//! source for each of them. There is no `-C target-cpu`: one binary runs everywhere.

mod assume;
mod caches;
mod detect;

pub use assume::{assume_tiles, executable, tiles_assumed};
pub use caches::Caches;
pub use detect::{Cpu, Feature, Isa, ParseCapError, Report, detect, parse_cap, select, selected};

/// A token proving that the CPU executes the instructions it stands for.
pub trait Simd: Copy {
    /// Whether `mul_add` is one instruction.
    const FMA: bool;
    /// f32 lanes of a vector register.
    const LANES: usize;

    /// `a * b + c`, fused where that is one instruction. (An unfused `f32::mul_add` would be a library call.)
    #[inline(always)]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        if Self::FMA { a.mul_add(b, c) } else { a * b + c }
    }
}

macro_rules! token {
    ($(#[$doc:meta])* $name:ident, $fma:expr, $lanes:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name(());
        impl Simd for $name {
            const FMA: bool = $fma;
            const LANES: usize = $lanes;
        }
    };
}
token!(/// Token of the baseline.
    ScalarToken, false, 4);
token!(/// Token of AVX2 with FMA.
    Avx2Token, true, 8);
token!(/// Token of AVX-512 F, BW, VL and DQ.
    Avx512Token, true, 16);

/// An algorithm that [`dispatch`] compiles for each instruction set.
pub trait Kernel {
    /// What the algorithm returns.
    type Output;
    /// Runs the algorithm; implementations are `#[inline(always)]` and call only such functions in their loops.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs a kernel on an instruction set, lowered to what this CPU has.
#[inline]
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        // Detection is a load and a bit test after the first call.
        if isa >= Isa::Avx512
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("fma")
        {
            // SAFETY: every feature the function enables was detected just above.
            return unsafe { run_avx512(kernel) };
        }
        if isa >= Isa::Avx2 && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: every feature the function enables was detected just above.
            return unsafe { run_avx2(kernel) };
        }
    }
    let _ = isa;
    kernel.run(ScalarToken(()))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512Token(()))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2Token(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dispatch_never_exceeds_the_request() {
        struct Lanes;
        impl Kernel for Lanes {
            type Output = usize;
            #[inline(always)]
            fn run<S: Simd>(self, _: S) -> usize {
                S::LANES
            }
        }
        assert_eq!(dispatch(Isa::Scalar, Lanes), 4);
        assert!(dispatch(Isa::Avx2, Lanes) <= 8);
        assert!(dispatch(Isa::Amx, Lanes) <= 16);
    }
}
