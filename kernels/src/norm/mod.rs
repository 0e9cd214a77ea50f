//! Residual, dropout and LayerNorm in one pass: y = dropout_out(LayerNorm(residual + dropout_in(x))).
//!
//! Statistics are f32 and taken from the sum as it is stored, so that backward sees exactly what forward normalised.
//! Each row is read from memory once: what is needed again meanwhile is kept in f32 in a row of scratch, which stays in
//! the nearest cache.

mod backward;
mod forward;

pub use backward::{Backward, backward};
pub use forward::{Forward, forward};

use crate::dropout::{Dropout, RowMask, row_or_keep};
use crate::element::{DType, Element};

/// The mask of token `t`, if anything is dropped: the loops without one have no branch.
fn mask(dropout: Option<&Dropout<'_>>, t: usize) -> Option<RowMask> {
    dropout.filter(|d| d.rate > 0.0).map(|d| row_or_keep(Some(d), t))
}

fn check_masks(masks: &[Option<&Dropout<'_>>], rows: usize) {
    for d in masks.iter().flatten() {
        assert_eq!(d.rows.len(), rows, "dropout rows must be (T) = ({rows})");
        assert!((0.0..1.0).contains(&d.rate), "dropout rate must be in [0, 1), got {}", d.rate);
    }
}

/// A row of f32 scratch, or nothing where the elements are f32 already.
fn wide_row<E: Element>(cols: usize) -> Vec<f32> {
    match E::DTYPE {
        DType::F32 => Vec::new(),
        DType::Bf16 => vec![0.0; cols],
    }
}

/// The elements as f32: the slice itself, or widened into `scratch`.
#[inline(always)]
fn widened<'s, E: Element>(x: &'s [E], scratch: &'s mut [f32]) -> &'s [f32] {
    match E::as_f32(x) {
        Some(same) => same,
        None => {
            for (wide, x) in scratch.iter_mut().zip(x) {
                *wide = x.to_f32();
            }
            scratch
        }
    }
}
