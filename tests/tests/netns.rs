//! Four machines, as network namespaces with links of 1 Gbit/s, train one run: a link is cut, and the machine behind it
//! comes back with another address.
//!
//! Needs root and `ip`; says so and passes without.

use std::process::Stdio;
use std::time::{Duration, Instant};

use muster_tests::cluster::{Cluster, wait};
use muster_tests::headlines::{compare, log, run_file_at};
use muster_tests::muster;
use muster_tests::netns::Net;
use serde_json::Value;

/// Gradients take about 20 ms over such links, whatever the CPU: the machine is back long before the end.
const STEPS: u64 = 700;
/// So small that roundings do not part the curves over so many steps.
const RATE: f64 = 1e-6;

fn nodes_of(run: &Value) -> Vec<&str> {
    let ranks = run["ranks"].as_array().into_iter().flatten();
    ranks.filter(|rank| rank["state"] == "training").filter_map(|rank| rank["node"].as_str()).collect()
}

#[test]
fn a_run_over_four_machines_outlives_a_cut_link_and_takes_the_machine_in_again() {
    let Some(net) = Net::new("f", 4) else { return };
    let dir = tempfile::tempdir().unwrap();
    let train = format!("max_steps = {STEPS}");
    let alone = run_file_at(dir.path(), "alone", RATE, &train);
    let mut alone =
        muster(&["train", "--json"]).arg(alone).stdout(Stdio::null()).stderr(Stdio::null()).spawn();

    let at = (Some(net.switch()), net.switch_ip());
    let (cluster, _coordinator) = Cluster::start_at(dir.path(), "".as_ref(), (at.0, &at.1));
    let names = ["a", "b", "c", "d"];
    let start = |node: usize, life| cluster.agent_in(&net.node(node), names[node], &net.ip(node, life));
    let mut agents: Vec<_> = (0..4).map(|node| start(node, 0)).collect();
    cluster.until_nodes(4);
    // Two ranks of a machine share memory; machines are joined by one rail for each of them.
    let ranks = "[ranks]\nper_node = 2\nnodes = 4\npatience_s = 4";
    let run = cluster.submit(&run_file_at(dir.path(), "far", RATE, &format!("{train}\n{ranks}")));
    let before = cluster.until(&run, "eight ranks that train", |run| nodes_of(run).len() == 8);
    cluster.until_step(&run, 20);

    net.cut(3);
    let cut = Instant::now();
    let without = cluster.until(&run, "a generation without the machine", |run| {
        run["generation"].as_u64() > before["generation"].as_u64()
            && nodes_of(run).len() == 6
            && !nodes_of(run).contains(&"d")
    });
    cluster.until_step(&run, without["step"].as_u64().unwrap() + 3);
    println!("from the cut to steps of the others: {:?}", cut.elapsed());
    assert!(cut.elapsed() < Duration::from_secs(30), "{:?}", cut.elapsed());

    // What boots there again is another start of the agent, elsewhere in the network.
    agents.pop().unwrap().kill();
    net.renumber(3, 1);
    agents.push(start(3, 1));
    let back = Instant::now();
    let with = cluster.until(&run, "the machine's return", |run| nodes_of(run).contains(&"d"));
    println!("from the start of its agent to its first steps: {:?}", back.elapsed());
    let address = wait("its new address", || {
        let nodes = cluster.ask(&["nodes"]);
        let node = nodes.as_array()?.iter().find(|node| node["name"] == "d")?;
        Some(node["address"].as_str()?.to_owned())
    });
    assert!(address.starts_with(&net.ip(3, 1)), "{address}");
    // Every part of the way has its own deadline: on a busy machine all of it may take minutes.
    for step in (0..STEPS).step_by(50) {
        let is_there = |run: &Value| run["step"].as_u64() >= Some(step) || run["state"] == "succeeded";
        cluster.until(&run, &format!("step {step}"), is_there);
    }
    let done = cluster.until_state(&run, "succeeded");
    println!("generation {} with it, {} at the end", with["generation"], done["generation"]);
    assert_eq!(done["results"]["steps"].as_u64(), Some(STEPS));
    assert!(alone.as_mut().unwrap().wait().unwrap().success(), "one rank trains");
    compare(&log(dir.path(), "alone"), &log(dir.path(), "far"), 1e-4);
}
