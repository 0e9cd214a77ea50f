//! From the user's files to packed micro-batches: readers, label mapping, token cache, sampler, packing, loader.
//!
//! Flow: `source` reads CSV, JSONL or Parquet one row at a time and knows each row's place; `survey` validates every
//! row and settles the labels before a weight is read; `cache` tokenises once and maps the result into memory; `split`
//! sets evaluation rows aside; `sampler` orders the rows of an epoch; `pack` cuts a global batch into micro-batches;
//! `loader` does the last two ahead of the training loop.
//!
//! Invariants: the order of rows and every micro-batch is a pure function of (seed, epoch, step, lengths, budget); no
//! random state is stored, so a cursor in rows is all that a resumed run needs. Texts are never kept: a file of any
//! size is read twice (validation, tokenising) with a bounded number of rows in memory.
//!
//! This module does not know the run file or the tokenizer, only their choices (`OnLong`, `DataFormat`): both come in as
//! plain options and a closure.

mod cache;
mod error;
mod hint;
mod labels;
mod loader;
mod pack;
mod rng;
mod sampler;
mod source;
mod split;
mod survey;
mod targets;

#[cfg(test)]
mod loader_tests;
#[cfg(test)]
mod survey_tests;
#[cfg(test)]
mod testing;

pub use cache::{BuildOptions, BuildProgress, Encode, StoreOrigin, TokenStore};
pub use error::{DataError, FieldProblem, FileProblem, Place, Position, RowProblem, SetProblem};
pub use labels::{LabelOrigin, Labels};
pub use loader::{LoadPlan, Loader, RowSet, StepBatches};
pub use pack::{Budget, collate, pack};
pub use sampler::{EpochOrder, Sampler};
pub use source::{Answer, Reader, Role, Row, SourceOptions, Task, is_table};
pub use split::{Split, split};
pub use survey::{DataSet, Known, Survey, survey};
pub use targets::TargetShape;
