//! Attention over packed sequences, plain and with DeBERTa's relative terms (He et al. 2021, equation 4).
//!
//! `score(i, j) = scale * (Q_i . K_j + Q_i . Kr[slot(i - j)] + K_j . Qr[slot(i - j)])`, the last two where
//! [`Terms`] has them, soft-maxed over j in f32 with the row maximum removed; the scale goes to Q and Qr before the products, so that large raw scores stay
//! in range. Probabilities are recomputed in backward from the log-sum-exp. No (heads, T, T) tensor exists, and no
//! (n, n) one: a thread works on a block of up to 64 queries against all keys of their sequence ([`scratch_bytes`]).

mod backward;
mod block;
mod forward;
mod gradients;
mod product;
mod relative;
mod rows;
mod scratch;
mod softmax;
mod table;
mod tasks;
mod vector;

pub use backward::{Backward, backward};
pub use forward::{Forward, forward};
pub use scratch::scratch_bytes;
pub use table::RelativeGrad;

use crate::dropout::Dropout;

/// Which tokens attend to each other, and how the columns are cut into heads.
#[derive(Debug, Clone, Copy)]
pub struct Shape<'a> {
    /// First token of each sequence, and T at the end (R + 1).
    pub offsets: &'a [u32],
    /// Number of heads.
    pub heads: usize,
    /// Columns of a head; H = heads * head_dim.
    pub head_dim: usize,
}

impl Shape<'_> {
    /// H.
    pub(crate) fn hidden(&self) -> usize {
        self.heads * self.head_dim
    }

    /// T.
    pub(crate) fn tokens(&self) -> usize {
        self.offsets.last().map_or(0, |&t| t as usize)
    }

    /// R.
    pub(crate) fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// First token and length of a sequence.
    pub(crate) fn row(&self, r: usize) -> (usize, usize) {
        let (from, to) = (self.offsets[r] as usize, self.offsets[r + 1] as usize);
        (from, to - from)
    }

    fn check(&self) {
        let o = self.offsets;
        assert!(!o.is_empty() && o[0] == 0, "offsets must be (R + 1) and start at 0");
        assert!(o.windows(2).all(|w| w[0] <= w[1]), "offsets must not decrease");
        assert!(self.heads > 0 && self.head_dim > 0, "heads and head_dim must be positive");
    }
}

/// Which relative terms a score has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Terms {
    /// Content to position only: Q_i . Kr.
    C2p,
    /// Position to content only: K_j . Qr.
    P2c,
    /// Both.
    Both,
}

impl Terms {
    /// Whether Q_i . Kr is part of the score.
    pub const fn c2p(self) -> bool {
        matches!(self, Self::C2p | Self::Both)
    }

    /// Whether K_j . Qr is part of the score.
    pub const fn p2c(self) -> bool {
        matches!(self, Self::P2c | Self::Both)
    }
}

/// The projected relative embeddings and the map from distances to them.
#[derive(Debug, Clone, Copy)]
pub struct Relative<'a, E> {
    /// Kr: P rows of H, `row_stride` apart; may be empty without c2p.
    pub keys: &'a [E],
    /// Qr: P rows of H, `row_stride` apart; may be empty without p2c.
    pub queries: &'a [E],
    /// Elements from one row to the next: H, or 2 H where both are column blocks of one matrix.
    pub row_stride: usize,
    /// Row of keys and queries for each distance i - j in -(max - 1) ..= max - 1, at index i - j + max - 1.
    pub slots: &'a [u32],
    /// Which terms there are.
    pub terms: Terms,
}

fn check_common<E>(
    shape: &Shape<'_>,
    qkv: &[E],
    relative: Option<&Relative<'_, E>>,
    dropout: Option<&Dropout<'_>>,
) {
    shape.check();
    let (tokens, hidden) = (shape.tokens(), shape.hidden());
    assert_eq!(qkv.len(), tokens * 3 * hidden, "qkv must be (T, 3 H) = ({tokens}, 3 * {hidden})");
    if let Some(d) = dropout {
        assert_eq!(d.rows.len(), tokens, "dropout rows must be (T) = ({tokens})");
        assert!((0.0..1.0).contains(&d.rate), "dropout rate must be in [0, 1), got {}", d.rate);
    }
    if let Some(r) = relative {
        assert!(r.row_stride >= hidden, "row_stride {} must be at least H = {hidden}", r.row_stride);
        assert!(r.slots.len() % 2 == 1, "slots must have 2 max - 1 entries, got {}", r.slots.len());
        let longest = (0..shape.rows()).map(|i| shape.row(i).1).max().unwrap_or(0);
        let max = r.slots.len().div_ceil(2);
        assert!(longest <= max, "a sequence of {longest} tokens is longer than the slots' {max}");
        let last = r.slots.iter().max().map_or(0, |&s| s as usize) * r.row_stride + hidden;
        assert!(!r.terms.c2p() || r.keys.len() >= last, "keys end before the highest slot");
        assert!(!r.terms.p2c() || r.queries.len() >= last, "queries end before the highest slot");
    }
}
