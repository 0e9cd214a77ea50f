//! The products themselves, from the `gemm` crate, on the instruction set that the pool says.
//!
//! The crate's own entry point takes the best instruction set of the CPU. A cap has to hold for products too, so the
//! capped levels instantiate the crate's generic driver with its AVX2 or scalar micro-kernels.

use gemm_common::gemm::gemm_basic_generic;
#[cfg(target_arch = "x86_64")]
use gemm_common::simd::V3;
use gemm_common::simd::{MixedSimd, Scalar};
use gemm_f32::microkernel;

use super::{Mat, MatMut, Store, Write};
use crate::isa::{Cpu, Isa};

/// Instruction set and threads of a product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) isa: Isa,
    pub(crate) parallelism: gemm::Parallelism,
}

/// Pointers and strides of one product, all inside their slices.
struct Operands {
    sizes: (usize, usize, usize),
    c: *mut f32,
    c_row_stride: isize,
    a: *const f32,
    a_strides: (isize, isize),
    b: *const f32,
    b_strides: (isize, isize),
    store: Store,
}

/// C (+)= factor * A B in f32.
pub(crate) fn product(how: How, a: Mat<'_, f32>, b: Mat<'_, f32>, c: MatMut<'_>, store: Store) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!(k, b.rows, "the inner sizes of ({m}, {k}) and ({}, {n}) must agree", b.rows);
    a.check();
    b.check();
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        m == 1 || c.row_stride >= n,
        "rows of the result overlap: stride {} for {n} columns",
        c.row_stride
    );
    assert!((m - 1) * c.row_stride + n <= c.data.len(), "the result ({m}, {n}) is outside of its slice");
    let signed = |x: usize| isize::try_from(x).expect("a slice is never longer than isize::MAX");
    let operands = Operands {
        sizes: (m, n, k),
        c: c.data.as_mut_ptr(),
        c_row_stride: signed(c.row_stride),
        a: a.data.as_ptr(),
        a_strides: (signed(a.row_stride), signed(a.col_stride)),
        b: b.data.as_ptr(),
        b_strides: (signed(b.row_stride), signed(b.col_stride)),
        store,
    };
    let usable = how.isa.min(Cpu::here().best());
    // SAFETY: all (i, j) of A, B and C are inside their slices by the checks above; C is borrowed mutably, so it
    // overlaps neither A nor B, and its rows do not overlap each other, so no two threads write one element. The
    // instruction set is one that this CPU has.
    unsafe {
        match usable {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2(&operands, how.parallelism),
            Isa::Scalar => scalar(&operands, how.parallelism),
            _ => best(&operands, how.parallelism),
        }
    }
}

/// The crate's own choice: the best of this CPU, up to AVX-512.
///
/// # Safety
/// Every element that the operands describe is valid, and C aliases nothing.
unsafe fn best(o: &Operands, parallelism: gemm::Parallelism) {
    let (m, n, k) = o.sizes;
    // SAFETY: the caller's promise.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            o.c,
            1,
            o.c_row_stride,
            o.store.write == Write::Add,
            o.a,
            o.a_strides.1,
            o.a_strides.0,
            o.b,
            o.b_strides.1,
            o.b_strides.0,
            1.0,
            o.store.factor,
            false,
            false,
            false,
            parallelism,
        );
    }
}

macro_rules! level {
    ($(#[$doc:meta])* $name:ident, $simd:ty, $width:expr, $kernels:path) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Every element that the operands describe is valid, C aliases nothing, and the CPU has the instructions.
        unsafe fn $name(o: &Operands, parallelism: gemm::Parallelism) {
            use $kernels::{H_M, H_N, H_UKR, MR_DIV_N, NR, UKR};
            let simd = <$simd as MixedSimd<f32, f32, f32, f32>>::try_new().expect("the CPU was asked before");
            let (m, n, k) = o.sizes;
            // The driver wants columns of C to be contiguous: compute the transpose, C' = B' A'.
            // SAFETY: the caller's promise.
            unsafe {
                gemm_basic_generic::<$simd, f32, { $width }, { MR_DIV_N * $width }, NR, MR_DIV_N, H_M, H_N>(
                    simd,
                    n,
                    m,
                    k,
                    o.c,
                    o.c_row_stride,
                    1,
                    o.store.write == Write::Add,
                    o.b,
                    o.b_strides.0,
                    o.b_strides.1,
                    o.a,
                    o.a_strides.0,
                    o.a_strides.1,
                    1.0,
                    o.store.factor,
                    false,
                    false,
                    false,
                    |a, b, c| a * b + c,
                    &UKR,
                    &H_UKR,
                    false,
                    parallelism,
                );
            }
        }
    };
}

level!(/// Baseline instructions.
    scalar, Scalar, 1, microkernel::scalar::f32);
#[cfg(target_arch = "x86_64")]
level!(/// AVX2 with FMA.
    avx2, V3, 8, microkernel::fma::f32);
