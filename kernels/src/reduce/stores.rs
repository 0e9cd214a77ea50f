//! Copies through the caches and past them.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m128i;

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
    use std::arch::x86_64::_mm_storeu_si128;
    let body = bytes / 64 * 64;
    // SAFETY: all of it lies inside both ranges. SSE2 is part of x86-64.
    unsafe {
        lines(from, to, body, |at, x| _mm_storeu_si128(at, x));
        std::ptr::copy_nonoverlapping(from.add(body), to.add(body), bytes - body);
    }
}

/// Copies whole lines of 64 bytes with a store of 16.
///
/// # Safety
/// As for [`store`], with what `put` needs of its address.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn lines(from: *const u8, to: *mut u8, bytes: usize, put: impl Fn(*mut __m128i, __m128i)) {
    use std::arch::x86_64::_mm_loadu_si128;
    // SAFETY: the caller's promise.
    unsafe {
        let (mut source, mut target) = (from, to);
        let end = from.add(bytes);
        while source < end {
            let line = source.cast::<__m128i>();
            let (a, b) = (_mm_loadu_si128(line), _mm_loadu_si128(line.add(1)));
            let (c, d) = (_mm_loadu_si128(line.add(2)), _mm_loadu_si128(line.add(3)));
            let line = target.cast::<__m128i>();
            put(line, a);
            put(line.add(1), b);
            put(line.add(2), c);
            put(line.add(3), d);
            (source, target) = (source.add(64), target.add(64));
        }
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
    use std::arch::x86_64::_mm_stream_si128;
    // Whole lines only: a line written in part past the caches costs several times a whole one.
    let head = to.align_offset(64).min(bytes);
    let body = (bytes - head) / 64 * 64;
    let tail = head + body;
    // SAFETY: the three parts lie inside both ranges; stores of the middle are aligned to 64 bytes. SSE2 is
    // part of x86-64.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        lines(from.add(head), to.add(head), body, |at, x| _mm_stream_si128(at, x));
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
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
