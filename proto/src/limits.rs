//! Bounds of everything that could grow with bad input: files, lists, queues, retries.
//!
//! A limit is generous for real work and small enough that reaching it means a mistake. Limits that are part of a
//! format's grammar (the pickle reader's) stand beside its reader.

use std::time::Duration;

/// Largest run file, in bytes.
pub const MAX_RUN_FILE_BYTES: u64 = 1 << 20;
/// Most problems of one run file that are listed.
pub const MAX_PROBLEMS: usize = 50;
/// Most `--set key=value` overrides of one command.
pub const MAX_OVERRIDES: usize = 256;
/// Longest run name, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

/// Most labels (or regression targets) of one task; more distinct ones mean that the column holds something else.
pub const MAX_LABELS: usize = 16_384;
/// Longest label, in bytes.
pub const MAX_LABEL_BYTES: usize = 256;

/// Shortest allowed `data.max_length`, in tokens: three special tokens of a pair and one of each text.
pub const MIN_SEQUENCE_TOKENS: usize = 5;
/// Longest sequence, in tokens.
pub const MAX_SEQUENCE_TOKENS: usize = 32_768;
/// Most data files of one list of the run file; a token store has 16 bits for the file of a row.
pub const MAX_DATA_FILES: usize = 4_096;
/// Most rows of a data set; the sampler numbers them with 32 bits.
pub const MAX_ROWS: u64 = u32::MAX as u64;
/// Most columns of a CSV file.
pub const MAX_COLUMNS: usize = 10_000;
/// Longest text of one row, in bytes, before tokenizing; also the longest line of a JSONL file.
pub const MAX_TEXT_BYTES: usize = 16 << 20;

/// Rows that a tokenising thread takes at once.
pub const CHUNK_ROWS: usize = 256;
/// A chunk of rows is closed early when its texts hold this many bytes.
pub const CHUNK_BYTES: usize = 1 << 20;
/// Chunks in flight per tokenising thread.
pub const CHUNKS_PER_THREAD: usize = 4;
/// Steps that the loader prepares ahead.
pub const LOADER_QUEUE_STEPS: usize = 4;
/// A read that takes longer than this is reported, and again after each such interval.
pub const STALL_REPORT_INTERVAL: Duration = Duration::from_secs(5);

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
/// Largest `config.json` of a model, in bytes.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Largest manifest of a checkpoint, in bytes.
pub const MAX_MANIFEST_BYTES: u64 = 1 << 20;
/// Largest `state.json` of a checkpoint, in bytes; it grows with every evaluation.
pub const MAX_STATE_BYTES: u64 = 64 << 20;

/// Largest tokenizer file, in bytes; the largest known `tokenizer.json` has about 40 MB.
pub const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// Largest SentencePiece file, in bytes; pieces take more room in memory than in the file, and known ones have 5 MB.
pub const MAX_SPM_BYTES: u64 = 32 << 20;

/// Most shards of a model.
pub const MAX_SHARDS: usize = 1_024;
/// Largest index of shards, in bytes.
pub const MAX_SHARD_INDEX_BYTES: u64 = 64 << 20;
/// Largest header of a safetensors file, in bytes; the format's own limit.
pub const MAX_TENSOR_HEADER_BYTES: u64 = 100_000_000;
/// Most entries of the zip directory of a PyTorch file; a model has one per storage.
pub const MAX_ZIP_ENTRIES: usize = 100_000;

/// Attempts to continue an interrupted download from the hub.
pub const HUB_RETRIES: usize = 3;
/// Deadline of the hub's answer to a small request.
pub const HUB_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A download without a byte for this long is given up.
pub const HUB_STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Progress events of a download under way; bytes are merged, so few are needed.
pub const HUB_EVENT_QUEUE: usize = 64;
/// Most files in the hub's list of a model.
pub const MAX_HUB_FILES: usize = 10_000;
/// Largest token file, in bytes.
pub const MAX_TOKEN_FILE_BYTES: u64 = 64 << 10;

/// Most CPUs of a machine that the topology reader accepts.
pub const MAX_CPUS: usize = 8_192;
/// How often a process looks whether its CPUs or its quota have changed.
pub const PLACE_INTERVAL: Duration = Duration::from_secs(10);
/// Deepest cgroup nesting that is followed.
pub const MAX_CGROUP_DEPTH: usize = 64;
/// Most nodes of one run.
pub const MAX_NODES: usize = 4_096;
/// Longest time in seconds that a rank may keep the others waiting.
pub const MAX_PATIENCE_S: u64 = 3_600;
/// Most ranks of one run.
pub const MAX_RANKS: u32 = 16_384;
/// Most sums that wait for the thread of a node; a step has far fewer buckets.
pub const MAX_QUEUED_SUMS: usize = 4_096;

