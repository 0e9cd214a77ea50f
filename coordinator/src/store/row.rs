//! The row of a run.

use muster_proto::v1::{self, FailureKind, RunState};
use prost::Message;
use rusqlite::{OptionalExtension, Row, params};

use super::{Store, StoreError};

/// A run as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// Order of submission.
    pub seq: i64,
    /// Identity.
    pub id: String,
    /// Chosen by the client; the same twice is one run.
    pub request_id: Option<String>,
    /// Name from the run file.
    pub name: String,
    /// Text of the run file.
    pub run_file: String,
    /// Its path on the nodes.
    pub run_file_path: String,
    /// `--set` overrides.
    pub overrides: Vec<String>,
    /// Higher goes first.
    pub priority: i32,
    /// Whether it goes on from a checkpoint.
    pub resume: bool,
    /// The state.
    pub state: RunState,
    /// Why it is in that state.
    pub reason: String,
    /// Times in milliseconds since 1970; 0 if it has not happened.
    pub submitted_ms: u64,
    /// When it was given nodes first.
    pub started_ms: u64,
    /// When it was over.
    pub ended_ms: u64,
    /// results.json.
    pub results: String,
    /// Class of the failure.
    pub failure: FailureKind,
    /// Nodes that it has, with ranks of each.
    pub nodes: Vec<(String, u32)>,
    /// Ranks that it wants.
    pub ranks: u32,
    /// Number of its last process.
    pub incarnation: u64,
    /// Its last generation, once it is over.
    pub generation: u64,
    /// Times that a generation broke and the next one trained.
    pub recoveries: u32,
    /// Time of the last recovery.
    pub last_recovery_ms: u64,
    /// Times that it went back to the queue.
    pub requeues: u32,
    /// The furthest progress.
    pub progress: Option<v1::Progress>,
    /// Who submitted it; empty if nobody proved that.
    pub submitter: String,
    /// Whose run it is; may be empty.
    pub tenant: String,
    /// The sweep that it belongs to; empty: none.
    pub sweep: String,
    /// Metric of the best model.
    pub metric: String,
}

impl RunRow {
    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        matches!(self.state, RunState::Succeeded | RunState::Failed | RunState::Cancelled)
    }

    /// The message for people and programs.
    pub fn to_message(&self) -> v1::Run {
        v1::Run {
            id: self.id.clone(),
            name: self.name.clone(),
            state: self.state as i32,
            reason: self.reason.clone(),
            priority: self.priority,
            progress: self.progress,
            generation: self.generation,
            submitted_ms: self.submitted_ms,
            started_ms: self.started_ms,
            ended_ms: self.ended_ms,
            recoveries: self.recoveries,
            last_recovery_ms: self.last_recovery_ms,
            results: self.results.clone(),
            failure: self.failure as i32,
            submitter: self.submitter.clone(),
            tenant: self.tenant.clone(),
            sweep: self.sweep.clone(),
            metric: self.metric.clone(),
            overrides: self.overrides.clone(),
            ..v1::Run::default()
        }
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let number = |name: &str| row.get::<_, i64>(name).map(|n| n as u64);
        let json = |name: &str| row.get::<_, String>(name);
        let progress: Option<Vec<u8>> = row.get("progress")?;
        Ok(Self {
            seq: row.get("seq")?,
            id: row.get("id")?,
            request_id: row.get("request_id")?,
            name: row.get("name")?,
            run_file: row.get("run_file")?,
            run_file_path: row.get("run_file_path")?,
            overrides: serde_json::from_str(&json("overrides")?).unwrap_or_default(),
            priority: row.get("priority")?,
            resume: row.get("resume")?,
            state: RunState::try_from(row.get::<_, i32>("state")?).unwrap_or_default(),
            reason: row.get("reason")?,
            submitted_ms: number("submitted_ms")?,
            started_ms: number("started_ms")?,
            ended_ms: number("ended_ms")?,
            results: row.get("results")?,
            failure: FailureKind::try_from(row.get::<_, i32>("failure")?).unwrap_or_default(),
            nodes: serde_json::from_str(&json("nodes")?).unwrap_or_default(),
            ranks: row.get("ranks")?,
            incarnation: number("incarnation")?,
            generation: number("generation")?,
            recoveries: row.get("recoveries")?,
            last_recovery_ms: number("last_recovery_ms")?,
            requeues: row.get("requeues")?,
            tenant: row.get("tenant")?,
            sweep: row.get("sweep")?,
            metric: row.get("metric")?,
            progress: progress.and_then(|bytes| v1::Progress::decode(bytes.as_slice()).ok()),
            submitter: row.get("submitter")?,
        })
    }
}

