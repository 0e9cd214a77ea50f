//! The loop on several ranks, each a thread with its own engine: equal to one rank, and whole after a loss.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use muster_allreduce::{
    CommOptions, CostModel, Key, Listener, Member, Membership, Security, Timeouts, World,
};
use muster_proto::{Generation, Rank};

use super::tests::{Lab, STEPS, never};
use super::*;
use crate::peers::Peers;

/// The members of one generation with their listeners.
struct Gang {
    membership: Membership,
    listeners: Vec<Option<Listener>>,
}

impl Gang {
    fn new(generation: u64, nodes: &[&str]) -> Self {
        let listeners: Vec<Listener> =
            nodes.iter().map(|_| Listener::bind(([127, 0, 0, 1], 0).into()).unwrap()).collect();
        let member = |(i, node): (usize, &&str)| Member {
            id: format!("{node}-{i}"),
            node: (*node).to_owned(),
            addresses: vec![listeners[i].address().unwrap()],
        };
        let members = nodes.iter().enumerate().map(member).collect();
        // Tests run beside each other: the run's name keeps their shared memory apart.
        let run = format!("lab {:?}", thread::current().id());
        let membership =
            Membership::new(&run, Generation(generation), members, CostModel::default()).unwrap();
        Self { membership, listeners: listeners.into_iter().map(Some).collect() }
    }

    /// What each rank needs to become a peer.
    fn seats(mut self) -> Vec<Seat> {
        let take = |(i, l): (usize, &mut Option<Listener>)| Seat {
            membership: self.membership.clone(),
            rank: Rank(i as u32),
            listener: l.take(),
        };
        self.listeners.iter_mut().enumerate().map(take).collect()
    }
}

struct Seat {
    membership: Membership,
    rank: Rank,
    listener: Option<Listener>,
}

impl Seat {
    fn peers(self) -> Peers {
        let mut options = CommOptions::new(Security::PreSharedKey(Key::new(&[7; 32]).unwrap()));
        options.timeouts = Timeouts::new(Duration::from_secs(2), Duration::from_secs(20)).unwrap();
        let threads = vec![1; self.membership.world_size()];
        Peers::new(World::join(self.membership, self.rank, self.listener, options).unwrap(), threads)
    }
}

/// Runs to the end on the ranks of these nodes; returns each rank's digest and the writer's results.
fn run_on(lab: &Lab, name: &str, nodes: &[&str]) -> (Vec<u64>, Results) {
    let seats = Gang::new(1, nodes).seats();
    let ranks: Vec<_> = thread::scope(|scope| {
        let run = |seat: Seat| {
            scope.spawn(move || {
                lab.train(name, 1, never, |trainer| {
                    trainer.join(seat.peers()).unwrap();
                    let ending = trainer.run().unwrap();
                    let digest = trainer.engine.digest();
                    (digest, trainer.finish("lab", ending).unwrap().results())
                })
            })
        };
        let handles: Vec<_> = seats.into_iter().map(run).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    let results: Vec<Results> = ranks.iter().filter_map(|(_, results)| results.clone()).collect();
    assert_eq!(results.len(), 1, "one rank writes");
    (ranks.into_iter().map(|(digest, _)| digest).collect(), results[0].clone())
}

/// Trains on a seat until an event, and is gone then without a word to the others.
fn die(lab: &Lab, name: &str, seat: Seat, is_last: impl Fn(&Event) -> bool) {
    let dies = |event: &Event| {
        assert!(!is_last(event), "expected: this rank dies now");
        false
    };
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        lab.train(name, 1, dies, |trainer| {
            trainer.join(seat.peers()).unwrap();
            trainer.run()
        })
    }));
    assert!(died.is_err(), "it would have died at an event that did not come");
}

/// Columns of the log: exact ones, and ones that sums in another order may round differently.
fn compare_logs(one: &[serde_json::Value], many: &[serde_json::Value], tolerance: f64) {
    assert_eq!(one.len(), many.len());
    for (a, b) in one.iter().zip(many) {
        for key in ["kind", "step", "epoch", "learning_rate", "rows", "tokens"] {
            assert_eq!(a[key], b[key], "{key} of {a} and {b}");
        }
        for key in ["loss", "grad_norm"].iter().filter(|key| a[**key].is_number()) {
            let (x, y) = (a[key].as_f64().unwrap(), b[key].as_f64().unwrap());
            assert!((x - y).abs() <= tolerance * x.abs().max(1.0), "{key} of {a} and {b}");
        }
    }
}

