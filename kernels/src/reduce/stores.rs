//! Copies through the caches and past them.

use super::Stores;

/// Copies bytes with plain vector stores.
///
/// The C library copies more than some KiB with `rep movsb`, which leaves lines where another core has far to
/// fetch them from.
///
/// # Safety
/// As for [`store`].
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128};
    let body = bytes / 64 * 64;
    // SAFETY: all of it lies inside both ranges. SSE2 is part of x86-64.
    unsafe {
        let (mut source, mut target) = (from, to);
        let end = from.add(body);
        while source < end {
            let line = source.cast::<__m128i>();
            let (a, b) = (_mm_loadu_si128(line), _mm_loadu_si128(line.add(1)));
            let (c, d) = (_mm_loadu_si128(line.add(2)), _mm_loadu_si128(line.add(3)));
            let line = target.cast::<__m128i>();
            _mm_storeu_si128(line, a);
            _mm_storeu_si128(line.add(1), b);
            _mm_storeu_si128(line.add(2), c);
            _mm_storeu_si128(line.add(3), d);
            (source, target) = (source.add(64), target.add(64));
        }
        std::ptr::copy_nonoverlapping(source, target, bytes - body);
    }
}

/// Copies m items.
///
/// # Safety
/// `from` and `to` are m items each that do not overlap, and `to` is referred to by nobody else now.
#[inline(always)]
pub(super) unsafe fn store<T>(stores: Stores, from: *const T, to: *mut T, m: usize) {
    match stores {
        // SAFETY: the caller's promise.
        Stores::Cached => unsafe { std::ptr::copy_nonoverlapping(from, to, m) },
        // SAFETY: the caller's promise; items are plain bytes.
        Stores::Streaming => unsafe { stream(from.cast(), to.cast(), m * size_of::<T>()) },
    }
}

/// Copies bytes past the caches.
///
/// # Safety
/// As for [`store`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    // Whole lines only: a line written in part past the caches costs several times a whole one.
    let head = to.align_offset(64).min(bytes);
    let body = (bytes - head) / 64 * 64;
    // SAFETY: the three parts lie inside both ranges; stores of the middle are aligned to 64 bytes. SSE2 is
    // part of x86-64.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let (mut source, mut target) = (from.add(head), to.add(head));
        let end = source.add(body);
        while source < end {
            let line = source.cast::<__m128i>();
            let (a, b) = (_mm_loadu_si128(line), _mm_loadu_si128(line.add(1)));
            let (c, d) = (_mm_loadu_si128(line.add(2)), _mm_loadu_si128(line.add(3)));
            let line = target.cast::<__m128i>();
            _mm_stream_si128(line, a);
            _mm_stream_si128(line.add(1), b);
            _mm_stream_si128(line.add(2), c);
            _mm_stream_si128(line.add(3), d);
            (source, target) = (source.add(64), target.add(64));
        }
        std::ptr::copy_nonoverlapping(source, target, bytes - head - body);
    }
}

/// Streaming stores are ordered with nothing else; whoever is told of the result must see it.
#[cfg(target_arch = "x86_64")]
pub(super) fn fence() {
    // SAFETY: part of x86-64.
    unsafe { std::arch::x86_64::_mm_sfence() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn fence() {}
