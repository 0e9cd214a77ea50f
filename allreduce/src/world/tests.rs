//! What can't be reached from outside.

use std::sync::Barrier;
use std::time::Duration;

use muster_proto::Generation;

use super::lane::wait;
use super::*;
use crate::membership::{CostModel, Member};
use crate::tcp::Security;
use crate::timeouts::Timeouts;

/// Runs a function on two ranks of one node.
fn pair<R: Send>(run: &str, f: impl Fn(&World) -> R + Sync) -> Vec<R> {
    let listeners = [0, 1].map(|_| Listener::bind(([127, 0, 0, 1], 0).into()).unwrap());
    let member = |(i, listener): (usize, &Listener)| Member {
        id: i.to_string(),
        node: "here".into(),
        addresses: vec![listener.address().unwrap()],
    };
    let members = listeners.iter().enumerate().map(member).collect();
    let run = format!("{run}-{}", std::process::id());
    let membership = Membership::new(&run, Generation(1), members, CostModel::default()).unwrap();
    let timeouts = Timeouts::new(Duration::from_secs(1), Duration::from_secs(60)).unwrap();
    let options = CommOptions { timeouts, ..CommOptions::new(Security::Plaintext) };
    std::thread::scope(|s| {
        let start = |(i, listener)| {
            let (membership, options, f) = (membership.clone(), options.clone(), &f);
            s.spawn(move || f(&World::join(membership, Rank(i as u32), Some(listener), options).unwrap()))
        };
        let threads: Vec<_> = listeners.into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn a_panic_in_an_operation_is_an_error_everywhere() {
    let all_have_it = Barrier::new(2);
    let errors = pair("panic", |world| {
        let Ways::Node(_, lane) = &world.ways else { panic!("they share memory") };
        let error = if world.rank() == Rank(0) {
            // On the thread of the world, then on this one.
            let error =
                wait(&lane.post("bug", |_| -> Result<()> { panic!("a bug") }), world.rank()).unwrap_err();
            let again = lane.run("later", |_| Ok(())).unwrap_err();
            assert_eq!(error.to_string(), again.to_string());
            error
        } else {
            world.all_reduce(SumBuffer::new(100_000), "bucket").wait().unwrap_err()
        };
        all_have_it.wait();
        error
    });
    assert!(errors.iter().all(|e| matches!(e, Error::Aborted { peer: Rank(0), .. })), "{errors:?}");
}

#[test]
fn more_sums_than_may_wait_are_refused() {
    let all_have_it = Barrier::new(2);
    pair("busy", |world| {
        let Ways::Node(_, lane) = &world.ways else { panic!("they share memory") };
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let holds = lane.post("holds the thread", move |_| {
            let _ = gate.recv();
            Ok(())
        });
        let count = muster_proto::limits::MAX_QUEUED_SUMS + 2;
        let outcomes: Vec<_> = (0..count).map(|_| lane.post("many", |_| Ok(()))).collect();
        drop(open);
        wait(&holds, world.rank()).unwrap();
        let results: Vec<_> = outcomes.iter().map(|o| wait(o, world.rank())).collect();
        let refused = results.iter().filter(|r| matches!(r, Err(Error::Busy { .. }))).count();
        // One more if the thread has not taken the first one before the queue is full.
        assert!((2..=3).contains(&refused), "{refused} of {count}");
        assert_eq!(results.iter().filter(|r| r.is_ok()).count() + refused, count, "a refusal ends nothing");
        all_have_it.wait();
    });
}
