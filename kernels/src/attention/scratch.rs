//! Scratch of one thread: tiles of a block of queries, and the keys, values and relative rows of a sequence.
//!
//! Its size is linear in the length of the longest sequence: [`scratch_bytes`].

use std::cell::RefCell;

use super::vector::PAD;
use crate::aligned::Buffer;

/// Queries of a block: scores of a block against all keys of 512 tokens stay in L2.
pub(super) const BLOCK: usize = 64;

/// Most heads of a task with relative terms whose sequences fit into one block: their columns are neighbours in memory,
/// and reading 128 bytes of a row at a time would leave most of the memory's speed unused.
pub(super) const HEADS: usize = 4;

/// Zeros that a gradient of scores has on every side, for products over bands; at least the rows of a register tile.
pub(super) const MARGIN: usize = 8;

/// The next multiple of the register width.
pub(super) const fn padded(x: usize) -> usize {
    x.div_ceil(PAD) * PAD
}

/// Distance of rows of at least `cols` elements: an odd number of cache lines, so that a column does not fall into
/// few sets of the cache.
pub(super) const fn row_stride(cols: usize) -> usize {
    padded(cols) | PAD
}

/// Distance of rows of a block of scores: a zero margin, the keys, a zero margin.
pub(super) const fn score_stride(n: usize) -> usize {
    row_stride(PAD + padded(n) + MARGIN)
}

/// All tiles. Rows of a head are `padded(head_dim)` apart, rows of a transpose `row_stride(length)`.
#[derive(Default)]
pub(super) struct Scratch {
    /// A block's queries, its output or gradient of it, and gradient of the queries (BLOCK, d).
    pub(super) q: Buffer,
    pub(super) o: Buffer,
    pub(super) dout: Buffer,
    pub(super) dq: Buffer,
    /// All keys (n, d), and transposed (d, n).
    pub(super) k: Buffer,
    pub(super) kt: Buffer,
    /// All values (n, d); transposed in backward (d, n).
    pub(super) v: Buffer,
    pub(super) vt: Buffer,
    /// Gradients of all keys and values (n, d).
    pub(super) dk: Buffer,
    pub(super) dv: Buffer,
    /// Scores of a block, then probabilities or the gradient of the scores, with margins.
    pub(super) scores: Buffer,
    /// Gradient of a block's probabilities, then the dropped probabilities.
    pub(super) dp: Buffer,
    /// Relative terms of a few rows or columns of a block.
    pub(super) strip: Buffer,
    /// One for each head of a task.
    pub(super) tables: [Table; HEADS],
}

/// Relative rows of a head by distance, see [`super::relative::Span`].
#[derive(Default)]
pub(super) struct Table {
    /// Kr, and transposed with distances running downwards.
    pub(super) kr: Buffer,
    pub(super) krt: Buffer,
    /// Qr, scaled.
    pub(super) qr: Buffer,
    /// Gradients.
    pub(super) dkr: Buffer,
    pub(super) dqr: Buffer,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Lends this thread's buffers. The tasks of this module start no work on other threads, so a thread never enters
/// twice.
pub(super) fn with<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|t| f(&mut t.borrow_mut()))
}

/// Most bytes that one thread holds for forward and backward of sequences of up to `longest` tokens with relative
/// terms: `O(longest * head_dim)`.
pub fn scratch_bytes(longest: usize, head_dim: usize) -> usize {
    let d = padded(head_dim);
    let block = 4 * BLOCK * d;
    let sequence = 4 * padded(longest) * d + 2 * d * row_stride(longest);
    let scores = (2 * BLOCK + 2 * MARGIN) * score_stride(longest) + strip_len(longest);
    let span = super::relative::Span::of(longest);
    let relative = 4 * span.rows() * d + d * span.stride();
    let heads = if longest <= BLOCK { HEADS } else { 1 };
    (block + sequence + scores + relative * heads) * size_of::<f32>()
}

/// Elements of [`Scratch::strip`]: a tile of rows against all slots, or a block against the slots of a few keys.
pub(super) const fn strip_len(n: usize) -> usize {
    let rows = MARGIN * (padded(n) + 2 * PAD);
    let columns = (BLOCK + PAD) * PAD;
    if rows > columns { rows } else { columns }
}

#[cfg(test)]
mod tests {
    use super::super::{Backward, Forward, Relative, RelativeGrad, Shape, Terms, backward, forward};
    use super::*;
    use crate::pool::Pool;

    fn held() -> usize {
        with(|t| {
            let tables = t.tables.iter().flat_map(|t| [&t.kr, &t.krt, &t.qr, &t.dkr, &t.dqr]);
            let blocks = [&t.q, &t.o, &t.dout, &t.dq, &t.scores, &t.dp, &t.strip];
            let sequence = [&t.k, &t.kt, &t.v, &t.vt, &t.dk, &t.dv];
            blocks.into_iter().chain(sequence).chain(tables).map(Buffer::bytes).sum()
        })
    }

    /// Forward and backward of one sequence on this thread, with relative terms.
    fn run(n: usize, heads: usize, head_dim: usize) {
        let (hidden, slots) = (heads * head_dim, (0..2 * n as u32 - 1).collect::<Vec<_>>());
        let (qkv, table) = (vec![0.1_f32; n * 3 * hidden], vec![0.1_f32; slots.len() * hidden]);
        let (mut out, mut lse) = (vec![0.0_f32; n * hidden], vec![0.0; n * heads]);
        let (keys, queries, terms) = (&table[..], &table[..], Terms::Both);
        let relative = Some(Relative { keys, queries, row_stride: hidden, slots: &slots, terms });
        let offsets = [0, n as u32];
        let (shape, qkv, scale) = (Shape { offsets: &offsets, heads, head_dim }, &qkv[..], 0.1);
        let pool = Pool::new(1).expect("one thread is this one");
        let (o, l) = (&mut out[..], &mut lse[..]);
        forward(&pool, Forward { shape, qkv, relative, scale, dropout: None, out: o, lse: l });
        let (mut dqkv, mut dkeys, mut dqueries) = (qkv.to_vec(), table.clone(), table.clone());
        let drelative = Some(RelativeGrad { keys: &mut dkeys, queries: &mut dqueries });
        let (out, lse, dout, dqkv, dropout) = (&out[..], &lse[..], &out[..], &mut dqkv[..], None);
        let b = Backward { shape, qkv, relative, scale, dropout, out, lse, dout, dqkv, drelative };
        backward(&pool, b);
    }

    #[test]
    fn a_thread_holds_no_more_than_is_said() {
        for (n, heads, head_dim) in [(1, 1, 1), (16, 5, 32), (64, 4, 64), (65, 4, 64), (500, 2, 32)] {
            let bytes = std::thread::spawn(move || {
                run(n, heads, head_dim);
                held()
            });
            let (held, said) = (bytes.join().expect("attention runs"), scratch_bytes(n, head_dim));
            // Partial lines and blocks; nothing comes near a square of n.
            assert!(held <= said && said <= 2 * held + (64 << 10), "n {n}: {held} held, {said} said");
        }
    }

    #[test]
    fn columns_never_fall_into_few_sets() {
        for n in 1..1000 {
            assert!(row_stride(n) >= n && row_stride(n) % (2 * PAD) == PAD);
        }
    }
}
