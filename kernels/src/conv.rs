//! One-dimensional convolution as an unfolding followed by a linear layer.
//!
//! Odd kernels with "same" padding; positions outside of a sequence read as zero, so nothing leaks between the
//! sequences of a packed batch.

use crate::element::Element;
use crate::pool::{Pool, row_block};

fn check(cols: usize, kernel: usize, offsets: &[u32], narrow: usize, wide: usize) -> usize {
    assert!(kernel % 2 == 1, "only odd kernels keep the length, got {kernel}");
    assert!(!offsets.is_empty() && offsets[0] == 0, "offsets must be (R + 1) and start at 0");
    assert!(offsets.windows(2).all(|w| w[0] <= w[1]), "offsets must not decrease");
    let tokens = offsets[offsets.len() - 1] as usize;
    assert_eq!(narrow, tokens * cols, "the narrow side must be (T, cols) = ({tokens}, {cols})");
    assert_eq!(wide, tokens * cols * kernel, "the wide side must be (T, cols * kernel)");
    tokens
}

/// First and last-but-one token of the sequence that token t is in.
fn bounds(offsets: &[u32], t: usize) -> (usize, usize) {
    let after = offsets.partition_point(|&o| o as usize <= t);
    (offsets[after - 1] as usize, offsets[after] as usize)
}

/// Tap k of token t reads this token, if it is inside the sequence.
#[inline(always)]
fn tap(t: usize, k: usize, half: usize, (from, to): (usize, usize)) -> Option<usize> {
    let at = (t + k).checked_sub(half)?;
    (from..to).contains(&at).then_some(at)
}

/// `y[t, c * kernel + k] = x[t + k - kernel / 2, c]`; x (T, cols), y (T, cols * kernel): the order of a PyTorch
/// Conv1d weight (out, in, k), so the convolution is `linear` on y.
pub fn unfold<E: Element>(pool: &Pool, cols: usize, kernel: usize, offsets: &[u32], x: &[E], y: &mut [E]) {
    if check(cols, kernel, offsets, x.len(), y.len()) * cols == 0 {
        return;
    }
    let (block, width) = (row_block(cols * kernel), cols * kernel);
    pool.each(y.chunks_mut(block * width).enumerate(), |(b, y)| {
        for (i, y) in y.chunks_mut(width).enumerate() {
            let t = b * block + i;
            let row = bounds(offsets, t);
            for k in 0..kernel {
                let out = y.iter_mut().skip(k).step_by(kernel);
                match tap(t, k, kernel / 2, row) {
                    Some(at) => out.zip(&x[at * cols..][..cols]).for_each(|(y, x)| *y = *x),
                    None => out.for_each(|y| *y = E::zeroed()),
                }
            }
        }
    });
}

/// The gradient of [`unfold`]: `dx[t, c] = sum over k of dy[t - k + kernel / 2, c * kernel + k]`; sets dx.
pub fn fold<E: Element>(pool: &Pool, cols: usize, kernel: usize, offsets: &[u32], dy: &[E], dx: &mut [E]) {
    if check(cols, kernel, offsets, dx.len(), dy.len()) * cols == 0 {
        return;
    }
    let (block, width) = (row_block(cols * kernel), cols * kernel);
    pool.each(dx.chunks_mut(block * cols).enumerate(), |(b, dx)| {
        let mut sum = vec![0.0_f32; cols];
        for (i, dx) in dx.chunks_mut(cols).enumerate() {
            let t = b * block + i;
            let row = bounds(offsets, t);
            sum.fill(0.0);
            for k in 0..kernel {
                // The token whose tap k reads t is kernel - 1 - k places away in the mirrored sense.
                if let Some(at) = tap(t, kernel - 1 - k, kernel / 2, row) {
                    let taken = dy[at * width..][..width].iter().skip(k).step_by(kernel);
                    sum.iter_mut().zip(taken).for_each(|(s, d)| *s += d.to_f32());
                }
            }
            dx.iter_mut().zip(&sum).for_each(|(d, s)| *d = E::from_f32(*s));
        }
    });
}
