//! What must outlive the coordinator's process: runs, generations, events and the tails of logs, in SQLite.
//!
//! Calls block for as long as the disk takes; they are made by the owner task, which has a thread of its own. Every
//! table is bounded: see [`muster_proto::limits`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_proto::limits::{MAX_RUN_EVENTS, MAX_RUN_LOG_LINES, MAX_RUNS_KEPT};
use rusqlite::{Connection, OptionalExtension, params};

use crate::gang::Past;
use crate::secret::random_name;

pub use row::RunRow;

mod row;
#[cfg(test)]
mod tests;

/// Version of the tables.
const SCHEMA: i64 = 1 + MIGRATIONS.len() as i64;

/// What makes tables of version 1 those of version 2, and so on.
const MIGRATIONS: [&str; 2] = [
    "ALTER TABLE runs ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
     ALTER TABLE runs ADD COLUMN sweep TEXT NOT NULL DEFAULT '';
     ALTER TABLE runs ADD COLUMN metric TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN submitter TEXT NOT NULL DEFAULT ''",
];

/// Tables of version 1.
const TABLES: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE runs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, request_id TEXT UNIQUE, name TEXT NOT NULL,
    run_file TEXT NOT NULL, run_file_path TEXT NOT NULL, overrides TEXT NOT NULL, priority INTEGER NOT NULL,
    resume INTEGER NOT NULL, state INTEGER NOT NULL, reason TEXT NOT NULL, submitted_ms INTEGER NOT NULL,
    started_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL, results TEXT NOT NULL, failure INTEGER NOT NULL,
    nodes TEXT NOT NULL, ranks INTEGER NOT NULL, incarnation INTEGER NOT NULL, generation INTEGER NOT NULL, recoveries INTEGER NOT NULL,
    last_recovery_ms INTEGER NOT NULL, requeues INTEGER NOT NULL, progress BLOB
) STRICT;
CREATE TABLE generations (
    run TEXT NOT NULL, generation INTEGER NOT NULL, members TEXT NOT NULL, reason TEXT NOT NULL,
    at_ms INTEGER NOT NULL, PRIMARY KEY (run, generation)
) STRICT, WITHOUT ROWID;
CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, at_ms INTEGER NOT NULL, text TEXT NOT NULL) STRICT;
CREATE INDEX events_of_run ON events (run, seq);
CREATE TABLE logs (seq INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, member TEXT NOT NULL, line TEXT NOT NULL) STRICT;
CREATE INDEX logs_of_run ON logs (run, seq);
";

/// Why state can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory can't be made.
    #[error("can't make the state directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// No room.
    #[error("the disk under {} is full: {what} can't be stored", path.display())]
    Full {
        /// The state directory.
        path: PathBuf,
        /// What was to be stored.
        what: &'static str,
    },
    /// The file was written by another version.
    #[error("{} has tables of version {found}; this Muster reads version {SCHEMA}", path.display())]
    Version {
        /// The state directory.
        path: PathBuf,
        /// Its version.
        found: i64,
    },
    /// Anything else that SQLite says.
    #[error("{what} failed in {}", path.display())]
    Sqlite {
        /// The state directory.
        path: PathBuf,
        /// What was attempted.
        what: &'static str,
        /// What SQLite says.
        #[source]
        source: rusqlite::Error,
    },
}

impl StoreError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Directory { .. } => Some("give --state a directory that this process may write".into()),
            Self::Full { .. } => Some("make room, and submit again; runs that train go on meanwhile".into()),
            Self::Version { .. } => Some("start the version of Muster that wrote it".into()),
            Self::Sqlite { .. } => Some("is another coordinator using the same --state directory?".into()),
        }
    }
}

/// Lines of a run's rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Who wrote it.
    pub member: String,
    /// The line.
    pub line: String,
}

/// The database. See the module.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    db: Connection,
}