/// Most ranks that one node agent runs.
pub const MAX_RANKS_PER_NODE: usize = 256;
/// Largest message between an agent and a rank, or of an RPC, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Commands that wait for a rank to read them; a rank that reads none of so many is stuck.
pub const RANK_COMMAND_QUEUE: usize = 64;
/// A rank that doesn't take a command for this long is stuck.
pub const RANK_WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a rank tells its agent that it can run.
pub const RANK_ALIVE_EVERY: Duration = Duration::from_millis(500);
/// A rank that has not told so for this long is frozen.
pub const RANK_FROZEN_AFTER: Duration = Duration::from_secs(10);
/// Messages of ranks that wait for the agent; ranks wait when it is full.
pub const AGENT_INBOX: usize = 1_024;
/// Events of an agent that wait for the coordinator. When it is full, progress and log lines are dropped; a session
/// that has no room for anything else is closed, and the next one begins with the state of all ranks.
pub const SESSION_QUEUE: usize = 4_096;
/// Ended ranks that an agent remembers for coordinators that were away.
pub const ENDED_RANKS_KEPT: usize = 256;
/// Longest log line of a rank, in bytes; the rest of it is dropped.
pub const MAX_LOG_LINE_BYTES: usize = 4_096;
/// Log lines of a rank that are shipped per second, on average; more are counted and dropped.
pub const LOG_LINES_PER_SECOND: u64 = 200;
/// Log lines of a rank that may come at once.
pub const LOG_LINES_BURST: u64 = 2_000;
/// Log lines that are shipped together.
pub const LOG_BATCH_LINES: usize = 64;
/// How long a log line waits for others to be shipped with.
pub const LOG_BATCH_DELAY: Duration = Duration::from_millis(200);
/// Time that ranks of an agent that was told to end have to leave.
pub const LEAVE_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs that a coordinator queues or runs at once.
pub const MAX_OPEN_RUNS: usize = 1_000;
/// Runs that are over and kept as history.
pub const MAX_RUNS_KEPT: usize = 1_000;
/// Events of a run that are kept.
pub const MAX_RUN_EVENTS: usize = 10_000;
/// Log lines of a run that are kept.
pub const MAX_RUN_LOG_LINES: usize = 20_000;
/// Requests and events that wait for the coordinator's owner task.
pub const COORDINATOR_INBOX: usize = 4_096;
/// Commands that wait for a session to send them; a session that has no room is closed.
pub const SESSION_COMMANDS: usize = 1_024;
/// Changes of a run that wait for somebody who watches it; who is slower is sent away.
pub const WATCH_QUEUE: usize = 256;
/// Most people or programs that watch one run or its logs at once.
pub const MAX_WATCHERS: usize = 64;
/// Events of training that are kept for the next message to those who watch.
pub const MAX_PENDING_NOTES: usize = 1_024;
/// Deadline of opening a connection between coordinator and agent.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Deadline of a short RPC.
pub const RPC_TIMEOUT: Duration = Duration::from_secs(10);
/// An idle connection between coordinator and agent is probed this often.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// A probe without an answer for this long ends the connection.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest and longest pause before a broken session is opened again.
pub const RECONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often an agent announces itself.
pub const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(5);
/// An agent that has not announced itself for this long is forgotten.
pub const ANNOUNCE_EXPIRY: Duration = Duration::from_secs(30);
/// How often host names of agents are resolved again.
pub const RESOLVE_INTERVAL: Duration = Duration::from_secs(10);
/// Deadline of a request to Kubernetes' API server.
pub const KUBE_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The API server ends a watch after this time; it is then opened again.
pub const WATCH_TIMEOUT: Duration = Duration::from_secs(30);
/// A watch that still lasts after this time is dead.
pub const WATCH_SILENCE: Duration = Duration::from_secs(35);
/// Shortest and longest pause before an API server that failed is asked again.
pub const KUBE_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// How often an API server that refused is asked again.
pub const FORBIDDEN_RETRY: Duration = Duration::from_secs(60);
/// How often DNS is asked for agents while a run waits for nodes, and otherwise.
pub const DNS_POLL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// Deadline of one question to a name server.
pub const DNS_TIMEOUT: Duration = Duration::from_secs(2);
/// An agent that DNS has not known for this long is forgotten; names are late, and may be missing for moments.
pub const DNS_UNKNOWN: Duration = Duration::from_secs(35);
/// Requests that one connection to the coordinator may have open at once.
pub const MAX_CONCURRENT_REQUESTS: u32 = 128;
/// How long smaller runs may overtake one that waits for more nodes.
pub const BACKFILL_WINDOW: Duration = Duration::from_secs(600);
/// Shortest and longest pause before a run that went back to the queue starts again.
pub const REQUEUE_PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));
/// Times that a run may go back to the queue without a step in between.
pub const MAX_REQUEUES: u32 = 50;

/// Largest file of certificates, keys or tokens, in bytes.
pub const MAX_CERTIFICATE_BYTES: u64 = 4 << 20;
/// Most tokens of submitters.
pub const MAX_TOKENS: usize = 10_000;
/// Longest token that is looked at, in bytes.
pub const MAX_TOKEN_BYTES: usize = 256;
/// How long a stranger may take to prove who it is, and to begin to speak.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most connections of one server that have not proven anything yet.
pub const MAX_HANDSHAKES: usize = 256;
/// Most connections of one server.
pub const MAX_CONNECTIONS: usize = 1_024;
/// A request that has not arrived and been answered by then is given up; streams may last longer.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests that one connection to an agent may have open at once: one coordinator asks for little.
pub const MAX_AGENT_REQUESTS: u32 = 16;
