//! Transposition of 32-bit words: f32, or pairs of bf16.

use crate::isa::{Cpu, Isa};

/// Rows of words at any byte address.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a> {
    pub(crate) bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub(crate) row_bytes: usize,
}

impl Words<'_> {
    #[inline(always)]
    fn get(&self, row: usize, col: usize) -> u32 {
        let at = row * self.row_bytes + 4 * col;
        u32::from_ne_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"))
    }
}

/// `out[c * stride + r] = words[r, c]` for a (rows, cols) matrix; other elements of `out` keep their value.
pub(crate) fn transpose(
    isa: Isa,
    words: Words<'_>,
    (rows, cols): (usize, usize),
    out: &mut [u32],
    stride: usize,
) {
    if rows == 0 || cols == 0 {
        return;
    }
    assert!((rows - 1) * words.row_bytes + 4 * cols <= words.bytes.len(), "words outside of their slice");
    assert!(
        rows <= stride && (cols - 1) * stride + rows <= out.len(),
        "transposed words outside of their slice"
    );
    let usable = isa.min(Cpu::here().best());
    #[cfg(target_arch = "x86_64")]
    if usable >= Isa::Avx2 {
        let (from, to) = (words.bytes.as_ptr(), out.as_mut_ptr());
        // SAFETY: all that is read and written is inside the slices by the assertions; the CPU has the instructions.
        unsafe {
            return match usable {
                Isa::Avx2 => x86::avx2(from, words.row_bytes, (rows, cols), to, stride),
                _ => x86::avx512(from, words.row_bytes, (rows, cols), to, stride),
            };
        }
    }
    let _ = usable;
    scalar(words, (0..rows, 0..cols), out, stride);
}

fn scalar(
    words: Words<'_>,
    (rows, cols): (std::ops::Range<usize>, std::ops::Range<usize>),
    out: &mut [u32],
    stride: usize,
) {
    for c in cols {
        for r in rows.clone() {
            out[c * stride + r] = words.get(r, c);
        }
    }
}

