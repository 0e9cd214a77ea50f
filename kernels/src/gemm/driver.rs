//! The loops around the micro-kernel: packing, macro-tiles, blocks of the inner dimension.

use std::cell::RefCell;

use super::micro::{self, Micro, Unit};
use super::pack::{self, Panels};
use super::target::Target;
use super::{Mat, Scratch};
use crate::aligned::Buffer;
use crate::element::{DType, Element};
use crate::isa::{Isa, Kernel, Simd, dispatch};
use crate::pool::{Pool, SharedMut};

/// A B on the threads of the pool.
pub(super) fn shared<A: Element, B: Element, T: Target>(
    pool: &Pool,
    scratch: &mut Scratch,
    a: Mat<'_, A>,
    b: Mat<'_, B>,
    target: &T,
) {
    // bf16 instructions want both operands in bf16; otherwise the narrower one is widened while it is packed.
    let both = A::DTYPE == DType::Bf16 && B::DTYPE == DType::Bf16;
    match micro::bf16(pool.isa()).filter(|_| both) {
        Some(micro) => packed(pool, scratch, &micro, (a, b), target),
        None => packed(pool, scratch, &micro::f32(pool.isa()), (a, b), target),
    }
}

fn packed<A: Element, B: Element, U: Unit, T: Target>(
    pool: &Pool,
    scratch: &mut Scratch,
    micro: &Micro<U>,
    (a, b): (Mat<'_, A>, Mat<'_, B>),
    target: &T,
) {
    let (left, right) = micro.panels(a.rows, b.cols, a.cols);
    let (pa, pb) = (scratch.a.typed::<U>(left.len()), scratch.b.typed::<U>(right.len()));
    {
        let (into_a, into_b) = (SharedMut::new(&mut *pa), SharedMut::new(&mut *pb));
        let (tasks_a, tasks_b) = (left.tasks(), right.tasks());
        pool.run(tasks_a + tasks_b, |task| {
            // SAFETY: each panel is one task's.
            unsafe {
                match task.checked_sub(tasks_a) {
                    None => pack::panels(pool.isa(), &left, a, task, into_a.range(left.range(task))),
                    Some(task) => {
                        pack::panels(pool.isa(), &right, b.t(), task, into_b.range(right.range(task)))
                    }
                }
            }
        });
    }
    let grid = Grid::new(micro, &left, &right, pool.threads());
    let product = Product { isa: pool.isa(), micro, left, right, a: pa, b: pb };
    pool.run(grid.tasks(), |task| {
        let (rows, cols) = grid.task(task);
        ACCUMULATORS.with(|acc| product.macro_tile(rows, cols, &mut acc.borrow_mut(), target));
    });
}

thread_local! {
    /// Sums of the macro-tile that this thread computes. Targets start no other work on this thread, so nobody borrows
    /// it twice.
    static ACCUMULATORS: RefCell<Buffer> = RefCell::default();
}

/// How the panels of C are cut into macro-tiles. The cut changes no sum, so it may depend on the threads.
struct Grid {
    panels: (usize, usize),
    step: (usize, usize),
}

/// Macro-tiles that each thread should get, so that a slow one doesn't hold up the others.
const TASKS_PER_THREAD: usize = 4;

impl Grid {
    fn new<U: Unit>(micro: &Micro<U>, left: &Panels, right: &Panels, threads: usize) -> Self {
        let panels = (left.count(), right.count());
        let mut step = (micro.macro_tile.0.min(panels.0), micro.macro_tile.1.min(panels.1));
        let wanted = if threads == 1 { 1 } else { threads * TASKS_PER_THREAD };
        let tasks = |s: (usize, usize)| panels.0.div_ceil(s.0) * panels.1.div_ceil(s.1);
        while tasks(step) < wanted && step.0 * step.1 > 2 {
            // Halving the longer side (in elements) keeps the reuse of both operands alike.
            let longer = step.0 * micro.mr >= step.1 * micro.nr;
            if (longer && step.0 > 1) || step.1 == 1 {
                step.0 = step.0.div_ceil(2);
            } else {
                step.1 = step.1.div_ceil(2);
            }
        }
        Self { panels, step }
    }

    fn tasks(&self) -> usize {
        self.panels.0.div_ceil(self.step.0) * self.panels.1.div_ceil(self.step.1)
    }

    /// Panels of A and of B of one task. Neighbouring tasks share the panels of B.
    fn task(&self, task: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let down = self.panels.0.div_ceil(self.step.0);
        let (p, q) = (task % down * self.step.0, task / down * self.step.1);
        (p..(p + self.step.0).min(self.panels.0), q..(q + self.step.1).min(self.panels.1))
    }
}

/// Packed operands and the kernel that multiplies them.
struct Product<'a, U> {
    isa: Isa,
    micro: &'a Micro<U>,
    left: Panels,
    right: Panels,
    a: &'a [U],
    b: &'a [U],
}

impl<U: Unit> Product<'_, U> {
    /// Computes the tiles of some panels of A and B and hands them to the target.
    fn macro_tile<T: Target>(
        &self,
        rows: std::ops::Range<usize>,
        cols: std::ops::Range<usize>,
        acc: &mut Buffer,
        target: &T,
    ) {
        let (micro, depth) = (self.micro, self.left.depth);
        let tile = micro.mr * micro.nr;
        let acc = acc.sized(rows.len() * cols.len() * tile);
        if depth == 0 {
            acc.fill(0.0);
        }
        micro.enter();
        let longest = micro.block(depth);
        for from in (0..depth).step_by(longest) {
            let block = longest.min(depth - from);
            for (j, q) in cols.clone().enumerate() {
                let b = &self.b[self.right.block(q, from, block)];
                for (i, p) in rows.clone().enumerate() {
                    let a = &self.a[self.left.block(p, from, block)];
                    let at = (i * cols.len() + j) * tile;
                    micro.run(block, a, b, &mut acc[at..at + tile], from == 0);
                }
            }
        }
        micro.leave();
        let finish = Finish { product: self, rows, cols, acc, target };
        dispatch(self.isa, finish);
    }
}

struct Finish<'a, U, T> {
    product: &'a Product<'a, U>,
    rows: std::ops::Range<usize>,
    cols: std::ops::Range<usize>,
    acc: &'a [f32],
    target: &'a T,
}

impl<U: Unit, T: Target> Kernel for Finish<'_, U, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Micro { mr, nr, .. } = *self.product.micro;
        let (m, n) = (self.product.left.rows, self.product.right.rows);
        let strips = self.acc.chunks_exact(self.cols.len() * mr * nr);
        for (p, strip) in self.rows.zip(strips) {
            for i in 0..mr.min(m - p * mr) {
                for (q, tile) in self.cols.clone().zip(strip.chunks_exact(mr * nr)) {
                    let valid = nr.min(n - q * nr);
                    let values = &tile[i * nr..i * nr + valid];
                    // SAFETY: a tile of C is one task's, and this loop names each of its elements once.
                    unsafe { self.target.put(simd, p * mr + i, q * nr, values) };
                }
            }
        }
    }
}
