//! Products of tiles that lie in L1 and L2: no packing, so a product of 16 rows costs little more than its arithmetic.
//!
//! The left operand is read element by element (any strides), the right one and the result by registers (columns
//! padded to [`PAD`]). A left operand may be a [`Band`]: then only the part of the inner dimension that a tile of rows
//! needs is summed, and what the tile reads beside the band must be zero. All sums over diagonals of the relative
//! terms are such products over skewed views; nothing is gathered or scattered.

use super::vector::{PAD, Vector, with_vector};
use crate::isa::{Kernel, Simd};

/// A matrix seen through strides that may be negative: element (r, k) is `data[origin + r * row + k * col]`.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) data: &'a [f32],
    pub(super) origin: isize,
    pub(super) row: isize,
    pub(super) col: isize,
}

impl<'a> View<'a> {
    /// Rows of `stride` elements from the start of the slice.
    pub(super) fn rows(data: &'a [f32], stride: usize) -> Self {
        Self { data, origin: 0, row: stride as isize, col: 1 }
    }

    /// The transpose; nothing moves.
    pub(super) fn t(self) -> Self {
        Self { row: self.col, col: self.row, ..self }
    }

    #[inline(always)]
    fn at(&self, r: usize, k: usize) -> isize {
        self.origin + r as isize * self.row + k as isize * self.col
    }

    /// Checks that the rectangle is inside of the slice; its corners are the extremes.
    #[inline(always)]
    fn check(&self, rows: [usize; 2], depth: [usize; 2]) {
        for r in rows {
            for k in depth {
                let at = self.at(r, k);
                assert!(at >= 0 && (at as usize) < self.data.len(), "({r}, {k}) is outside of the operand");
            }
        }
    }
}

/// Which inner indices count for row r: `start + slope * r ..` of length `width`, cut to what there is.
#[derive(Clone, Copy)]
pub(super) struct Band {
    pub(super) start: isize,
    pub(super) slope: isize,
    pub(super) width: usize,
}

impl Band {
    /// The inner indices of a part that rows `from..to` need together.
    #[inline(always)]
    fn of(self, from: usize, to: usize, part: (usize, usize)) -> (usize, usize) {
        let (a, b) = (self.start + self.slope * from as isize, self.start + self.slope * (to as isize - 1));
        let clamp = |x: isize| x.clamp(part.0 as isize, part.1 as isize) as usize;
        (clamp(a.min(b)), clamp(a.max(b) + self.width as isize))
    }
}

/// `c (+)= a b`.
pub(super) struct Product<'a> {
    /// (rows, depth).
    pub(super) a: View<'a>,
    pub(super) band: Option<Band>,
    /// (depth, cols), `b_stride` apart.
    pub(super) b: &'a [f32],
    pub(super) b_stride: usize,
    /// (rows, cols), `c_stride` apart.
    pub(super) c: &'a mut [f32],
    pub(super) c_stride: usize,
    /// (rows, depth, cols); cols a multiple of [`PAD`].
    pub(super) size: (usize, usize, usize),
    /// Adds to what is there.
    pub(super) add: bool,
}

impl Kernel for Product<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        with_vector!(S, product(self))
    }
}

/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn product<V: Vector>(mut p: Product<'_>) {
    let (rows, depth, cols) = p.size;
    if rows == 0 || cols == 0 {
        return;
    }
    assert!(depth > 0, "a sum of nothing would leave the result as it is");
    assert!(cols % PAD == 0 && cols <= p.c_stride && cols <= p.b_stride, "columns are padded");
    assert!((depth - 1) * p.b_stride + cols <= p.b.len(), "the right operand is too short");
    assert!((rows - 1) * p.c_stride + cols <= p.c.len(), "the result is too short");
    let mut j = 0;
    while j < cols {
        let wide = j + 2 * V::LANES <= cols;
        // All rows meet a stretch of B that stays in L1 before the next stretch.
        let mut k = 0;
        while k < depth {
            let part = (k, depth.min(k + STRETCH));
            // SAFETY: the columns and this part of the inner dimension are inside of what was checked.
            unsafe { if wide { columns::<V, 2>(&mut p, j, part) } else { columns::<V, 1>(&mut p, j, part) } };
            k = part.1;
        }
        j += if wide { 2 * V::LANES } else { V::LANES };
    }
}

/// Inner indices of a stretch: 128 rows of two registers take 16 KiB.
const STRETCH: usize = 128;

