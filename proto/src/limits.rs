//! Bounds of everything that could grow with bad input: files, lists, queues, retries.
//!
//! A limit is generous for real work and small enough that reaching it means a mistake.

/// Largest run file, in bytes.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Most problems of one run file that are listed.
pub const MAX_PROBLEMS: usize = 50;
/// Most `--set key=value` overrides of one command.
pub const MAX_OVERRIDES: usize = 256;
/// Longest run name, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

/// Most labels (or regression targets) of one task.
pub const MAX_LABELS: usize = 16_384;
/// Longest label, in bytes.
pub const MAX_LABEL_BYTES: usize = 256;

/// Shortest allowed `data.max_length`, in tokens: three special tokens of a pair and one of each text.
pub const MIN_SEQUENCE_TOKENS: usize = 5;
/// Longest sequence, in tokens.
pub const MAX_SEQUENCE_TOKENS: usize = 32_768;
/// Most data files of one list of the run file.
pub const MAX_DATA_FILES: usize = 4_096;
/// Longest text of one row, in bytes, before tokenizing.
pub const MAX_TEXT_BYTES: usize = 16 << 20;
/// Most data problems listed before reading stops.
pub const MAX_DATA_PROBLEMS: usize = 20;

/// Largest global batch, in rows.
pub const MAX_GLOBAL_BATCH: usize = 1 << 20;
/// Largest micro-batch, in tokens.
pub const MAX_MICRO_BATCH_TOKENS: usize = 1 << 22;
/// Most optimizer steps of one run.
pub const MAX_STEPS: u64 = 1 << 40;
/// Most passes over the data.
pub const MAX_EPOCHS: f64 = 1e6;
/// Most compute threads of one rank.
pub const MAX_THREADS: usize = 1_024;
/// Most checkpoints kept at once.
pub const MAX_KEEP_LAST: usize = 10_000;

/// Steps that the loader prepares ahead.
pub const LOADER_QUEUE_STEPS: usize = 4;
/// Bytes of metadata accepted at the head of a safetensors file.
pub const MAX_TENSOR_HEADER_BYTES: u64 = 100 << 20;
/// Attempts of a download from the hub before it fails.
pub const HUB_RETRIES: usize = 3;

/// Most CPUs of a machine that the topology reader accepts.
pub const MAX_CPUS: usize = 8_192;
/// Deepest cgroup nesting that is followed.
pub const MAX_CGROUP_DEPTH: usize = 64;
/// Most nodes of one run.
pub const MAX_NODES: usize = 4_096;
/// Most ranks of one run.
pub const MAX_RANKS: u32 = 16_384;
