//! Reads the pickle of a PyTorch state dict without executing anything.
//!
//! Only what `torch.save` writes for a table of tensors is understood: protocol 2 opcodes, an allow-list of
//! globals, and three calls that are turned into data here. Anything else stops with the byte where it stands.
//!
//! Objects live in one list and refer to each other by index, so nothing recurses (nesting depth costs nothing,
//! neither while reading nor on drop), a memo entry is a number, and memory is linear in the size of the pickle,
//! which is itself limited. See `docs/decisions/0004-pickle-reader.md`.

mod machine;

use super::dtype::StoredDtype;
use machine::Machine;

/// Largest pickle read, in bytes; a model with 10,000 tensors needs about 1.5 MB.
pub const MAX_PICKLE_BYTES: usize = 4 << 20;

/// Where reading stopped and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {problem}")]
pub struct PickleError {
    /// Offset of the opcode in the pickle.
    pub offset: usize,
    /// What is wrong there.
    pub problem: PickleProblem,
}

/// What is wrong with a pickle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PickleProblem {
    /// The data ends inside an opcode or before `STOP`.
    #[error("the data ends too early")]
    Truncated,
    /// An opcode that `torch.save` doesn't write.
    #[error("opcode 0x{0:02x} is not allowed")]
    Opcode(u8),
    /// A function or class outside the allow-list.
    #[error("`{0}` is not allowed; only tensors are read and nothing is executed")]
    Global(String),
    /// A call of an allowed global with arguments it doesn't take.
    #[error("expected {expected}")]
    Type {
        /// What should be there.
        expected: &'static str,
    },
    /// The pickle is larger than the limit.
    #[error("{found} bytes, more than the limit of {limit}")]
    TooLarge {
        /// Bytes found.
        found: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// An entry of the memo that was never stored.
    #[error("memo entry {0} was never stored")]
    Memo(u32),
    /// A size, stride or offset that can't be.
    #[error("a size, stride or offset is negative or too large")]
    Number,
    /// Two tensors have one name.
    #[error("tensor `{0}` occurs twice")]
    Duplicate(String),
    /// The table holds no tensor.
    #[error("the table holds no tensor")]
    NoTensors,
}

/// The part of the file that holds the elements of one or several tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageRef {
    /// Name of the zip entry under `data/`.
    pub key: String,
    /// Element type.
    pub dtype: StoredDtype,
    /// Elements.
    pub numel: u64,
}

/// One tensor of a state dict, not yet checked against the storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRecord {
    /// Key in the state dict.
    pub name: String,
    /// Where its elements are.
    pub storage: StorageRef,
    /// Element of the storage that is its first.
    pub offset: u64,
    /// Shape.
    pub shape: Vec<usize>,
    /// Distance of neighbours along each dimension, in elements.
    pub strides: Vec<usize>,
}

/// Reads the tensors of a pickled state dict.
///
/// # Errors
/// Any byte sequence that is not a plain table of tensors.
///
/// Cost: memory at most about 100 times the pickle's size (limited to 4 MiB), time linear in it.
pub fn read_state_dict(bytes: &[u8]) -> Result<Vec<TensorRecord>, PickleError> {
    if bytes.len() > MAX_PICKLE_BYTES {
        let problem = PickleProblem::TooLarge { found: bytes.len(), limit: MAX_PICKLE_BYTES };
        return Err(PickleError { offset: 0, problem });
    }
    let mut machine = Machine::new(bytes);
    machine
        .run()
        .and_then(|top| machine.tensors(top))
        .map_err(|problem| PickleError { offset: machine.opcode_at(), problem })
}
