//! Which instruction sets the CPU has, which one is used, and why.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// An instruction set, from weakest to strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// The baseline of the target (SSE2 on x86-64); no fused multiply-add.
    Scalar,
    /// AVX2 and FMA: 8 lanes of f32.
    Avx2,
    /// AVX-512 F, BW, VL and DQ: 16 lanes of f32.
    Avx512,
    /// AVX-512 with bf16 dot products.
    Avx512Bf16,
    /// AMX tiles with bf16.
    Amx,
}

impl Isa {
    /// Every instruction set, weakest first.
    pub const ALL: [Self; 5] = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Avx512Bf16, Self::Amx];

    /// The name that `MUSTER_MAX_ISA` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Amx => "amx",
        }
    }

    const fn from_u8(x: u8) -> Option<Self> {
        match x {
            0 => Some(Self::Scalar),
            1 => Some(Self::Avx2),
            2 => Some(Self::Avx512),
            3 => Some(Self::Avx512Bf16),
            4 => Some(Self::Amx),
            _ => None,
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A cap that names no instruction set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set {got:?}")]
pub struct ParseCapError {
    /// The text as given.
    pub got: String,
}

impl ParseCapError {
    /// The fix for the user.
    pub fn hint(&self) -> Option<String> {
        let names: Vec<_> = Isa::ALL.iter().map(|i| i.name()).collect();
        Some(format!("use one of {}", names.join(", ")))
    }
}

/// Reads the value of `MUSTER_MAX_ISA`; case and the separators `-`, `_` and space do not matter.
pub fn parse_cap(text: &str) -> Result<Isa, ParseCapError> {
    let plain = |s: &str| s.to_ascii_lowercase().replace(['-', '_', ' '], "");
    let wanted = plain(text);
    Isa::ALL
        .into_iter()
        .find(|i| plain(i.name()) == wanted)
        .ok_or_else(|| ParseCapError { got: text.to_owned() })
}

/// A CPU feature and whether this process can use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Name as in `/proc/cpuinfo`, without separators.
    pub name: &'static str,
    /// Whether CPU and operating system both have it.
    pub present: bool,
}

/// What the CPU has, which kernels run, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Each feature that a kernel could use.
    pub features: Vec<Feature>,
    /// The strongest instruction set of the CPU.
    pub best: Isa,
    /// The cap in force, if any.
    pub cap: Option<Isa>,
    /// The instruction set of the kernels that run.
    pub chosen: Isa,
    /// One sentence saying why `chosen` was chosen.
    pub reason: String,
    /// Whether bf16 products are emulated by widening to f32, which makes bf16 no faster than f32.
    pub bf16_is_emulated: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has: Vec<_> = self.features.iter().filter(|x| x.present).map(|x| x.name).collect();
        let lacks: Vec<_> = self.features.iter().filter(|x| !x.present).map(|x| x.name).collect();
        writeln!(f, "cpu features  {}", if has.is_empty() { "none".into() } else { has.join(" ") })?;
        if !lacks.is_empty() {
            writeln!(f, "missing       {}", lacks.join(" "))?;
        }
        write!(f, "kernels       {}: {}", self.chosen, self.reason)
    }
}

/// The features that decide between kernels, separated from the CPU so that the choice can be tested.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpu {
    /// AVX2.
    pub avx2: bool,
    /// Fused multiply-add.
    pub fma: bool,
    /// AVX-512 F, BW, VL and DQ together.
    pub avx512: bool,
    /// AVX512-BF16.
    pub avx512_bf16: bool,
    /// AMX tiles with bf16: the CPU has them and the operating system lets this process use them.
    pub amx_bf16: bool,
    /// The CPU has AMX, but the operating system refused its use.
    pub amx_refused: bool,
}

impl Cpu {
    /// Asks this machine, once: in a virtual machine each `cpuid` is an exit to the host.
    pub fn here() -> Self {
        static HERE: OnceLock<Cpu> = OnceLock::new();
        *HERE.get_or_init(Self::ask)
    }

    fn ask() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            let amx = amx_present();
            let amx_bf16 = amx && !super::tiles_assumed() && amx_permitted();
            Self {
                avx2: is_x86_feature_detected!("avx2"),
                fma: is_x86_feature_detected!("fma"),
                avx512,
                avx512_bf16: is_x86_feature_detected!("avx512bf16"),
                amx_bf16,
                amx_refused: amx && !amx_bf16,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::default()
    }

    /// The strongest instruction set these features make up.
    pub fn best(self) -> Isa {
        let avx2 = self.avx2 && self.fma;
        match self {
            _ if !avx2 => Isa::Scalar,
            _ if !self.avx512 => Isa::Avx2,
            _ if !self.avx512_bf16 => Isa::Avx512,
            _ if !self.amx_bf16 => Isa::Avx512Bf16,
            _ => Isa::Amx,
        }
    }