impl Store {
    /// Opens the state in a directory, which is made if it is missing.
    ///
    /// # Errors
    /// A directory or a database that can't be used, or that another coordinator holds.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.to_owned();
        std::fs::create_dir_all(dir)
            .map_err(|source| StoreError::Directory { path: path.clone(), source })?;
        let opened = Connection::open(dir.join("muster.sqlite"));
        let db =
            opened.map_err(|source| StoreError::Sqlite { path: path.clone(), what: "opening", source })?;
        Self { path, db }.prepare()
    }

    /// State that ends with the process.
    ///
    /// # Errors
    /// If SQLite has no memory.
    pub fn in_memory() -> Result<Self, StoreError> {
        let path = PathBuf::from(":memory:");
        let opened = Connection::open_in_memory();
        let db =
            opened.map_err(|source| StoreError::Sqlite { path: path.clone(), what: "opening", source })?;
        Self { path, db }.prepare()
    }

    fn prepare(self) -> Result<Self, StoreError> {
        let settings = |db: &Connection| -> rusqlite::Result<i64> {
            db.busy_timeout(Duration::from_secs(2))?;
            // Taken at once and kept: two coordinators must not share a state.
            db.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
            db.pragma_update(None, "journal_mode", "WAL")?;
            db.pragma_update(None, "synchronous", "FULL")?;
            db.pragma_query_value(None, "user_version", |row| row.get(0))
        };
        let found = self.check("opening", settings(&self.db))?;
        match found {
            0 => self.create()?,
            1..=SCHEMA => self.migrate(found)?,
            found => return Err(StoreError::Version { path: self.path, found }),
        }
        Ok(self)
    }

    fn create(&self) -> Result<(), StoreError> {
        let create = || -> rusqlite::Result<()> {
            let transaction = self.db.unchecked_transaction()?;
            transaction.execute_batch(TABLES)?;
            MIGRATIONS.iter().try_for_each(|step| transaction.execute_batch(step))?;
            transaction.execute("INSERT INTO meta VALUES ('coordinator', ?1)", [random_name::<8>()])?;
            transaction.pragma_update(None, "user_version", SCHEMA)?;
            transaction.commit()
        };
        self.check("making the tables", create())
    }

    fn migrate(&self, found: i64) -> Result<(), StoreError> {
        let migrate = || -> rusqlite::Result<()> {
            let transaction = self.db.unchecked_transaction()?;
            let missing = MIGRATIONS.iter().skip(found as usize - 1);
            missing.into_iter().try_for_each(|step| transaction.execute_batch(step))?;
            transaction.pragma_update(None, "user_version", SCHEMA)?;
            transaction.commit()
        };
        self.check("bringing the tables up to date", migrate())
    }

    fn check<T>(&self, what: &'static str, result: rusqlite::Result<T>) -> Result<T, StoreError> {
        result.map_err(|source| match source.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => StoreError::Full { path: self.path.clone(), what },
            _ => StoreError::Sqlite { path: self.path.clone(), what, source },
        })
    }

    /// Identity of the coordinator that owns this state.
    ///
    /// # Errors
    /// A database that can't be read.
    pub fn coordinator_id(&self) -> Result<String, StoreError> {
        let query = "SELECT value FROM meta WHERE key = 'coordinator'";
        self.check("reading the identity", self.db.query_row(query, [], |row| row.get(0)))
    }

    /// Stores a generation.
    ///
    /// # Errors
    /// A database that can't be written.
    pub fn add_generation(
        &self,
        run: &str,
        generation: u64,
        members: &[String],
        reason: &str,
        at_ms: u64,
    ) -> Result<(), StoreError> {
        let members = serde_json::to_string(members).unwrap_or_default();
        let insert = "INSERT OR REPLACE INTO generations VALUES (?1, ?2, ?3, ?4, ?5)";
        let done = self.db.execute(insert, params![run, generation as i64, members, reason, at_ms as i64]);
        self.check("a generation", done.map(drop))
    }

    /// What is known of a run's gang.
    ///
    /// # Errors
    /// A database that can't be read.
    pub fn past(&self, run: &RunRow) -> Result<Past, StoreError> {
        let query =
            "SELECT generation, members FROM generations WHERE run = ?1 ORDER BY generation DESC LIMIT 1";
        let row =
            self.db.query_row(query, [&run.id], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)));
        let last = self.check("reading generations", row.optional())?;
        let (generation, members) = last.unwrap_or((0, "[]".into()));
        let members = serde_json::from_str(&members).unwrap_or_default();
        Ok(Past { generation: generation as u64, members, incarnation: run.incarnation })
    }

    /// Stores events and log lines together, and drops the oldest beyond the bounds.
    ///
    /// # Errors
    /// A database that can't be written; nothing of it is stored then.
    pub fn add_lines(
        &self,
        run: &str,
        events: &[(u64, String)],
        lines: &[LogLine],
    ) -> Result<(), StoreError> {
        let add = || -> rusqlite::Result<()> {
            let transaction = self.db.unchecked_transaction()?;
            for (at_ms, text) in events {
                let insert = "INSERT INTO events (run, at_ms, text) VALUES (?1, ?2, ?3)";
                transaction.execute(insert, params![run, *at_ms as i64, text])?;
            }
            for line in lines {
                let insert = "INSERT INTO logs (run, member, line) VALUES (?1, ?2, ?3)";
                transaction.execute(insert, params![run, line.member, line.line])?;
            }
            for (table, most) in [("events", MAX_RUN_EVENTS), ("logs", MAX_RUN_LOG_LINES)] {
                let oldest =
                    format!("SELECT seq FROM {table} WHERE run = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2");
                let delete = format!("DELETE FROM {table} WHERE run = ?1 AND seq <= ({oldest})");
                transaction.execute(&delete, params![run, most as i64])?;
            }
            transaction.commit()
        };
        self.check("events and logs", add())
    }

    /// The last `tail` log lines of a run, oldest first.
    ///
    /// # Errors
    /// A database that can't be read.
    pub fn logs(&self, run: &str, tail: usize) -> Result<Vec<LogLine>, StoreError> {
        let query = "SELECT member, line FROM (SELECT * FROM logs WHERE run = ?1 ORDER BY seq DESC LIMIT ?2) ORDER BY seq";
        let read = || -> rusqlite::Result<Vec<LogLine>> {
            let mut statement = self.db.prepare_cached(query)?;
            let rows = statement.query_map(params![run, tail as i64], |row| {
                Ok(LogLine { member: row.get(0)?, line: row.get(1)? })
            })?;
            rows.collect()
        };
        self.check("reading logs", read())
    }

    /// The last events of a run, oldest first, with their times.
    ///
    /// # Errors
    /// A database that can't be read.
    pub fn events(&self, run: &str, tail: usize) -> Result<Vec<(u64, String)>, StoreError> {
        let query = "SELECT at_ms, text FROM (SELECT * FROM events WHERE run = ?1 ORDER BY seq DESC LIMIT ?2) ORDER BY seq";
        let read = || -> rusqlite::Result<Vec<(u64, String)>> {
            let mut statement = self.db.prepare_cached(query)?;
            let rows = statement.query_map(params![run, tail as i64], |row| {
                Ok((row.get::<_, i64>(0)? as u64, row.get(1)?))
            })?;
            rows.collect()
        };
        self.check("reading events", read())
    }

    /// Forgets the oldest runs that are over, beyond the bound.
    ///
    /// # Errors
    /// A database that can't be written.
    pub fn forget_old_runs(&self) -> Result<(), StoreError> {
        let forget = || -> rusqlite::Result<()> {
            let transaction = self.db.unchecked_transaction()?;
            let old = "SELECT id FROM runs WHERE ended_ms > 0 ORDER BY seq DESC LIMIT -1 OFFSET ?1";
            for table in ["generations", "events", "logs"] {
                transaction
                    .execute(&format!("DELETE FROM {table} WHERE run IN ({old})"), [MAX_RUNS_KEPT as i64])?;
            }
            transaction.execute(&format!("DELETE FROM runs WHERE id IN ({old})"), [MAX_RUNS_KEPT as i64])?;
            transaction.commit()
        };
        self.check("forgetting old runs", forget())
    }
}
