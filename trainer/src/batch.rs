//! What the loader hands to the model: sequences laid end to end, without padding.

/// The targets of the rows of a micro-batch, in row order.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Prediction: there are no targets.
    None,
    /// One class per row, shape `(R)`.
    Class(Vec<u32>),
    /// Any number of labels per row: 0 or 1, shape `(R, width)`.
    Multi {
        /// Labels.
        width: usize,
        /// 0 or 1, row-major.
        values: Vec<f32>,
    },
    /// Regression values, shape `(R, width)`.
    Value {
        /// Values per row.
        width: usize,
        /// Row-major values.
        values: Vec<f32>,
    },
}

/// One row as the tokenizer gives it: one text or a pair as token ids, special tokens included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoding {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Index of the first token of type 1; `ids.len()` if every token has type 0 (no pair, or a model without types).
    pub second_from: u32,
    /// Length the row would have without truncation, special tokens included.
    pub full_len: u32,
}

/// A packed micro-batch of `R` rows and `T` tokens in all.
#[derive(Debug, Clone, PartialEq)]
pub struct MicroBatch {
    /// Token ids, shape `(T)`.
    pub ids: Vec<u32>,
    /// Token types (0 or 1), shape `(T)`.
    pub type_ids: Vec<u32>,
    /// Position of each token inside its row, from 0, shape `(T)`.
    pub positions: Vec<u32>,
    /// Row `r` holds the tokens `offsets[r]..offsets[r + 1]`, shape `(R + 1)`.
    pub offsets: Vec<u32>,
    /// Index of each row in its dataset, shape `(R)`; random streams are keyed by it.
    pub row_ids: Vec<u64>,
    /// What the rows should give.
    pub targets: Targets,
}

impl MicroBatch {
    /// Starts a micro-batch without rows and targets.
    pub fn empty() -> Self {
        Self {
            ids: Vec::new(),
            type_ids: Vec::new(),
            positions: Vec::new(),
            offsets: vec![0],
            row_ids: Vec::new(),
            targets: Targets::None,
        }
    }

    /// Lays a row behind the others; tokens from `second_from` on have type 1.
    pub fn push(&mut self, row_id: u64, ids: &[u32], second_from: u32) {
        let len = ids.len() as u32;
        self.ids.extend_from_slice(ids);
        self.type_ids.extend((0..len).map(|at| u32::from(at >= second_from)));
        self.positions.extend(0..len);
        self.offsets.push(self.ids.len() as u32);
        self.row_ids.push(row_id);
    }

    /// Counts the rows (`R`).
    pub fn rows(&self) -> usize {
        self.row_ids.len()
    }

    /// Counts the tokens (`T`).
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Length of the longest row in tokens.
    pub fn max_len(&self) -> usize {
        self.offsets.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0)
    }
}