    /// Chooses the kernels under a cap and says why.
    pub fn report(self, cap: Option<Isa>) -> Report {
        let features = vec![
            Feature { name: "avx2", present: self.avx2 },
            Feature { name: "fma", present: self.fma },
            Feature { name: "avx512f/bw/vl/dq", present: self.avx512 },
            Feature { name: "avx512_bf16", present: self.avx512_bf16 },
            Feature { name: "amx_bf16", present: self.amx_bf16 },
        ];
        let best = self.best();
        let chosen = cap.map_or(best, |c| c.min(best));
        let width = match chosen {
            Isa::Scalar => "baseline instructions, no fused multiply-add; bf16 is widened to f32",
            Isa::Avx2 => "8 lanes of f32 with fused multiply-add; bf16 is widened to f32",
            Isa::Avx512 => "16 lanes of f32 with fused multiply-add; bf16 is widened to f32",
            Isa::Avx512Bf16 => "16 lanes of f32, and dot products of 32 bf16",
            Isa::Amx => "16 lanes of f32, and tiles of 16 x 32 bf16",
        };
        let reason = match cap {
            Some(c) if c < best => format!("{width}; capped to {c}, the CPU could do {best}"),
            _ if self.amx_refused => format!("{width}; the CPU has AMX, but the system refuses its use"),
            _ => format!("{width}; the best this CPU has"),
        };
        let bf16_is_emulated = chosen < Isa::Avx512Bf16;
        Report { features, best, cap, chosen, reason, bf16_is_emulated }
    }
}

/// AMX needs the CPU's flags and an operating system that saves the tile registers.
#[cfg(target_arch = "x86_64")]
fn amx_present() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    #[target_feature(enable = "xsave")]
    fn tile_state() -> u64 {
        // SAFETY: called only where OSXSAVE is set, so xgetbv exists in user mode.
        unsafe { _xgetbv(0) }
    }
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & (1 << 27) == 0 {
        return false;
    }
    let edx = __cpuid_count(7, 0).edx;
    let (bf16, tile) = (edx & (1 << 22) != 0, edx & (1 << 24) != 0);
    // SAFETY: OSXSAVE (checked above) implies XSAVE.
    let state = unsafe { tile_state() };
    bf16 && tile && state & (0b11 << 17) == 0b11 << 17
}

/// Asks Linux for the tile registers, for all threads of this process (`arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)`).
/// Systems older than 5.16, some sandboxes and some virtual machines refuse.
#[cfg(target_arch = "x86_64")]
fn amx_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XTILEDATA: libc::c_long = 18;
    // SAFETY: this request takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
}

const UNSET: u8 = u8::MAX;
static CAP: AtomicU8 = AtomicU8::new(UNSET);

/// Sets the process-wide cap. Pools made before keep the instruction set they were made with.
pub fn select(cap: Option<Isa>) {
    CAP.store(cap.map_or(UNSET, |c| c as u8), Ordering::Relaxed);
}

/// Reports the features of this machine and the kernels chosen under the present cap.
pub fn detect() -> Report {
    let report = Cpu::here().report(Isa::from_u8(CAP.load(Ordering::Relaxed)));
    if super::tiles_assumed() && report.cap.is_none_or(|c| c == Isa::Amx) {
        let reason = "a test executes tile instructions in software".into();
        return Report { chosen: Isa::Amx, reason, ..report };
    }
    report
}

/// The instruction set whose kernels run under the present cap.
pub fn selected() -> Isa {
    detect().chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(avx2: bool, avx512: bool, bf16: bool, amx: bool) -> Cpu {
        Cpu { avx2, fma: avx2, avx512, avx512_bf16: bf16, amx_bf16: amx, amx_refused: false }
    }

    /// Case 7: feature sets and the choice and text that follow.
    #[test]
    fn the_choice_follows_the_features_and_the_cap() {
        let table = [
            (cpu(false, false, false, false), None, Isa::Scalar, Isa::Scalar, "baseline"),
            (cpu(true, false, false, false), None, Isa::Avx2, Isa::Avx2, "the best this CPU has"),
            (cpu(true, true, false, false), None, Isa::Avx512, Isa::Avx512, "16 lanes"),
            (cpu(true, true, true, false), None, Isa::Avx512Bf16, Isa::Avx512Bf16, "dot products"),
            (cpu(true, true, true, true), None, Isa::Amx, Isa::Amx, "tiles"),
            (cpu(true, true, true, true), Some(Isa::Avx2), Isa::Amx, Isa::Avx2, "capped to avx2"),
            (cpu(true, false, false, false), Some(Isa::Amx), Isa::Avx2, Isa::Avx2, "the best"),
            (cpu(true, true, true, true), Some(Isa::Scalar), Isa::Amx, Isa::Scalar, "capped to scalar"),
        ];
        for (cpu, cap, best, chosen, text) in table {
            let r = cpu.report(cap);
            assert_eq!((r.best, r.chosen), (best, chosen), "{cpu:?} {cap:?}");
            assert!(r.reason.contains(text), "{} lacks {text}", r.reason);
            assert!(r.to_string().contains(chosen.name()));
        }
    }

    #[test]
    fn fma_is_required_for_avx2() {
        assert_eq!(Cpu { avx2: true, ..Cpu::default() }.best(), Isa::Scalar);
    }

    #[test]
    fn caps_are_read_by_name_and_errors_list_the_names() {
        assert_eq!(parse_cap("AVX2"), Ok(Isa::Avx2));
        assert_eq!(parse_cap("avx512_bf16"), Ok(Isa::Avx512Bf16));
        let e = parse_cap("sse9").expect_err("no such set");
        assert!(e.to_string().contains("sse9") && e.hint().is_some_and(|h| h.contains("avx512-bf16")));
    }
}
