//! How the process's allocator treats memory that was freed.
#![allow(unsafe_code, reason = "an option of the allocator that its crate does not wrap")]

use libmimalloc_sys::{mi_option_set, mi_option_t, mi_option_use_numa_nodes};

/// `mi_option_purge_delay`, which the bindings leave out.
const PURGE_DELAY: mi_option_t = 15;

// Its neighbour in the C enum, which the bindings do have: an upgrade that moves it can't go unnoticed.
const _: () = assert!(PURGE_DELAY + 1 == mi_option_use_numa_nodes);

/// Keeps freed memory in the process instead of returning it to the system.
///
/// The activations of one step have the sizes of the next one's: returning them would cost a page fault for every
/// 4 KiB of every step. Has an effect only where mimalloc is the global allocator; call it first thing in `main`.
pub fn keep_freed_memory() {
    // SAFETY:
    // * the option exists in the mimalloc that is compiled in, as asserted above;
    // * -1 is its documented "never"; the call only stores the number.
    unsafe { mi_option_set(PURGE_DELAY, -1) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn freed_memory_is_never_purged_after_the_call() {
        super::keep_freed_memory();
        // SAFETY: reads a number that the call above stored.
        assert_eq!(unsafe { libmimalloc_sys::mi_option_get(super::PURGE_DELAY) }, -1);
    }
}
