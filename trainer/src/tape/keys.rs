//! Keys of the dropout streams: pure functions of (seed, step, site, data row, position).

use std::rc::Rc;

use muster_kernels::dropout::Dropout;
use muster_kernels::rng::mix;

use crate::batch::MicroBatch;

/// What the rows of a value that is dropped out stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// One row per token of the micro-batch.
    Token,
    /// One row per sequence of the micro-batch.
    Sequence,
    /// One row per slot of the relative-position table: the same for every micro-batch of a step.
    Slot,
}

/// Row keys of one micro-batch; splitting a batch in another way changes none of them.
#[derive(Debug, Clone)]
pub struct DropoutKeys {
    step: u64,
    tokens: Rc<[u64]>,
    sequences: Rc<[u64]>,
}

/// Slots have no data row; their keys only need to differ from each other.
const SLOT_KEYS: u64 = 0x736c_6f74;

impl DropoutKeys {
    /// Derives the keys of `batch` in optimizer step `step`.
    pub fn new(seed: u64, step: u64, batch: &MicroBatch) -> Self {
        let mut tokens = Vec::with_capacity(batch.tokens());
        let mut sequences = Vec::with_capacity(batch.rows());
        for (row, bounds) in batch.row_ids.iter().zip(batch.offsets.windows(2)) {
            let row_key = mix(*row, 0);
            sequences.push(row_key);
            let positions = &batch.positions[bounds[0] as usize..bounds[1] as usize];
            tokens.extend(positions.iter().map(|&p| mix(row_key, u64::from(p) + 1)));
        }
        Self { step: mix(seed, step), tokens: tokens.into(), sequences: sequences.into() }
    }

    /// The key of the `site`-th dropout of the model in this step.
    pub(super) fn site(&self, site: u64) -> u64 {
        mix(self.step, site)
    }

    /// Row keys for `rows` rows of this kind; `first_slot` is the table row of the first slot.
    pub(super) fn rows(&self, kind: KeyKind, rows: usize, first_slot: usize) -> Rc<[u64]> {
        match kind {
            KeyKind::Token => Rc::clone(&self.tokens),
            KeyKind::Sequence => Rc::clone(&self.sequences),
            KeyKind::Slot => (0..rows).map(|r| mix(SLOT_KEYS, (first_slot + r) as u64)).collect(),
        }
    }
}

/// One use of dropout, kept for the backward pass.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub rate: f32,
    pub key: u64,
    pub rows: Rc<[u64]>,
}

impl Site {
    pub(super) fn view(&self) -> Dropout<'_> {
        Dropout { rate: self.rate, site: self.key, rows: &self.rows }
    }
}
