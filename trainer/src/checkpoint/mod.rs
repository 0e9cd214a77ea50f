//! Checkpoints: a run can be killed at any moment and continue as if it had not been.
//!
//! A checkpoint is a folder `checkpoint-<step>` that is also a Hugging Face model folder:
//!
//! | file | holds |
//! |---|---|
//! | `config.json`, `model.safetensors`, tokenizer files | the model |
//! | `trainer_state.safetensors` | both moments; the f32 master weights if the model file is bf16 |
//! | `state.json` | step, cursor, seed, best metric, early stopping, totals, fingerprints |
//! | `manifest.json` | size and XXH3-64 of every other file; written last |
//!
//! Invariants: a folder with that name is complete; nothing is removed before its successor is on disk; a damaged
//! checkpoint is never used and never mistaken for "no checkpoint". Not here: when to save ([`crate::train`]).
#![forbid(unsafe_code)]

pub(crate) mod durable;
mod error;
mod manifest;
mod read;
mod save;
mod state;

pub use durable::check_space;
pub use error::CheckpointError;
pub use manifest::{FileRecord, MANIFEST, Manifest};
pub use read::{Entry, Found, latest_valid, list, load, load_found, read_state, verify};
pub use save::{Contents, STATE, Saved, Store, TRAINER_STATE, checkpoint_name, estimated_bytes};
pub use state::{Best, Evaluation, Fingerprints, STATE_FORMAT, State, Totals, layout_fingerprint};
