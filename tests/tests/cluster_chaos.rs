//! Random faults against a whole cluster: the run must end with every step done. The ranks train nothing.
//!
//! `MUSTER_CHAOS_SEED` repeats the faults of a seed (their moments depend on the machine), `MUSTER_CHAOS_FAULTS` sets
//! their number.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use muster_tests::cluster::{Cluster, signal};

/// xorshift64
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn a_run_survives_random_faults_of_every_part() {
    let seed = number("MUSTER_CHAOS_SEED", 11);
    let faults = number("MUSTER_CHAOS_FAULTS", 12);
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let dir = tempfile::tempdir().unwrap();
    let (cluster, first) = Cluster::start(dir.path(), Path::new(env!("CARGO_BIN_EXE_fake_rank")));
    let mut coordinator = Some(first);
    let names = ["a", "b"];
    let mut agents = names.map(|name| cluster.agent(name));
    cluster.until_nodes(2);
    let steps = 100 + faults * 100;
    let run = cluster.submit(&cluster.run_file("chaos", steps as u32, "per_node = 2\npatience_s = 5"));
    cluster.until_step(&run, 10);
    for fault in 0..faults {
        let kind = random.below(7);
        let which = random.below(2) as usize;
        eprintln!("seed {seed}, fault {fault}: kind {kind} on {}", names[which]);
        match kind {
            0..=2 => {
                let pids = cluster.rank_pids(&run);
                if !pids.is_empty() {
                    let (_, pid) = pids[random.below(pids.len() as u64) as usize];
                    signal(pid, if kind == 2 { "STOP" } else { "KILL" });
                }
            }
            3 => {
                std::mem::replace(&mut agents[which], cluster.agent(names[which])).kill();
            }
            4 => {
                // Its ranks leave at a step boundary; the next one waits until the name is free.
                agents[which].signal("TERM");
                agents[which].exit_code();
                agents[which] = cluster.agent(names[which]);
            }
            _ => {
                coordinator.take().expect("one runs").kill();
                std::thread::sleep(Duration::from_millis(random.below(1_500)));
                coordinator = Some(cluster.coordinator());
                cluster.until(&run, "the coordinator", |_| true);
            }
        }
        // Not a wait for a state: faults come at any moment.
        std::thread::sleep(Duration::from_millis(random.below(1_500)));
    }
    let done = cluster.until_state(&run, "succeeded");
    let all: BTreeSet<u64> = cluster.steps("chaos").into_iter().collect();
    assert_eq!(all, (1..=steps).collect::<BTreeSet<u64>>(), "every step was done");
    eprintln!(
        "generation {}, {} recoveries, the last in {} ms",
        done["generation"], done["recoveries"], done["last_recovery_ms"]
    );
}
