//! Whether this CPU has AMX, and permission to use it.

use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
const TILE_DATA: libc::c_ulong = 18;

#[target_feature(enable = "xsave")]
fn enabled_state() -> u64 {
    // SAFETY: the caller saw OSXSAVE.
    unsafe { _xgetbv(0) }
}

/// Whether CPU and system have AMX with bf16 products.
pub fn present() -> bool {
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & 1 << 27 == 0 {
        return false;
    }
    let edx = __cpuid_count(7, 0).edx;
    // SAFETY: OSXSAVE (checked above) implies XSAVE.
    let state = unsafe { enabled_state() };
    edx & 1 << 22 != 0 && edx & 1 << 24 != 0 && state & 0b11 << 17 == 0b11 << 17
}

/// Asks the system to let this process use the real tiles; from then on no thread of it traps.
pub fn request() -> bool {
    // SAFETY: the call takes two integers and touches no memory of ours.
    present() && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) } == 0
}
