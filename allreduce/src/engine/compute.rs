//! The arithmetic of an operation: reductions, and conversions between memory and wire.

use half::{bf16, f16};
use muster_kernels::isa::Isa;
use muster_kernels::reduce::{Number, NumberType, ReduceOp, reduce};

/// A reduction over byte slices.
pub(super) struct Job<'a> {
    pub isa: Isa,
    pub op: ReduceOp,
    pub nodes: &'a [usize],
    /// Parts, none where a rank takes no part.
    pub parts: &'a [Option<&'a [u8]>],
    pub weights: &'a [f32],
    pub divisor: Option<f32>,
}

impl Job<'_> {
    /// Reduces parts of type `from` into `out`, of type `to`: the same type, or one of the two is the accumulator
    /// of the other.
    ///
    /// # Panics
    /// With other pairs of types: the caller only has those.
    pub fn run(&self, from: NumberType, to: NumberType, out: &mut [u8]) {
        use NumberType as N;
        match (from, to) {
            (N::F32, N::F32) => self.typed::<f32, f32>(out),
            (N::F64, N::F64) => self.typed::<f64, f64>(out),
            (N::Bf16, N::Bf16) => self.typed::<bf16, bf16>(out),
            (N::F16, N::F16) => self.typed::<f16, f16>(out),
            (N::I32, N::I32) => self.typed::<i32, i32>(out),
            (N::I64, N::I64) => self.typed::<i64, i64>(out),
            (N::Bf16, N::F32) => self.typed::<bf16, f32>(out),
            (N::F16, N::F32) => self.typed::<f16, f32>(out),
            (N::F32, N::Bf16) => self.typed::<f32, bf16>(out),
            (N::F32, N::F16) => self.typed::<f32, f16>(out),
            _ => unreachable!("{from:?} does not accumulate in {to:?} nor the other way round"),
        }
    }

    fn typed<I: Number, O: Number<Acc = I::Acc>>(&self, out: &mut [u8]) {
        let out: &mut [O] = bytemuck::cast_slice_mut(out);
        let parts: Vec<Option<&[I]>> = self.parts.iter().map(|p| p.map(bytemuck::cast_slice)).collect();
        reduce(self.isa, self.op, self.nodes, &parts, self.weights, self.divisor, out);
    }
}

/// Converts elements; narrowing rounds to nearest even.
pub(super) fn convert(isa: Isa, from: NumberType, to: NumberType, source: &[u8], out: &mut [u8]) {
    if from == to {
        return out.copy_from_slice(source);
    }
    let parts = [Some(source)];
    Job { isa, op: ReduceOp::Max, nodes: &[1], parts: &parts, weights: &[1.0], divisor: None }
        .run(from, to, out);
}
