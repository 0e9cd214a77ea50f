//! Several rank processes of one run: equal to one rank, whole after losses, resumed by any other number of ranks.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_proto::v1::rank_command::Command;
use muster_proto::v1::rank_event::Event;
use muster_proto::v1::{Origin, Regroup, Stop};
use muster_tests::headlines::{compare, log, run_file};
use muster_tests::ranks::{RankProcess, install};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn run_file(&self, name: &str, train: &str) -> PathBuf {
        run_file(self.dir.path(), name, train)
    }

    fn log(&self, run: &str) -> Vec<Value> {
        log(self.dir.path(), run)
    }

    /// Runs to the end on ranks of these nodes; returns the results.
    fn run(&self, name: &str, nodes: &[&str], train: &str) -> Value {
        let file = self.run_file(name, train);
        let mut ranks = start(&file, nodes, Origin::Fresh);
        install(1, &mut ranks.iter_mut().collect::<Vec<_>>());
        finish(&mut ranks)
    }
}

fn start(file: &Path, nodes: &[&str], origin: Origin) -> Vec<RankProcess> {
    let start = |(i, node): (usize, &&str)| RankProcess::start(file, &format!("{node}/{i}"), node, origin);
    let mut ranks: Vec<_> = nodes.iter().enumerate().map(start).collect();
    ranks.iter_mut().for_each(|rank| assert!(rank.wait_idle().is_some()));
    ranks
}

/// Waits for the end of all ranks; one of them has the results.
fn finish(ranks: &mut [RankProcess]) -> Value {
    let results: Vec<Value> = ranks.iter_mut().filter_map(RankProcess::wait_finished).collect();
    for rank in ranks {
        assert!(rank.child.wait().unwrap().success());
    }
    assert_eq!(results.len(), 1, "one rank writes");
    results[0].clone()
}

#[test]
fn one_two_and_four_ranks_give_the_same_curves_over_fifty_steps() {
    let lab = Lab::new();
    let one = lab.run("one", &["a"], "max_steps = 50");
    for (name, nodes) in [("two", &["a", "a"][..]), ("apart", &["a", "b"]), ("four", &["a", "a", "b", "b"])] {
        let many = lab.run(name, nodes, "max_steps = 50");
        compare(&lab.log("one"), &lab.log(name), 1e-4);
        for key in ["steps", "rows", "tokens", "model_step"] {
            assert_eq!(one[key], many[key], "{key} of {name}");
        }
        let accuracy = |results: &Value| results["test"]["accuracy"].as_f64().unwrap();
        assert!((accuracy(&one) - accuracy(&many)).abs() < 0.05, "{one} {many}");
    }
}

#[test]
fn a_killed_rank_costs_no_step_and_its_successor_gets_the_weights_of_the_others() {
    let lab = Lab::new();
    lab.run("whole", &["a"], "max_steps = 120");
    let file = lab.run_file("lossy", "max_steps = 120");
    let mut ranks = start(&file, &["a", "b", "c"], Origin::Fresh);
    install(1, &mut ranks.iter_mut().collect::<Vec<_>>());
    ranks[0].wait_step(20);
    ranks[0].child.kill().unwrap();
    let killed = Instant::now();
    ranks.remove(0);
    let steps: Vec<_> = ranks.iter_mut().map(|rank| rank.wait_idle().unwrap()).collect();
    assert!(steps.iter().all(|&step| step >= 20), "{steps:?}");
    install(2, &mut ranks.iter_mut().collect::<Vec<_>>());
    let begun = ranks[0].wait_running();
    ranks[0].wait_step(begun + 1);
    println!("from the kill to the next step: {:?}", killed.elapsed());
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());

    let mut newcomer = RankProcess::start(&file, "a/0#2", "a", Origin::Peers);
    assert_eq!(newcomer.wait_idle(), None);
    ranks[1].tell(Command::Regroup(Regroup { generation: 2 }));
    ranks.iter_mut().for_each(|rank| assert!(rank.wait_idle() >= Some(begun)));
    ranks.insert(0, newcomer);
    install(3, &mut ranks.iter_mut().collect::<Vec<_>>());
    finish(&mut ranks);
    compare(&lab.log("whole"), &lab.log("lossy"), 1e-4);
}

#[test]
fn a_stopped_process_is_given_up_and_the_others_go_on() {
    let lab = Lab::new();
    let file = lab.run_file("frozen", "max_steps = 60");
    let mut ranks = start(&file, &["a", "b", "c"], Origin::Fresh);
    install(1, &mut ranks.iter_mut().collect::<Vec<_>>());
    ranks[1].wait_step(10);
    let pid = Pid::from_raw(ranks[1].child.id() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let frozen = Instant::now();
    let mut others: Vec<&mut RankProcess> = ranks.iter_mut().step_by(2).collect();
    for rank in &mut others {
        let culprits = rank.wait("that it is broken", |event| match event {
            Event::Broken(broken) => Some(broken.culprits.clone()),
            _ => None,
        });
        assert_eq!(culprits, [1]);
    }
    println!("from the stop to the report: {:?}", frozen.elapsed());
    install(2, &mut others);
    let results: Vec<_> = others.iter_mut().filter_map(|rank| rank.wait_finished()).collect();
    assert_eq!(results.len(), 1);
    assert_eq!(lab.log("frozen").iter().filter(|line| line["kind"] == "train").count(), 60);
}

#[test]
fn a_run_stopped_on_three_ranks_is_resumed_by_two() {
    let lab = Lab::new();
    lab.run("whole", &["a"], "max_steps = 60");
    let file = lab.run_file("moved", "max_steps = 60");
    let mut ranks = start(&file, &["a", "a", "b"], Origin::Fresh);
    install(1, &mut ranks.iter_mut().collect::<Vec<_>>());
    ranks[2].wait_step(20);
    ranks[1].tell(Command::Stop(Stop { save: true, reason: "a test".into() }));
    let stopped: Vec<_> = ranks
        .iter_mut()
        .map(|rank| {
            rank.wait("that it stopped", |event| match event {
                Event::Stopped(stopped) => Some((stopped.step, stopped.saved)),
                _ => None,
            })
        })
        .collect();
    let step = stopped[0].0;
    assert_eq!(stopped, [(step, true), (step, false), (step, false)]);
    for rank in &mut ranks {
        assert_eq!(rank.child.wait().unwrap().code(), Some(75));
    }
    let mut ranks = start(&file, &["b", "b"], Origin::Resume);
    install(1, &mut ranks.iter_mut().collect::<Vec<_>>());
    assert_eq!(ranks[1].wait_running(), step);
    finish(&mut ranks);
    compare(&lab.log("whole"), &lab.log("moved"), 1e-4);
}
