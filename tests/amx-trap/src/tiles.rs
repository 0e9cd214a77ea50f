//! The tile registers of one thread and what the instructions do to them.
//!
//! Source: Intel SDM volume 2, `LDTILECFG` to `TDPBF16PS`. What the manual leaves open (denormals, the order of
//! additions, NaN) is compared with a real CPU in `tests/silicon.rs`.

/// Bytes of a row.
pub const ROW: usize = 64;
/// Rows of a tile.
pub const ROWS: usize = 16;

/// The contents of one tile.
pub type Tile = [[u8; ROW]; ROWS];

/// Configuration and contents.
#[derive(Debug, Clone)]
pub struct Tiles {
    config: [u8; 64],
    data: [Tile; 8],
}

impl Default for Tiles {
    fn default() -> Self {
        Self::new()
    }
}

/// A float with denormals flushed to zero.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0_f32.copysign(x) } else { x }
}

/// The result of an operation as the tiles keep it: the first NaN among the operands, made quiet, or else the value,
/// or the one NaN that stands for an invalid operation.
fn kept<const N: usize>(value: f32, operands: [f32; N]) -> f32 {
    const QUIET: u32 = 1 << 22;
    const INVALID: u32 = 0xffc0_0000;
    if !value.is_nan() {
        return flushed(value);
    }
    f32::from_bits(operands.into_iter().find(|x| x.is_nan()).map_or(INVALID, |x| x.to_bits() | QUIET))
}

fn bf16(bytes: &[u8]) -> f32 {
    flushed(f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16))
}

fn f32(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl Tiles {
    /// The initial state: nothing is configured.
    pub const fn new() -> Self {
        Self { config: [0; 64], data: [[[0; ROW]; ROWS]; 8] }
    }

    /// Rows of a tile.
    pub fn rows(&self, tile: usize) -> usize {
        self.config[48 + tile].into()
    }

    /// Bytes of each row of a tile.
    pub fn row_bytes(&self, tile: usize) -> usize {
        u16::from_le_bytes([self.config[16 + 2 * tile], self.config[17 + 2 * tile]]).into()
    }

    fn configured(&self) -> bool {
        self.config[0] == 1
    }

    /// The configuration as `sttilecfg` stores it.
    pub fn config(&self) -> &[u8; 64] {
        &self.config
    }

    /// Takes a configuration and clears the tiles; `None` (and no change) where the instruction would fault.
    pub fn configure(&mut self, config: &[u8; 64]) -> Option<()> {
        let mut next = Self::new();
        next.config = *config;
        let usable = (0..8).all(|t| next.row_bytes(t) <= ROW && next.rows(t) <= ROWS);
        let reserved = config[2..16].iter().chain(&config[32..48]).chain(&config[56..]).all(|&b| b == 0);
        match config[0] {
            0 => *self = Self::new(),
            1 if usable && reserved => *self = next,
            _ => return None,
        }
        Some(())
    }

    /// Clears a tile.
    pub fn zero(&mut self, tile: usize) -> Option<()> {
        self.configured().then(|| self.data[tile] = [[0; ROW]; ROWS])
    }

    /// The rows of a tile to be read into, each of [`Tiles::row_bytes`]; the rest of the tile is cleared.
    pub fn load(&mut self, tile: usize) -> Option<impl Iterator<Item = &mut [u8]>> {
        self.usable(tile)?;
        let (rows, bytes) = (self.rows(tile), self.row_bytes(tile));
        self.data[tile] = [[0; ROW]; ROWS];
        Some(self.data[tile][..rows].iter_mut().map(move |r| &mut r[..bytes]))
    }

    /// The rows of a tile to be written out.
    pub fn store(&self, tile: usize) -> Option<impl Iterator<Item = &[u8]>> {
        self.usable(tile)?;
        let bytes = self.row_bytes(tile);
        Some(self.data[tile][..self.rows(tile)].iter().map(move |r| &r[..bytes]))
    }

    fn usable(&self, tile: usize) -> Option<()> {
        (self.configured() && self.rows(tile) > 0).then_some(())
    }

    /// C += A B; even and odd products are summed apart, each multiply-add rounds once, and the two sums and C meet at
    /// the end. `None` where the shapes don't match.
    pub fn product(&mut self, c: usize, a: usize, b: usize) -> Option<()> {
        let distinct = c != a && a != b && c != b;
        let shapes = self.rows(c) == self.rows(a)
            && self.row_bytes(a) == 4 * self.rows(b)
            && self.row_bytes(b) == self.row_bytes(c);
        self.usable(c).filter(|()| distinct && shapes)?;
        let (m, pairs, columns) = (self.rows(c), self.rows(b), self.row_bytes(c) / 4);
        let (left, right) = (self.data[a], self.data[b]);
        for (out, left) in self.data[c][..m].iter_mut().zip(&left) {
            for (j, out) in out.as_chunks_mut::<4>().0[..columns].iter_mut().enumerate() {
                let mut sums = [0_f32; 2];
                for (k, right) in right[..pairs].iter().enumerate() {
                    for (half, sum) in sums.iter_mut().enumerate() {
                        let (x, y) = (bf16(&left[4 * k + 2 * half..]), bf16(&right[4 * j + 2 * half..]));
                        *sum = kept(x.mul_add(y, *sum), [x, y, *sum]);
                    }
                }
                let (sum, old) = (kept(sums[0] + sums[1], sums), flushed(f32(out)));
                *out = kept(old + sum, [old, sum]).to_le_bytes();
            }
        }
        Some(())
    }
}