/// Squares in registers, for whoever knows that the CPU has the instructions ([`crate::attention`] too).
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    /// Transposes a square of 16 rows: `row(r, q)` is quarter q of row r, and `column(c, ..)` takes column c.
    ///
    /// # Safety
    /// The CPU has AVX-512 F.
    #[inline(always)]
    pub(crate) unsafe fn square16(
        row: impl Fn(usize, usize) -> __m128,
        mut column: impl FnMut(usize, __m512),
    ) {
        for q in 0..4 {
            // SAFETY: the caller's promise.
            let columns = unsafe {
                // Quarter q of rows r, r + 4, r + 8, r + 12 in one register: then all steps are within quarters.
                let four = |r: usize| {
                    let x = _mm512_castps128_ps512(row(r, q));
                    let x = _mm512_insertf32x4::<1>(x, row(r + 4, q));
                    let x = _mm512_insertf32x4::<2>(x, row(r + 8, q));
                    _mm512_insertf32x4::<3>(x, row(r + 12, q))
                };
                let (a, b, c, d) = (four(0), four(1), four(2), four(3));
                let (ab, ab2) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (cd, cd2) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                [
                    _mm512_shuffle_ps::<0x44>(ab, cd),
                    _mm512_shuffle_ps::<0xee>(ab, cd),
                    _mm512_shuffle_ps::<0x44>(ab2, cd2),
                    _mm512_shuffle_ps::<0xee>(ab2, cd2),
                ]
            };
            for (c, x) in columns.into_iter().enumerate() {
                column(4 * q + c, x);
            }
        }
    }

    /// Transposes a square of 8 rows: `row(r)` is row r, and `column(c, ..)` takes column c.
    ///
    /// # Safety
    /// The CPU has AVX2.
    #[inline(always)]
    pub(crate) unsafe fn square8(row: impl Fn(usize) -> __m256, mut column: impl FnMut(usize, __m256)) {
        for half in 0..2 {
            // SAFETY: the caller's promise.
            let columns = unsafe {
                // Rows r and r + 4 as the halves of one register, so that only steps within halves are left.
                let both = |r: usize| match half {
                    0 => _mm256_permute2f128_ps::<0x20>(row(r), row(r + 4)),
                    _ => _mm256_permute2f128_ps::<0x31>(row(r), row(r + 4)),
                };
                let (a, b, c, d) = (both(0), both(1), both(2), both(3));
                let (ab, ab2) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let (cd, cd2) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                [
                    _mm256_shuffle_ps::<0x44>(ab, cd),
                    _mm256_shuffle_ps::<0xee>(ab, cd),
                    _mm256_shuffle_ps::<0x44>(ab2, cd2),
                    _mm256_shuffle_ps::<0xee>(ab2, cd2),
                ]
            };
            for (c, x) in columns.into_iter().enumerate() {
                column(4 * half + c, x);
            }
        }
    }

    /// Sixteen words of `H` rows, without a question asked at every load.
    ///
    /// # Safety
    /// As [`avx512`] for `H` rows and 16 columns.
    #[inline(always)]
    unsafe fn whole16<const H: usize>(from: *const u8, row_bytes: usize, to: *mut u32, stride: usize) {
        let row = |r: usize, q: usize| {
            if r >= H {
                // SAFETY: the CPU has the instruction.
                return unsafe { _mm_setzero_ps() };
            }
            // SAFETY: row r has sixteen words.
            unsafe { _mm_loadu_ps(from.add(r * row_bytes + 16 * q).cast()) }
        };
        // SAFETY: row c is writable and at least H long.
        let column = |c: usize, x: __m512| unsafe {
            _mm512_mask_storeu_ps(to.add(c * stride).cast(), (0xffff_u32 >> (16 - H)) as __mmask16, x);
        };
        // SAFETY: the CPU has the instructions.
        unsafe { square16(row, column) };
    }

    /// # Safety
    /// Rows of `cols` words are readable at `from`, `row_bytes` apart; rows of `rows` words are writable at `to`,
    /// `stride` apart and at least `rows` long. The CPU has AVX-512 F and VL.
    #[target_feature(enable = "avx512f,avx512vl")]
    pub(super) unsafe fn avx512(
        from: *const u8,
        row_bytes: usize,
        (rows, cols): (usize, usize),
        to: *mut u32,
        stride: usize,
    ) {
        for r0 in (0..rows).step_by(16) {
            let height = (rows - r0).min(16);
            let high = (0xffff_u32 >> (16 - height)) as __mmask16;
            for c0 in (0..cols).step_by(16) {
                let width = (cols - c0).min(16);
                // SAFETY: sixteen words of `height` rows from here are inside of both.
                unsafe {
                    let (from, to) = (from.add(r0 * row_bytes + 4 * c0), to.add(c0 * stride + r0));
                    match (width, height) {
                        (16, 16) => {
                            whole16::<16>(from, row_bytes, to, stride);
                            continue;
                        }
                        // The height of a panel of A.
                        (16, 14) => {
                            whole16::<14>(from, row_bytes, to, stride);
                            continue;
                        }
                        _ => {}
                    }
                }
                let row = |r: usize, q: usize| {
                    let words = width.saturating_sub(4 * q).min(4);
                    if r >= height || words == 0 {
                        return _mm_setzero_ps();
                    }
                    // SAFETY: row r0 + r exists, and the mask ends at its last word.
                    unsafe {
                        let at = from.add((r0 + r) * row_bytes + 4 * (c0 + 4 * q)).cast();
                        if words == 4 { _mm_loadu_ps(at) } else { _mm_maskz_loadu_ps((1 << words) - 1, at) }
                    }
                };
                let column = |c: usize, x: __m512| {
                    if c < width {
                        // SAFETY: column c0 + c exists, and the mask ends at its last word.
                        unsafe { _mm512_mask_storeu_ps(to.add((c0 + c) * stride + r0).cast(), high, x) };
                    }
                };
                // SAFETY: the CPU has the instructions.
                unsafe { square16(row, column) };
            }
        }
    }

    /// Eight words of `H` rows, without a question asked at every load; writes eight words at each column.
    ///
    /// # Safety
    /// As [`avx2`] for `H` rows and 8 columns; what is written too much must be inside of `out` and come again.
    #[inline(always)]
    unsafe fn whole8<const H: usize>(from: *const u8, row_bytes: usize, to: *mut u32, stride: usize) {
        let row = |r: usize| {
            if r >= H {
                // SAFETY: the CPU has the instruction.
                return unsafe { _mm256_setzero_ps() };
            }
            // SAFETY: row r has eight words.
            unsafe { _mm256_loadu_ps(from.add(r * row_bytes).cast()) }
        };
        // SAFETY: the caller's promise.
        let column = |c: usize, x: __m256| unsafe { _mm256_storeu_ps(to.add(c * stride).cast(), x) };
        // SAFETY: the CPU has the instructions.
        unsafe { square8(row, column) };
    }

    /// # Safety
    /// As [`avx512`], with AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2(
        from: *const u8,
        row_bytes: usize,
        (rows, cols): (usize, usize),
        to: *mut u32,
        stride: usize,
    ) {
        let whole = cols / 8 * 8;
        let dense = rows == stride && rows < 8;
        for r0 in (0..rows).step_by(8) {
            let height = (rows - r0).min(8);
            for c0 in (0..whole).step_by(8) {
                // SAFETY: eight words of `height` rows from here are inside of both; a store of eight words at each column
                // is too, either because there are as many rows or because the last one ends before that of `out`.
                unsafe {
                    let (from, to) = (from.add(r0 * row_bytes + 4 * c0), to.add(c0 * stride + r0));
                    match height {
                        8 => {
                            whole8::<8>(from, row_bytes, to, stride);
                            continue;
                        }
                        // The height of a panel of A.
                        6 if dense && (c0 + 7) * stride + 8 <= cols * stride => {
                            whole8::<6>(from, row_bytes, to, stride);
                            continue;
                        }
                        _ => {}
                    }
                }
                let row = |r: usize| {
                    if r >= height {
                        return _mm256_setzero_ps();
                    }
                    // SAFETY: row r0 + r exists and has the eight words from c0 on.
                    unsafe { _mm256_loadu_ps(from.add((r0 + r) * row_bytes + 4 * c0).cast()) }
                };
                let column = |c: usize, x: __m256| {
                    let c = c0 + c;
                    // A masked store takes many cycles on some CPUs. Where rows of `out` are dense, what a whole store
                    // writes too much is overwritten by the next columns.
                    // SAFETY: a whole store ends before the last word of `out`; the other writes `height` words.
                    unsafe {
                        let at = to.add(c * stride + r0);
                        if dense && c * stride + 8 <= cols * stride {
                            _mm256_storeu_ps(at.cast(), x);
                        } else {
                            let mut words = [0_u32; 8];
                            _mm256_storeu_ps(words.as_mut_ptr().cast(), x);
                            std::ptr::copy_nonoverlapping(words.as_ptr(), at, height);
                        }
                    }
                };
                // SAFETY: the CPU has the instructions.
                unsafe { square8(row, column) };
            }
            for c in whole..cols {
                for r in r0..r0 + height {
                    // SAFETY: (r, c) is inside of both matrices.
                    unsafe {
                        let word = from.add(r * row_bytes + 4 * c).cast::<u32>().read_unaligned();
                        to.add(c * stride + r).write(word);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_on_every_instruction_set_equals_the_definition() {
        let row_bytes = 41 * 4 + 2;
        let bytes: Vec<u8> = (0..40 * row_bytes + 1).map(|i| (i * 167 % 251) as u8).collect();
        // An odd start: words need no alignment.
        let words = Words { bytes: &bytes[1..], row_bytes };
        for isa in Isa::ALL {
            for rows in 1..=40 {
                for cols in [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 41] {
                    for stride in [rows, rows + 3] {
                        let mut out = vec![7_u32; cols * stride];
                        let mut want = out.clone();
                        transpose(isa, words, (rows, cols), &mut out, stride);
                        scalar(words, (0..rows, 0..cols), &mut want, stride);
                        assert_eq!(out, want, "{rows} x {cols}, stride {stride}, {isa}");
                    }
                }
            }
        }
    }
}
