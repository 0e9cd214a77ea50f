//! A coordinator, two agents and ranks that train, under random faults: every run ends as the undisturbed one did.
//!
//! `MUSTER_CHAOS_TRIALS=100` repeats it as often; `MUSTER_CHAOS_SEED` begins with another fault.

use std::path::Path;
use std::time::{Duration, Instant};

use muster_tests::cluster::{Cluster, Process, signal};
use muster_tests::headlines::{compare, log, run_file};
use serde_json::Value;

const STEPS: u64 = 200;
const SETTINGS: &str = "max_steps = 200\n[ranks]\nper_node = 1\npatience_s = 3";

#[derive(Debug, Clone, Copy)]
enum Fault {
    KillRank,
    StopRank,
    KillAgent,
    EndAgent,
    KillCoordinator,
}

const FAULTS: [Fault; 5] =
    [Fault::KillRank, Fault::KillAgent, Fault::KillCoordinator, Fault::EndAgent, Fault::StopRank];

/// The processes, each replaced when it is gone.
struct Chaos {
    cluster: Cluster,
    coordinator: Option<Process>,
    agents: Vec<Option<Process>>,
}

const NAMES: [&str; 2] = ["a", "b"];

impl Chaos {
    fn new(dir: &Path) -> Self {
        let (cluster, coordinator) = Cluster::of_muster(dir);
        let agents = NAMES.map(|name| Some(cluster.agent(name))).into();
        cluster.until_nodes(NAMES.len());
        Self { cluster, coordinator: Some(coordinator), agents }
    }

    /// Does it to the n-th agent or its rank.
    fn strike(&mut self, fault: Fault, n: usize) {
        let agent = self.agents[n].as_ref().expect("agents are replaced");
        match fault {
            Fault::KillRank => agent.children().iter().for_each(|&pid| signal(pid, "KILL")),
            Fault::StopRank => agent.children().iter().for_each(|&pid| signal(pid, "STOP")),
            Fault::KillAgent => {
                self.agents[n].take().expect("an agent").kill();
                self.agents[n] = Some(self.cluster.agent(NAMES[n]));
            }
            Fault::EndAgent => {
                agent.signal("TERM");
                let mut agent = self.agents[n].take().expect("an agent");
                assert_eq!(agent.exit_code(), Some(0), "it leaves in order");
                self.agents[n] = Some(self.cluster.agent(NAMES[n]));
            }
            Fault::KillCoordinator => {
                self.coordinator.take().expect("a coordinator").kill();
                self.coordinator = Some(self.cluster.coordinator());
            }
        }
    }
}

#[test]
fn runs_under_random_faults_end_as_the_undisturbed_one() {
    let number =
        |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    let (trials, seed) = (number("MUSTER_CHAOS_TRIALS", FAULTS.len()), number("MUSTER_CHAOS_SEED", 0));
    let dir = tempfile::tempdir().unwrap();
    let mut chaos = Chaos::new(dir.path());
    let whole = chaos.cluster.submit(&run_file(dir.path(), "whole", SETTINGS));
    chaos.cluster.until_state(&whole, "succeeded");
    let whole = log(dir.path(), "whole");
    let (mut recoveries, begun) = (Vec::new(), Instant::now());
    for trial in seed..seed + trials {
        let fault = FAULTS[trial % FAULTS.len()];
        // Anywhere in the run, on either node.
        let mixed = (trial as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let (step, node) = (5 + mixed % (STEPS - 60), (mixed >> 10) as usize % NAMES.len());
        let name = format!("trial{trial}");
        let run = chaos.cluster.submit(&run_file(dir.path(), &name, SETTINGS));
        chaos.cluster.until_step(&run, step);
        chaos.strike(fault, node);
        let ended = chaos.cluster.until_state(&run, "succeeded");
        compare(&whole, &log(dir.path(), &name), 1e-3);
        if ended["recoveries"].as_u64() > Some(0) {
            recoveries.push((ended["last_recovery_ms"].as_u64().unwrap_or(0), fault));
        }
        println!("trial {trial}: {fault:?} on {} after step {step}: {}", NAMES[node], summary(&ended));
        chaos.cluster.until_nodes(NAMES.len());
    }
    recoveries.sort_unstable_by_key(|(ms, _)| *ms);
    println!(
        "{trials} faults in {:?}; milliseconds from a break to the next steps: {recoveries:?}",
        begun.elapsed()
    );
    let slow =
        recoveries.iter().filter(|(ms, fault)| matches!(fault, Fault::KillRank) && *ms > 1_000).count();
    assert!(
        begun.elapsed() < Duration::from_secs(60 * trials as u64) && slow * 2 <= trials,
        "{recoveries:?}"
    );
}

fn summary(run: &Value) -> String {
    format!(
        "generation {}, {} recoveries, the last in {} ms",
        run["generation"], run["recoveries"], run["last_recovery_ms"]
    )
}
