//! The loader: order, end, early stops, errors; and the first step of a large data set.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use super::loader::{LoadPlan, Loader, RowSet, StepBatches};
use super::pack::Budget;
use super::sampler::Sampler;
use super::testing::store_of_lengths;
use crate::peers::Share;

fn plan(rows: u64, batch: u64, steps: std::ops::Range<u64>) -> LoadPlan {
    let sampler = Sampler::new(5, rows, batch);
    LoadPlan {
        sampler,
        rows: RowSet::All,
        share: Share::whole(),
        budget: Budget::tokens(64),
        steps,
        ahead: 2,
    }
}

/// Fails the test if `work` takes longer than a minute; a hang must not stop the suite.
fn watched<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    result.recv_timeout(Duration::from_secs(60)).expect("finished within a minute, without a panic")
}

fn lengths(rows: usize) -> Vec<usize> {
    (0..rows).map(|row| 2 + row * 7 % 23).collect()
}

#[test]
fn steps_come_in_order_with_every_row_of_the_sampler() {
    let store = store_of_lengths(&lengths(50));
    let plan = plan(50, 8, 0..15);
    let steps: Vec<StepBatches> = Loader::start(Arc::clone(&store), plan.clone())
        .expect("a thread")
        .map(|s| s.expect("a step"))
        .collect();
    assert_eq!(
        steps.iter().map(|s| (s.step, s.epoch)).collect::<Vec<_>>(),
        (0..15).map(|s| (s, s / 7)).collect::<Vec<_>>()
    );
    assert_eq!(steps.iter().map(|s| s.row_count).collect::<Vec<_>>()[..8], [8, 8, 8, 8, 8, 8, 2, 8]);
    for step in &steps {
        let mut rows: Vec<u64> = step.micro_batches.iter().flat_map(|b| b.row_ids.clone()).collect();
        let mut expected = plan.sampler.rows_of_step(step.step);
        rows.sort_unstable();
        expected.sort_unstable();
        assert_eq!(rows, expected);
        assert!(step.micro_batches.iter().all(|b| b.tokens() <= 64));
    }
}

#[test]
fn a_loader_started_in_the_middle_goes_on_as_if_it_had_run_from_the_start() {
    let store = store_of_lengths(&lengths(50));
    let collect = |steps| -> Vec<StepBatches> {
        let loader = Loader::start(Arc::clone(&store), plan(50, 8, steps)).expect("a thread");
        loader.map(|step| step.expect("a step")).collect()
    };
    let whole = collect(0..21);
    for start in 0..21 {
        assert_eq!(collect(start..21), whole[start as usize..], "from step {start}");
    }
}

#[test]
fn a_subset_deals_only_its_rows() {
    let store = store_of_lengths(&lengths(20));
    let rows: Arc<[u32]> = (0..20).filter(|r| r % 2 == 1).collect();
    let subset = LoadPlan { rows: RowSet::Some(rows), ..plan(10, 4, 0..3) };
    let mut seen: Vec<u64> = Loader::start(store, subset)
        .expect("a thread")
        .flat_map(|step| step.expect("a step").micro_batches)
        .flat_map(|batch| batch.row_ids)
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..20).filter(|r| r % 2 == 1).collect::<Vec<_>>());
}

#[test]
fn case_21_a_thousand_starts_and_early_stops_leave_no_thread_behind() {
    let store = store_of_lengths(&lengths(40));
    let left = watched({
        let store = Arc::clone(&store);
        move || {
            for cycle in 0..1000u64 {
                let mut loader =
                    Loader::start(Arc::clone(&store), plan(40, 8, 0..1_000_000)).expect("a thread");
                for _ in 0..cycle % 4 {
                    loader.next_step().expect("a step");
                }
            }
            // Every thread holds the store while it lives.
            Arc::strong_count(&store)
        }
    });
    assert!(left <= 2, "{left} owners of the store");
}

#[test]
fn after_the_last_step_there_is_none_and_asking_again_is_harmless() {
    let store = store_of_lengths(&lengths(4));
    let mut loader = Loader::start(store, plan(4, 4, 0..1)).expect("a thread");
    assert!(loader.next_step().expect("a step").is_some());
    assert!(loader.next_step().expect("the end").is_none());
    assert!(loader.next_step().expect("the end").is_none());
}

#[test]
fn a_thread_that_fails_is_an_error_and_not_the_end_of_the_data() {
    let store = store_of_lengths(&lengths(4));
    let rows: Arc<[u32]> = Arc::from([0, 1, 2, 99]);
    let bad = LoadPlan { rows: RowSet::Some(rows), ..plan(4, 4, 0..5) };
    let mut loader = Loader::start(store, bad).expect("a thread");
    let error = loader.next_step().expect_err("row 99 does not exist");
    assert!(
        error.to_string().starts_with("the loader thread ended before step 0: index out of bounds"),
        "{error}"
    );
}

#[test]
fn case_32_a_hundred_thousand_rows_reach_their_first_step() {
    let step = watched(|| {
        let store = store_of_lengths(&lengths(100_000));
        Loader::start(store, plan(100_000, 32, 0..10)).expect("a thread").next_step().expect("a step")
    });
    assert_eq!(step.expect("ten steps are planned").row_count, 32);
}
