//! The store alone.

use muster_proto::v1::{FailureKind, RunState};

use super::*;

pub(crate) fn row(id: &str) -> RunRow {
    RunRow {
        seq: 0,
        id: id.into(),
        request_id: Some(format!("request {id}")),
        name: "headlines".into(),
        run_file: "version = 1".into(),
        run_file_path: "/data/run.toml".into(),
        overrides: vec!["train.max_steps=3".into()],
        priority: -2,
        resume: false,
        state: RunState::Queued,
        reason: "it waits".into(),
        submitted_ms: 17,
        started_ms: 0,
        ended_ms: 0,
        results: String::new(),
        failure: FailureKind::Unspecified,
        nodes: Vec::new(),
        ranks: 0,
        incarnation: 0,
        generation: 0,
        recoveries: 0,
        last_recovery_ms: 0,
        requeues: 0,
        progress: None,
        submitter: "anna".into(),
        tenant: "desk-a".into(),
        sweep: "s1".into(),
        metric: "accuracy".into(),
    }
}

#[test]
fn tables_of_the_first_version_are_brought_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let db = Connection::open(dir.path().join("muster.sqlite")).unwrap();
    db.execute_batch(TABLES).unwrap();
    let insert = "INSERT INTO runs VALUES (1, 'old', NULL, 'headlines', 'version = 1', '/data/run.toml', '[]', 0, 0, 1,
        'in the queue', 17, 0, 0, '', 0, '[]', 0, 0, 0, 0, 0, 0, NULL)";
    db.execute_batch(insert).unwrap();
    db.pragma_update(None, "user_version", 1).unwrap();
    drop(db);
    let store = Store::open(dir.path()).unwrap();
    let runs = store.runs().unwrap();
    assert_eq!((runs[0].id.as_str(), runs[0].tenant.as_str(), runs[0].progress), ("old", "", None));
    store.add_run(&row("new")).unwrap();
    drop(store);
    assert_eq!(Store::open(dir.path()).unwrap().runs().unwrap()[1].sweep, "s1");
}

#[test]
fn what_is_stored_is_there_after_a_restart_and_the_identity_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let id = store.coordinator_id().unwrap();
    let mut run = store.add_run(&row("a")).unwrap();
    run.state = RunState::Training;
    run.nodes = vec![("n".into(), 2)];
    run.incarnation = 4;
    run.progress = Some(muster_proto::v1::Progress { step: 9, loss: 0.5, ..Default::default() });
    store.update_run(&run).unwrap();
    store.add_generation("a", 1, &["n/0#1".into()], "all", 1).unwrap();
    store.add_generation("a", 2, &["n/0#1".into(), "n/1#4".into()], "one came", 2).unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.coordinator_id().unwrap(), id);
    assert_eq!(store.runs().unwrap(), [run.clone()]);
    assert_eq!(store.run_of_request("request a").unwrap().as_ref(), Some(&run));
    let past = store.past(&run).unwrap();
    assert_eq!((past.generation, past.incarnation, past.members.len()), (2, 4, 2));
}

#[test]
fn a_second_coordinator_on_the_same_state_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = Store::open(dir.path()).unwrap();
    let error = Store::open(dir.path()).unwrap_err();
    assert!(error.hint().unwrap().contains("another coordinator"), "{error:?}");
    drop(first);
    Store::open(dir.path()).unwrap();
}

#[test]
fn logs_and_events_are_bounded_and_in_order() {
    let store = Store::in_memory().unwrap();
    let lines: Vec<LogLine> = (0..MAX_RUN_LOG_LINES + 10)
        .map(|n| LogLine { member: "n/0#1".into(), line: n.to_string() })
        .collect();
    lines.chunks(1_000).for_each(|chunk| store.add_lines("a", &[(1, "event".into())], chunk).unwrap());
    store.add_lines("b", &[], &lines[..1]).unwrap();
    let kept = store.logs("a", usize::MAX >> 1).unwrap();
    assert_eq!((kept.len(), kept[0].line.as_str()), (MAX_RUN_LOG_LINES, "10"));
    assert_eq!(store.logs("a", 2).unwrap()[1].line, (MAX_RUN_LOG_LINES + 9).to_string());
    assert_eq!(store.logs("b", 5).unwrap().len(), 1);
    assert!(store.events("a", 100).unwrap().len() > 3);
}

#[test]
fn a_full_disk_is_told_as_such_and_leaves_what_was_there() {
    let store = Store::in_memory().unwrap();
    store.add_run(&row("a")).unwrap();
    let pages: i64 = store.db.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    store.db.pragma_update(None, "max_page_count", pages).unwrap();
    let mut big = row("b");
    big.run_file = "x".repeat(1 << 20);
    let error = store.add_run(&big).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert!(error.to_string().contains("is full: the run can't be stored"), "{error}");
    assert_eq!(store.runs().unwrap().len(), 1);
}
