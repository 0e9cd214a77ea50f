//! Large allocations on huge pages.
//!
//! A training step walks through hundreds of MB; with pages of 4 KiB the page-table walks show in every pass. Most
//! systems give huge pages only to memory that asks for them, before it is touched.

use bytemuck::Pod;

/// Below this size a huge page would be mostly waste, in bytes.
const WORTHWHILE: usize = 4 << 20;

/// `len` zeros, on huge pages where they are many and the system has some to give.
pub fn zeroed<T: Pod>(len: usize) -> Vec<T> {
    // Large zeroed allocations come untouched from the system, so the advice is in time.
    let mut memory = vec![T::zeroed(); len];
    advise_huge_pages(&mut memory);
    memory
}

#[cfg(target_os = "linux")]
fn advise_huge_pages<T>(memory: &mut [T]) {
    const HUGE_PAGE: usize = 2 << 20;
    let bytes = size_of_val(memory);
    if bytes < WORTHWHILE {
        return;
    }
    let start = memory.as_mut_ptr().addr();
    // Whole huge pages only: half-used ones at the ends of many buffers add up.
    let (first, end) = (start.next_multiple_of(HUGE_PAGE), (start + bytes) / HUGE_PAGE * HUGE_PAGE);
    if first >= end {
        return;
    }
    // SAFETY: the pages lie inside of `memory`, and this advice changes no content. A refusal (no huge pages in this
    // kernel) costs speed only.
    unsafe {
        libc::madvise(memory.as_mut_ptr().byte_add(first - start).cast(), end - first, libc::MADV_HUGEPAGE)
    };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages<T>(_: &mut [T]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_and_small_allocations_are_zero() {
        for len in [0, 1, 1000, WORTHWHILE / 4 - 1, WORTHWHILE / 4 + 12_345] {
            let memory = zeroed::<f32>(len);
            assert_eq!(memory.len(), len);
            assert!(memory.iter().all(|&x| x == 0.0));
        }
    }
}
