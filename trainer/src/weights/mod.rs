//! Reading and writing model weights.
//!
//! Reads `model.safetensors` and `pytorch_model.bin`, each also in shards, as f32 straight into the master arena:
//! one tensor at a time, with positioned reads and a buffer below 1 MiB, never a second copy of the model.
//! PyTorch files go through a reader of our own that executes nothing. Every size, offset and stride of a file is
//! checked before it is used.
//!
//! Not here: downloading ([`crate::hub`]), saving a model folder ([`crate::export`]), initial values of new heads
//! ([`crate::model::random_weights`]).
#![forbid(unsafe_code)]

mod dtype;
mod entry;
mod error;
mod files;
mod load;
pub mod pickle;
mod safetensors_read;
mod torch_read;
mod write;

pub use dtype::StoredDtype;
pub use entry::TensorInfo;
pub use error::WeightsError;
pub(crate) use files::{FOREIGN, is_plain_name};
pub use files::{LOOKED_FOR, WeightFiles, read_index};
pub use load::{HeadRule, LoadReport, LoadRules, Reshaped, load_into};
pub use write::{FileDtype, SafetensorsWriter, TensorOut};
