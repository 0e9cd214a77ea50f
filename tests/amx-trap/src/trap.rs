//! The handler of SIGILL.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::decode::{LENGTH_MAX, Memory, Op, decode};
use crate::tiles::Tiles;

thread_local! {
    // Constant and without a destructor, so the handler neither allocates nor registers anything.
    static TILES: RefCell<Tiles> = const { RefCell::new(Tiles::new()) };
}

static PRODUCTS: AtomicU64 = AtomicU64::new(0);
static OTHERS: AtomicU64 = AtomicU64::new(0);

/// Instructions that the handler executed, on all threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// `tdpbf16ps`
    pub products: u64,
    /// Loads, stores and the rest.
    pub others: u64,
}

/// What the handler has executed so far.
pub fn counts() -> Counts {
    Counts { products: PRODUCTS.load(Ordering::Relaxed), others: OTHERS.load(Ordering::Relaxed) }
}

/// Executes tile instructions in software from now on, on every thread of this process.
///
/// Any other invalid instruction ends the process with SIGILL as before. On a CPU with AMX the trap works as long as
/// nothing in the process asks for permission ([`crate::hardware::request`]); `ldtilecfg` and `tilerelease` then
/// execute in hardware, and the handler reads the configuration that they made.
pub fn install() {
    // SAFETY: an all-zero sigaction is valid; the handler has the signature that SA_SIGINFO asks for and lives
    // forever; SIGILL is synchronous, so it never interrupts the handler's own data structures.
    let status = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_illegal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(status, 0, "sigaction knows SIGILL");
}

/// General registers in the order of encodings.
const REGISTERS: [libc::c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

extern "C" fn on_illegal(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a ucontext that nothing else uses while the handler runs.
    let context = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    let rip = context.gregs[libc::REG_RIP as usize];
    let mut code = [0_u8; LENGTH_MAX];
    for (i, byte) in code.iter_mut().enumerate() {
        // SAFETY: these are the bytes of code that the CPU just decoded. Those behind a shorter instruction may be
        // unmapped only where it is the very last one of its mapping, which code that returns never is.
        *byte = unsafe { (rip as *const u8).add(i).read() };
    }
    let register = |i: usize| context.gregs[REGISTERS[i] as usize].cast_unsigned();
    let done = decode(&code, rip.cast_unsigned(), register).and_then(|(op, length)| {
        // SAFETY: the frame is the kernel's, of this very signal.
        let config = unsafe { hardware_config(context.fpregs.cast()) };
        // SAFETY: the operand is what the program itself was about to access.
        TILES.with_borrow_mut(|tiles| unsafe { execute(op, tiles, config) })?;
        Some(length)
    });
    match done {
        Some(length) => context.gregs[libc::REG_RIP as usize] = rip + length as i64,
        // The instruction runs again on return and ends the process.
        // SAFETY: the default action is always valid.
        None => unsafe {
            libc::signal(libc::SIGILL, libc::SIG_DFL);
        },
    }
}

/// The configuration in the tile registers of the CPU, where it has them, from the state the kernel saved.
///
/// # Safety
/// `frame` is null or the floating-point state of a signal's context.
unsafe fn hardware_config(frame: *const u8) -> Option<[u8; 64]> {
    // Source: Linux, arch/x86/include/uapi/asm/sigcontext.h: 48 reserved bytes at the end of the 512 of FXSAVE.
    const MAGIC: (usize, u32) = (464, 0x4650_5853);
    const SAVED: usize = 464 + 8; // which state components the frame has room for
    const IN_USE: usize = 512;
    const TILE_CONFIG: u32 = 17;
    if frame.is_null() {
        return None;
    }
    // SAFETY: the frame has 512 bytes at least, and with the magic number an XSAVE header behind them.
    let (saved, in_use) = unsafe {
        if frame.add(MAGIC.0).cast::<u32>().read_unaligned() != MAGIC.1 {
            return None;
        }
        let word = |at: usize| frame.add(at).cast::<u64>().read_unaligned();
        (word(SAVED), word(IN_USE))
    };
    if saved & in_use & 1 << TILE_CONFIG == 0 {
        return None;
    }
    let offset = std::arch::x86_64::__cpuid_count(0xd, TILE_CONFIG).ebx as usize;
    // SAFETY: frames have the standard format, whose offsets CPUID tells, and this component is in it.
    Some(unsafe { frame.add(offset).cast::<[u8; 64]>().read_unaligned() })
}

/// Executes one instruction; `None` where the CPU would fault.
///
/// # Safety
/// The memory operand of `op` is valid.
unsafe fn execute(op: Op, tiles: &mut Tiles, config: Option<[u8; 64]>) -> Option<()> {
    // A configuration that took effect in hardware has cleared the tiles there.
    if let Some(config) = config.filter(|c| c != tiles.config()) {
        tiles.configure(&config)?;
    }
    let row = |at: Memory, r: usize| at.address.wrapping_add(at.stride.wrapping_mul(r as u64));
    match op {
        Op::Release => *tiles = Tiles::new(),
        Op::LoadConfig(at) => {
            // SAFETY: the caller's promise.
            let config = unsafe { (at as *const [u8; 64]).read_unaligned() };
            tiles.configure(&config)?;
        }
        // SAFETY: the caller's promise.
        Op::StoreConfig(at) => unsafe { (at as *mut [u8; 64]).write_unaligned(*tiles.config()) },
        Op::Zero(tile) => tiles.zero(tile)?,
        Op::Load(tile, at) => {
            for (r, to) in tiles.load(tile)?.enumerate() {
                // SAFETY: the caller's promise for each row.
                unsafe { to.as_mut_ptr().copy_from(row(at, r) as *const u8, to.len()) }
            }
        }
        Op::Store(tile, at) => {
            for (r, from) in tiles.store(tile)?.enumerate() {
                // SAFETY: the caller's promise for each row.
                unsafe { (row(at, r) as *mut u8).copy_from(from.as_ptr(), from.len()) }
            }
        }
        Op::Product { c, a, b } => tiles.product(c, a, b)?,
    }
    let count = if matches!(op, Op::Product { .. }) { &PRODUCTS } else { &OTHERS };
    count.fetch_add(1, Ordering::Relaxed);
    Some(())
}