#[test]
fn any_number_of_ranks_trains_as_one_does() {
    let lab = Lab::new();
    let one = lab.run("one", never).unwrap().unwrap();
    for nodes in [&["a"][..], &["a", "a"], &["a", "b"], &["a", "a", "b", "b"], &["a", "a", "a"]] {
        let name = nodes.join("");
        let (digests, results) = run_on(&lab, &name, nodes);
        assert!(digests.iter().all(|d| *d == digests[0]), "ranks differ: {digests:?}");
        compare_logs(&lab.log("one"), &lab.log(&name), 1e-5);
        assert_eq!((results.steps, results.rows, results.tokens), (one.steps, one.rows, one.tokens));
        let accuracy =
            |results: &Results| results.test.clone().unwrap().value(crate::metrics::Metric::Accuracy);
        assert_eq!(accuracy(&results), accuracy(&one));
    }
}

#[test]
fn a_lost_rank_costs_no_step_and_a_new_one_takes_its_place() {
    let lab = Lab::new();
    lab.run("whole", never).unwrap().unwrap();
    let mut joining = Lab::new();
    joining.joins = true;
    let (lab, joining) = (&lab, &joining);
    let mut first = Gang::new(1, &["a", "b", "c"]).seats().into_iter();
    let mut second = Gang::new(2, &["a", "b", "c"]).seats().into_iter();
    let survivors: Vec<_> = first.by_ref().take(2).zip(second.by_ref().take(2)).collect();
    let (victim, newcomer) = (first.next().unwrap(), second.next().unwrap());
    thread::scope(|scope| {
        let mut ranks = Vec::new();
        for (before, after) in survivors {
            ranks.push(scope.spawn(move || {
                lab.train("lossy", 1, never, |trainer| {
                    trainer.join(before.peers()).unwrap();
                    let error = trainer.run().expect_err("a peer leaves without a word");
                    assert!(matches!(error, TrainError::Peers(_)), "{error}");
                    assert_eq!(trainer.step_done(), Some(5));
                    drop(trainer.leave());
                    trainer.join(after.peers()).unwrap();
                    let ending = trainer.run().unwrap();
                    let digest = trainer.engine.digest();
                    trainer.finish("lab", ending).unwrap();
                    digest
                })
            }));
        }
        scope.spawn(move || {
            let seen = Cell::new(0);
            die(lab, "lossy", victim, |event| {
                seen.set(seen.get() + u64::from(matches!(event, Event::StepDone(..))));
                seen.get() == 5
            });
        });
        ranks.push(scope.spawn(move || {
            joining.train("elsewhere", 1, never, |trainer| {
                assert_eq!(trainer.step_done(), None);
                assert_eq!(trainer.join(newcomer.peers()).unwrap(), 5);
                let ending = trainer.run().unwrap();
                let digest = trainer.engine.digest();
                trainer.finish("lab", ending).unwrap();
                digest
            })
        }));
        let digests: Vec<u64> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert!(digests.iter().all(|d| *d == digests[0]), "{digests:?}");
    });
    compare_logs(&lab.log("whole"), &lab.log("lossy"), 1e-5);
    assert_eq!(lab.log("lossy").iter().filter(|line| line["kind"] == "train").count() as u64, STEPS);
}

/// Found by tests/chaos.rs: the agent of the writing rank was killed between an evaluation and its checkpoint, and at the
/// end the best model was nowhere.
#[test]
fn the_best_model_is_saved_by_the_next_writer_if_the_one_before_died_at_it() {
    let lab = &Lab::new();
    let mut first = Gang::new(1, &["a", "b"]).seats().into_iter();
    let (victim, before) = (first.next().unwrap(), first.next().unwrap());
    let after = Gang::new(2, &["b"]).seats().remove(0);
    thread::scope(|scope| {
        scope.spawn(move || die(lab, "unsaved", victim, |event| matches!(event, Event::EvalDone(_))));
        scope.spawn(move || {
            lab.train("unsaved", 1, never, |trainer| {
                trainer.join(before.peers()).unwrap();
                let error = trainer.run().expect_err("the writer is gone");
                assert!(matches!(error, TrainError::Peers(_)), "{error}");
                drop(trainer.leave());
                assert_eq!(trainer.join(after.peers()).unwrap(), 4);
                assert!(trainer.store.is_saved(4), "the first evaluation is the best so far");
                let ending = trainer.run().unwrap();
                assert!(trainer.finish("lab", ending).unwrap().results().is_some());
            });
        });
    });
}
