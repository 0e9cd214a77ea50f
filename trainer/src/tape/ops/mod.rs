//! The operations of the tape, each forward beside its backward.

mod attention;
mod conv;
mod embed;
mod feed_forward;
mod linear;
mod norm;
mod select;

use muster_kernels::Element;

use super::Backward;
use super::buffer::Buf;
pub use attention::{Heads, Relative};
pub use embed::Embed;
pub use linear::Logits;
pub use norm::Rates;

/// What an operation saved for its backward.
pub(super) enum Op<E: Element> {
    Linear(linear::LinearOp<E>),
    FeedForward(feed_forward::FeedForwardOp<E>),
    Activation(linear::ActivationOp<E>),
    AddNorm(norm::AddNormOp<E>),
    Dropout(norm::DropoutOp<E>),
    Embed(embed::EmbedOp),
    TableRows(embed::TableRowsOp),
    Attention(attention::AttentionOp<E>),
    Unfold(conv::UnfoldOp<E>),
    First(select::FirstOp<E>),
}

impl<E: Element> Op<E> {
    /// The element behind the last parameter that it reads; 0 if it reads none.
    pub(super) fn params_end(&self) -> usize {
        match self {
            Self::Linear(op) => op.params_end(),
            Self::FeedForward(op) => op.params_end(),
            Self::AddNorm(op) => op.params_end(),
            Self::Embed(op) => op.params_end(),
            Self::TableRows(op) => op.params_end(),
            Self::Activation(_)
            | Self::Dropout(_)
            | Self::Attention(_)
            | Self::Unfold(_)
            | Self::First(_) => 0,
        }
    }

    /// Gives the gradients of the inputs, from the gradient of the output.
    pub(super) fn backward(self, dy: Buf<E>, back: &mut Backward<'_, '_, E>) {
        match self {
            Self::Linear(op) => op.backward(dy, back),
            Self::FeedForward(op) => op.backward(dy, back),
            Self::Activation(op) => op.backward(dy, back),
            Self::AddNorm(op) => op.backward(dy, back),
            Self::Dropout(op) => op.backward(dy, back),
            Self::Embed(op) => op.backward(dy, back),
            Self::TableRows(op) => op.backward(dy, back),
            Self::Attention(op) => op.backward(dy, back),
            Self::Unfold(op) => op.backward(dy, back),
            Self::First(op) => op.backward(dy, back),
        }
    }
}
