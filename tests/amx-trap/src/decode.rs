//! The encodings of AMX-TILE and AMX-BF16 (Intel SDM volume 2): three-byte VEX, map 0F38, 128 bits, W0.

/// Where an instruction's memory operand lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Address of the operand, or of its first row.
    pub address: u64,
    /// Bytes from one row to the next.
    pub stride: u64,
}

/// One tile instruction. Tiles are numbered 0 to 7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// `ldtilecfg`
    LoadConfig(u64),
    /// `sttilecfg`
    StoreConfig(u64),
    /// `tilerelease`
    Release,
    /// `tilezero`
    Zero(usize),
    /// `tileloadd` and `tileloaddt1`
    Load(usize, Memory),
    /// `tilestored`
    Store(usize, Memory),
    /// `tdpbf16ps`
    Product {
        /// The sums.
        c: usize,
        /// Rows of pairs.
        a: usize,
        /// Pairs of rows.
        b: usize,
    },
}

/// The longest encoding: VEX, opcode, ModRM, SIB and a displacement of four bytes.
pub const LENGTH_MAX: usize = 10;

/// Decodes the instruction at `rip` and returns it with its length; `None` if it is not one of [`Op`].
///
/// Registers are numbered as in encodings: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, ...
pub fn decode(code: &[u8; LENGTH_MAX], rip: u64, register: impl Fn(usize) -> u64) -> Option<(Op, usize)> {
    if code[0] != 0xc4 || code[1] & 0x1f != 2 || code[2] & 0x84 != 0 {
        return None;
    }
    let (prefix, opcode, in_register) = (code[2] & 3, code[3], code[4] >> 6 == 3);
    let (reg, rm, vvvv) = ((code[4] >> 3 & 7).into(), (code[4] & 7).into(), (!code[2] >> 3 & 15).into());
    if !matches!(opcode, 0x49 | 0x4b | 0x5c) {
        return None;
    }
    let (at, length) =
        if in_register { (Memory { address: 0, stride: 0 }, 5) } else { memory(code, rip, register) };
    let op = match (opcode, prefix, in_register) {
        (0x49, 0, false) => Op::LoadConfig(at.address),
        (0x49, 1, false) => Op::StoreConfig(at.address),
        (0x49, 0, true) => Op::Release,
        (0x49, 3, true) => Op::Zero(reg),
        (0x4b, 1 | 3, false) => Op::Load(reg, at),
        (0x4b, 2, false) => Op::Store(reg, at),
        (0x5c, 2, true) if vvvv < 8 => Op::Product { c: reg, a: rm, b: vvvv },
        _ => return None,
    };
    Some((op, length))
}

/// The memory operand of ModRM, SIB and displacement, and the length of the instruction.
fn memory(code: &[u8; LENGTH_MAX], rip: u64, register: impl Fn(usize) -> u64) -> (Memory, usize) {
    let extended = |bit: u8| usize::from(!code[1] >> bit & 1) << 3;
    let (mode, rm) = (code[4] >> 6, usize::from(code[4] & 7));
    let far = |at: usize| i64::from(i32::from_le_bytes([code[at], code[at + 1], code[at + 2], code[at + 3]]));
    let (mut stride, mut length) = (0, 5);
    // Without a base there are four bytes of displacement whatever the mode says.
    let mut base = Some(rm | extended(5));
    if rm == 4 {
        let sib = code[5];
        length = 6;
        let index = usize::from(sib >> 3 & 7) | extended(6);
        if index != 4 {
            stride = register(index) << (sib >> 6);
        }
        base = Some(usize::from(sib & 7) | extended(5)).filter(|_| sib & 7 != 5 || mode != 0);
    } else if rm == 5 && mode == 0 {
        let address = (rip + 9).wrapping_add_signed(far(5));
        return (Memory { address, stride }, 9);
    }
    let displacement = match (mode, base) {
        (1, _) => i64::from(code[length].cast_signed()),
        (2, _) | (0, None) => far(length),
        _ => 0,
    };
    length += match (mode, base) {
        (1, _) => 1,
        (2, _) | (0, None) => 4,
        _ => 0,
    };
    let address = base.map_or(0, register).wrapping_add_signed(displacement);
    (Memory { address, stride }, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an assembler makes; register i holds 1000 * i, and the instruction lies at 5000.
    #[test]
    fn encodings_of_every_instruction() {
        let at = |address, stride| Memory { address, stride };
        let table: [(&[u8], Option<Op>); 11] = [
            (&[0xc4, 0xe2, 0x78, 0x49, 0x05, 0x10, 0, 0, 0], Some(Op::LoadConfig(5000 + 9 + 16))),
            (&[0xc4, 0xe2, 0x78, 0x49, 0x00], Some(Op::LoadConfig(0))),
            (&[0xc4, 0xc2, 0x79, 0x49, 0x44, 0x24, 0x08], Some(Op::StoreConfig(12_008))),
            (&[0xc4, 0xe2, 0x78, 0x49, 0xc0], Some(Op::Release)),
            (&[0xc4, 0xe2, 0x7b, 0x49, 0xe8], Some(Op::Zero(5))),
            // No base: tileloadd tmm3, [4 * rdx + 256]
            (&[0xc4, 0xe2, 0x7b, 0x4b, 0x1c, 0x95, 0, 1, 0, 0], Some(Op::Load(3, at(256, 8000)))),
            // tileloaddt1 tmm1, [r13 + 8 * r9 - 4]
            (&[0xc4, 0x82, 0x79, 0x4b, 0x4c, 0xcd, 0xfc], Some(Op::Load(1, at(12_996, 72_000)))),
            (&[0xc4, 0xe2, 0x7a, 0x4b, 0x3c, 0x2c], Some(Op::Store(7, at(4000, 5000)))),
            (&[0xc4, 0xe2, 0x62, 0x5c, 0xca], Some(Op::Product { c: 1, a: 2, b: 3 })),
            // tdpbssd tmm1, tmm2, tmm3 and vpaddd ymm1, ymm2, ymm3 are none of ours.
            (&[0xc4, 0xe2, 0x63, 0x5e, 0xca], None),
            (&[0xc5, 0xed, 0xfe, 0xcb], None),
        ];
        for (bytes, op) in table {
            let mut code = [0xcc; LENGTH_MAX];
            code[..bytes.len()].copy_from_slice(bytes);
            let got = decode(&code, 5000, |i| 1000 * i as u64);
            assert_eq!(got, op.map(|op| (op, bytes.len())), "{bytes:02x?}");
        }
    }
}
