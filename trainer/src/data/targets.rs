//! Stored targets: how many words a row takes, how an answer becomes words, how rows become a batch's targets.

use crate::batch::Targets;

use super::error::{DataError, FieldProblem, Place};
use super::labels::Labels;
use super::source::{Answer, SourceOptions};

/// What the rows of a set should give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetShape {
    /// Nothing: rows to predict.
    None,
    /// One of `classes`; stored as one word.
    Class {
        /// Number of classes.
        classes: usize,
    },
    /// Any of `width` labels; stored as bits.
    Multi {
        /// Number of labels.
        width: usize,
    },
    /// `width` numbers; stored as f32.
    Value {
        /// Numbers per row.
        width: usize,
    },
}

impl TargetShape {
    /// 32-bit words per stored row.
    pub fn words(self) -> usize {
        match self {
            TargetShape::None => 0,
            TargetShape::Class { .. } => 1,
            TargetShape::Multi { width } => width.div_ceil(32),
            TargetShape::Value { width } => width,
        }
    }

    /// Outputs that a model for these targets has (the width of its logits).
    pub fn outputs(self) -> usize {
        match self {
            TargetShape::None => 0,
            TargetShape::Class { classes } => classes,
            TargetShape::Multi { width } | TargetShape::Value { width } => width,
        }
    }

    /// Builds the targets of a batch from the stored words of its rows, `words()` per row.
    pub fn collate<'a>(self, rows: impl Iterator<Item = &'a [u32]>) -> Targets {
        match self {
            TargetShape::None => Targets::None,
            TargetShape::Class { .. } => Targets::Class(rows.map(|words| words[0]).collect()),
            TargetShape::Multi { width } => {
                let bit = |words: &[u32], idx: usize| (words[idx / 32] >> (idx % 32) & 1) as f32;
                let values = rows.flat_map(|words| (0..width).map(move |idx| bit(words, idx))).collect();
                Targets::Multi { width, values }
            }
            TargetShape::Value { width } => {
                let values = rows.flat_map(|words| words.iter().map(|&bits| f32::from_bits(bits))).collect();
                Targets::Value { width, values }
            }
        }
    }
}

/// Maps answers to stored words.
pub struct Encoder<'a> {
    /// Shape of every answer.
    pub shape: TargetShape,
    /// Label mapping (empty for regression).
    pub labels: &'a Labels,
    /// Names the label columns.
    pub options: &'a SourceOptions,
}

impl Encoder<'_> {
    /// Appends the words of one answer.
    ///
    /// # Errors
    /// An unknown label, another number of values than the rows before.
    pub fn push(&self, answer: &Answer, place: &Place, words: &mut Vec<u32>) -> Result<(), DataError> {
        let fail = |idx: usize, problem| DataError::Field {
            place: place.clone(),
            column: self.options.label[idx.min(self.options.label.len() - 1)].clone(),
            problem,
        };
        let start = words.len();
        let width = self.shape.outputs();
        match answer {
            Answer::None => {}
            Answer::Label(name) => words.push(self.labels.require(name).map_err(|p| fail(0, p))?),
            Answer::Labels(names) => {
                words.resize(start + self.shape.words(), 0);
                for name in names {
                    let id = self.labels.require(name).map_err(|p| fail(0, p))? as usize;
                    words[start + id / 32] |= 1 << (id % 32);
                }
            }
            Answer::Flags(flags) => {
                words.resize(start + self.shape.words(), 0);
                for (column, _) in flags.iter().enumerate().filter(|(_, flag)| **flag) {
                    let id = self.labels.require(&self.options.label[column]).map_err(|p| fail(column, p))?
                        as usize;
                    words[start + id / 32] |= 1 << (id % 32);
                }
            }
            Answer::Values(values) if values.len() != width => {
                return Err(fail(0, FieldProblem::Width { expected: width, found: values.len() }));
            }
            Answer::Values(values) => words.extend(values.iter().map(|x| x.to_bits())),
        }
        Ok(())
    }
}
