//! The kernel of the baseline: plain Rust, a separate multiply and add.

const MR: usize = 4;
const NR: usize = 8;

/// # Safety
/// See `Run`.
pub(super) unsafe fn f32_4x8(depth: usize, a: *const f32, b: *const f32, c: *mut f32, first: bool) {
    // SAFETY: the sizes are the caller's promise.
    let (a, b, c) = unsafe {
        (
            std::slice::from_raw_parts(a, MR * depth),
            std::slice::from_raw_parts(b, NR * depth),
            std::slice::from_raw_parts_mut(c, MR * NR),
        )
    };
    let mut sums = [[0.0_f32; NR]; MR];
    for (a, b) in a.chunks_exact(MR).zip(b.chunks_exact(NR)) {
        for i in 0..MR {
            for j in 0..NR {
                sums[i][j] += a[i] * b[j];
            }
        }
    }
    for (c, sum) in c.iter_mut().zip(sums.as_flattened()) {
        *c = if first { *sum } else { *c + sum };
    }
}