/// `N` registers of columns from `j` on, summed over a part of the inner dimension.
///
/// # Safety
/// The CPU has the instructions of `V`; the columns and the part are inside of B and C.
#[inline(always)]
unsafe fn columns<V: Vector, const N: usize>(p: &mut Product<'_>, j: usize, part: (usize, usize)) {
    let rows = p.size.0;
    let tiles = rows.div_ceil(V::ROWS);
    for t in 0..tiles {
        // Equal tiles, rather than full ones and a rest too low to hide the latency of a sum.
        let (from, to) = (t * rows / tiles, (t + 1) * rows / tiles);
        let (first, last) = p.band.map_or(part, |b| b.of(from, to, part));
        if first < last {
            p.a.check([from, to - 1], [first, last - 1]);
        } else if p.add || part.0 > 0 {
            continue;
        }
        // SAFETY: the tile's elements of A were checked just now, those of B and C by the caller; `first` is at most
        // depth, so the pointers stay inside or at the end of B and C. A's pointer is only read where checked.
        unsafe {
            let tile = Tile {
                a: p.a.data.as_ptr().wrapping_offset(p.a.at(from, first)),
                a_row: p.a.row,
                a_col: p.a.col,
                b: p.b.as_ptr().wrapping_add(first * p.b_stride + j),
                b_stride: p.b_stride,
                c: p.c.as_mut_ptr().add(from * p.c_stride + j),
                c_stride: p.c_stride,
                depth: last.saturating_sub(first),
                add: p.add || part.0 > 0,
            };
            tile.rows::<V, N>(to - from);
        }
    }
}

/// The part of a product that fits in registers.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) a: *const f32,
    pub(super) a_row: isize,
    pub(super) a_col: isize,
    pub(super) b: *const f32,
    pub(super) b_stride: usize,
    pub(super) c: *mut f32,
    pub(super) c_stride: usize,
    pub(super) depth: usize,
    pub(super) add: bool,
}

impl Tile {
    /// Computes `rows` (1 to `V::ROWS`) rows of `N` registers.
    ///
    /// # Safety
    /// All elements of A, B and C that the sizes describe are valid, C is exclusive, and the CPU has the instructions.
    #[inline(always)]
    pub(super) unsafe fn rows<V: Vector, const N: usize>(self, rows: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match rows {
                1 => self.run::<V, 1, N>(),
                2 => self.run::<V, 2, N>(),
                3 => self.run::<V, 3, N>(),
                4 => self.run::<V, 4, N>(),
                5 if V::ROWS > 4 => self.run::<V, 5, N>(),
                6 if V::ROWS > 4 => self.run::<V, 6, N>(),
                7 if V::ROWS > 6 => self.run::<V, 7, N>(),
                8 if V::ROWS > 6 => self.run::<V, 8, N>(),
                _ => unreachable!("a tile has 1 to {} rows, got {rows}", V::ROWS),
            }
        }
    }

    /// # Safety
    /// As [`Tile::rows`].
    #[inline(always)]
    unsafe fn run<V: Vector, const M: usize, const N: usize>(self) {
        // SAFETY: the caller's promise; every offset is that of an element.
        unsafe {
            let mut acc = [[V::splat(0.0); N]; M];
            let (mut a, mut b) = (self.a, self.b);
            // Multiples that address modes do not have. LLVM must not see how they are made: it would add the stride
            // row by row, and those additions wait for each other longer than the arithmetic takes.
            let [one, three, five, seven] = std::hint::black_box([1, 3, 5, 7].map(|x| x * self.a_row));
            let offset = |r: usize| match r {
                0 => 0,
                1 | 2 | 4 => one * r as isize,
                3 | 6 => three * (r as isize / 3),
                5 => five,
                _ => seven,
            };
            for _ in 0..self.depth {
                let mut right = [V::splat(0.0); N];
                for (v, x) in right.iter_mut().enumerate() {
                    *x = V::load(b.add(v * V::LANES));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let left = V::splat(*a.wrapping_offset(offset(r)));
                    for (acc, &right) in acc.iter_mut().zip(&right) {
                        *acc = acc.fused(left, right);
                    }
                }
                a = a.wrapping_offset(self.a_col);
                b = b.wrapping_add(self.b_stride);
            }
            for (r, acc) in acc.iter().enumerate() {
                for (v, &x) in acc.iter().enumerate() {
                    let c = self.c.add(r * self.c_stride + v * V::LANES);
                    if self.add { V::load(c).add(x).store(c) } else { x.store(c) }
                }
            }
        }
    }
}
