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

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// Rows of `cols` words are readable at `from`, `row_bytes` apart; rows of `rows` words are writable at `to`,
    /// `stride` apart and at least `rows` long. The CPU has AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512(
        from: *const u8,
        row_bytes: usize,
        (rows, cols): (usize, usize),
        to: *mut u32,
        stride: usize,
    ) {
        for r0 in (0..rows).step_by(16) {
            let height = (rows - r0).min(16);
            let high = mask(height);
            for c0 in (0..cols).step_by(16) {
                let width = (cols - c0).min(16);
                let wide = mask(width);
                let mut block = [_mm512_setzero_si512(); 16];
                for (r, row) in block.iter_mut().enumerate().take(height) {
                    // SAFETY: row r0 + r exists, and the mask ends at its last word.
                    unsafe {
                        let at = from.add((r0 + r) * row_bytes + 4 * c0);
                        *row = _mm512_maskz_loadu_epi32(wide, at.cast());
                    }
                }
                let block = square16(block);
                for (c, row) in block.iter().enumerate().take(width) {
                    // SAFETY: column c0 + c exists, and the mask ends at its last word.
                    unsafe { _mm512_mask_storeu_epi32(to.add((c0 + c) * stride + r0).cast(), high, *row) };
                }
            }
        }
    }

    fn mask(lanes: usize) -> __mmask16 {
        (0xffff_u32 >> (16 - lanes)) as __mmask16
    }

    /// Transposes 16 rows of 16 words: words, then pairs, then quarters of a register change places.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn square16(r: [__m512i; 16]) -> [__m512i; 16] {
        let mut t = [_mm512_setzero_si512(); 16];
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        // u[4 * g + j]: column j of every quarter, from rows 4 g to 4 g + 3.
        let mut u = [_mm512_setzero_si512(); 16];
        for g in 0..4 {
            u[4 * g] = _mm512_unpacklo_epi64(t[4 * g], t[4 * g + 2]);
            u[4 * g + 1] = _mm512_unpackhi_epi64(t[4 * g], t[4 * g + 2]);
            u[4 * g + 2] = _mm512_unpacklo_epi64(t[4 * g + 1], t[4 * g + 3]);
            u[4 * g + 3] = _mm512_unpackhi_epi64(t[4 * g + 1], t[4 * g + 3]);
        }
        let mut out = [_mm512_setzero_si512(); 16];
        for j in 0..4 {
            let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(u[j], u[4 + j]);
            let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(u[j], u[4 + j]);
            let even2 = _mm512_shuffle_i32x4::<0b10_00_10_00>(u[8 + j], u[12 + j]);
            let odd2 = _mm512_shuffle_i32x4::<0b11_01_11_01>(u[8 + j], u[12 + j]);
            out[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(even, even2);
            out[8 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(even, even2);
            out[4 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(odd, odd2);
            out[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(odd, odd2);
        }
        out
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
                let mut block = [_mm256_setzero_si256(); 8];
                for (r, row) in block.iter_mut().enumerate().take(height) {
                    // SAFETY: row r0 + r exists and has the eight words from c0 on.
                    *row = unsafe { _mm256_loadu_si256(from.add((r0 + r) * row_bytes + 4 * c0).cast()) };
                }
                let block = square8(block);
                for (c, row) in block.iter().enumerate() {
                    let c = c0 + c;
                    // A masked store takes many cycles on some CPUs. Where rows of `out` are dense, what a whole store
                    // writes too much is overwritten by the next columns.
                    // SAFETY: a whole store has eight words of its own to write or ends before the last one of
                    // `out`; the other writes `height` words.
                    unsafe {
                        let at = to.add(c * stride + r0);
                        if height == 8 || (dense && c * stride + 8 <= cols * stride) {
                            _mm256_storeu_si256(at.cast(), *row);
                        } else {
                            let mut words = [0_u32; 8];
                            _mm256_storeu_si256(words.as_mut_ptr().cast(), *row);
                            std::ptr::copy_nonoverlapping(words.as_ptr(), at, height);
                        }
                    }
                }
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

    #[target_feature(enable = "avx2")]
    #[inline]
    fn square8(r: [__m256i; 8]) -> [__m256i; 8] {
        let mut t = [_mm256_setzero_si256(); 8];
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        let mut out = [_mm256_setzero_si256(); 8];
        for h in 0..2 {
            let lo = |a: usize, b: usize| _mm256_unpacklo_epi64(t[a], t[b]);
            let hi = |a: usize, b: usize| _mm256_unpackhi_epi64(t[a], t[b]);
            let top = [lo(0, 2), hi(0, 2), lo(1, 3), hi(1, 3)];
            let bottom = [lo(4, 6), hi(4, 6), lo(5, 7), hi(5, 7)];
            for j in 0..4 {
                out[4 * h + j] = match h {
                    0 => _mm256_permute2x128_si256::<0x20>(top[j], bottom[j]),
                    _ => _mm256_permute2x128_si256::<0x31>(top[j], bottom[j]),
                };
            }
        }
        out
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