impl Store {
    /// Stores a new run and gives it its place in the order; or finds the run of the same request.
    ///
    /// # Errors
    /// A database that can't be written.
    pub fn add_run(&self, run: &RunRow) -> Result<RunRow, StoreError> {
        let insert =
            "INSERT INTO runs (id, request_id, name, run_file, run_file_path, overrides, priority, resume,
            state, reason, submitted_ms, started_ms, ended_ms, results, failure, nodes, ranks, incarnation,
            generation, recoveries, last_recovery_ms, requeues, tenant, sweep, metric, submitter)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 0, 0, '', 0, '[]', 0, 0, 0, 0, 0, 0, ?12, ?13, ?14, ?15)";
        let overrides = serde_json::to_string(&run.overrides).unwrap_or_default();
        let done = self.db.execute(
            insert,
            params![
                run.id,
                run.request_id,
                run.name,
                run.run_file,
                run.run_file_path,
                overrides,
                run.priority,
                run.resume,
                run.state as i32,
                run.reason,
                run.submitted_ms as i64,
                run.tenant,
                run.sweep,
                run.metric,
                run.submitter
            ],
        );
        self.check("the run", done)?;
        Ok(RunRow { seq: self.db.last_insert_rowid(), ..run.clone() })
    }

    /// The run that was stored for a request.
    ///
    /// # Errors
    /// A database that can't be read.
    pub fn run_of_request(&self, request_id: &str) -> Result<Option<RunRow>, StoreError> {
        let query = "SELECT * FROM runs WHERE request_id = ?1";
        self.check("reading runs", self.db.query_row(query, [request_id], RunRow::read).optional())
    }

    /// Stores what changes in the course of a run.
    ///
    /// # Errors
    /// A database that can't be written.
    pub fn update_run(&self, run: &RunRow) -> Result<(), StoreError> {
        let update = "UPDATE runs SET resume = ?2, state = ?3, reason = ?4, started_ms = ?5, ended_ms = ?6,
            results = ?7, failure = ?8, nodes = ?9, ranks = ?10, incarnation = ?11, recoveries = ?12,
            last_recovery_ms = ?13, requeues = ?14, progress = ?15, generation = ?16 WHERE id = ?1";
        let nodes = serde_json::to_string(&run.nodes).unwrap_or_default();
        let progress = run.progress.map(|progress| progress.encode_to_vec());
        let done = self.db.execute(
            update,
            params![
                run.id,
                run.resume,
                run.state as i32,
                run.reason,
                run.started_ms as i64,
                run.ended_ms as i64,
                run.results,
                run.failure as i32,
                nodes,
                run.ranks,
                run.incarnation as i64,
                run.recoveries,
                run.last_recovery_ms as i64,
                run.requeues,
                progress,
                run.generation as i64
            ],
        );
        self.check("the state of a run", done.map(drop))
    }

    /// All runs, in order of submission.
    ///
    /// # Errors
    /// A database that can't be read.
    pub fn runs(&self) -> Result<Vec<RunRow>, StoreError> {
        let read = || -> rusqlite::Result<Vec<RunRow>> {
            let mut statement = self.db.prepare("SELECT * FROM runs ORDER BY seq")?;
            let rows = statement.query_map([], RunRow::read)?;
            rows.collect()
        };
        self.check("reading runs", read())
    }
}
