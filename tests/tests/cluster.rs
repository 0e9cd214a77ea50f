//! A coordinator, agents and ranks as real processes; the ranks train nothing (`muster_tests::fake_rank`).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use muster_tests::cluster::{Cluster, Process, signal, wait};
use muster_trainer::agent::{AgentOptions, AgentService, Handle};
use muster_trainer::topology::HostFacts;

fn rank() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_fake_rank"))
}

/// A coordinator and agents that are connected.
fn cluster(dir: &Path, agents: &[&str]) -> (Cluster, Process, Vec<Process>) {
    let (cluster, coordinator) = Cluster::start(dir, rank());
    let agents = agents.iter().map(|name| cluster.agent(name)).collect::<Vec<_>>();
    cluster.until_nodes(agents.len());
    (cluster, coordinator, agents)
}

fn all(steps: u64) -> Vec<u64> {
    (1..=steps).collect()
}

#[test]
fn a_run_trains_on_two_nodes_and_everybody_can_look() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator, _agents) = cluster(dir.path(), &["a", "b"]);
    let run_file = cluster.run_file("both", 40, "per_node = 2");
    let output = cluster.command(&["submit", "--wait", &run_file.to_string_lossy()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((run["state"].as_str(), run["results"]["steps"].as_u64()), (Some("succeeded"), Some(40)));
    assert_eq!(run["generation"], 1);
    assert_eq!(cluster.steps("both"), all(40));
    assert_eq!(cluster.ask(&["runs"]).as_array().unwrap().len(), 0, "none is open");
    assert_eq!(cluster.ask(&["runs", "--all"])[0]["name"], "both");
    let logs = cluster.command(&["logs", "both"]).output().unwrap();
    let logs = String::from_utf8(logs.stdout).unwrap();
    assert_eq!(logs.lines().filter(|line| line.contains("has process")).count(), 4, "{logs}");
}

#[test]
fn killed_ranks_agents_and_coordinators_cost_no_step() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, mut coordinator, mut agents) = cluster(dir.path(), &["a", "b"]);
    let run = cluster.submit(&cluster.run_file("hard", 600, "per_node = 2"));
    cluster.until_step(&run, 20);
    let pids = cluster.rank_pids(&run);
    assert_eq!(pids.len(), 4, "{pids:?}");
    signal(pids[1].1, "KILL");
    let recovered = cluster.until(&run, "a recovery", |run| run["recoveries"].as_u64() >= Some(1));
    let took = recovered["last_recovery_ms"].as_u64().unwrap();
    assert!(took < 1_000, "{took} ms from the crash to the next steps");
    cluster.until(&run, "the return of the rank", |run| {
        let ranks = run["ranks"].as_array().unwrap();
        ranks.len() == 4 && ranks.iter().all(|rank| rank["state"] == "training")
    });
    agents.pop().unwrap().kill();
    cluster.until(&run, "a generation of one node", |run| {
        run["ranks"].as_array().unwrap().iter().all(|rank| rank["node"] == "a" && rank["state"] == "training")
    });
    let before = cluster.status(&run).unwrap()["step"].as_u64().unwrap();
    agents.push(cluster.agent("b"));
    coordinator.kill();
    let during = cluster.steps("hard").len();
    wait("steps without a coordinator", || (cluster.steps("hard").len() > during + 5).then_some(()));
    coordinator = cluster.coordinator();
    let after = cluster.until_step(&run, before + 10);
    assert!(after["generation"].as_u64() >= Some(4), "{after}");
    cluster.until_state(&run, "succeeded");
    assert_eq!(cluster.steps("hard"), all(600));
    drop((coordinator, agents));
}

#[test]
fn a_stopped_rank_is_given_up_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator, _agents) = cluster(dir.path(), &["a", "b"]);
    let run = cluster.submit(&cluster.run_file("stopped", 300, ""));
    cluster.until_step(&run, 10);
    let pids = cluster.rank_pids(&run);
    signal(pids[1].1, "STOP");
    cluster.until(&run, "a recovery", |run| run["recoveries"].as_u64() >= Some(1));
    cluster.until_state(&run, "succeeded");
    assert_eq!(cluster.steps("stopped"), all(300));
    let stopped = Path::new("/proc").join(pids[1].1.to_string());
    wait("the end of the stopped process", || (!stopped.exists()).then_some(()));
}

#[test]
fn a_cancelled_run_saves_and_a_queued_one_just_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator, _agents) = cluster(dir.path(), &["a"]);
    let first = cluster.submit(&cluster.run_file("first", 100_000, ""));
    let second = cluster.submit(&cluster.run_file("second", 10, ""));
    cluster.until_step(&first, 5);
    let waits = cluster.status(&second).unwrap();
    assert_eq!(waits["reason"], "needs 1 node; 0 free of 1 connected");
    cluster.ask(&["cancel", &second]);
    assert_eq!(cluster.status(&second).unwrap()["state"], "cancelled");
    cluster.ask(&["cancel", "first"]);
    let over = cluster.until_state(&first, "cancelled");
    assert!(over["reason"].as_str().unwrap().contains("a checkpoint of step"), "{over}");
    let saved: u64 = std::fs::read_to_string(dir.path().join("first/checkpoint")).unwrap().parse().unwrap();
    assert!(saved >= 5);
    let again = cluster.command(&["cancel", &first]).output().unwrap();
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("the run is over already: cancelled"));
}

#[test]
fn an_agent_that_is_told_to_end_leaves_at_a_boundary() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator, mut agents) = cluster(dir.path(), &["a", "b"]);
    let run = cluster.submit(&cluster.run_file("leave", 200, ""));
    cluster.until_step(&run, 10);
    agents[0].signal("TERM");
    assert_eq!(agents[0].exit_code(), Some(0), "{}", agents[0].log());
    let done = cluster.until_state(&run, "succeeded");
    assert_eq!(done["recoveries"], 0, "nothing broke");
    assert_eq!(cluster.steps("leave"), all(200));
}

#[test]
fn the_last_agent_that_leaves_saves_and_the_run_goes_on_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator, mut agents) = cluster(dir.path(), &["a"]);
    let run = cluster.submit(&cluster.run_file("move", 150, ""));
    cluster.until_step(&run, 10);
    agents[0].signal("TERM");
    assert_eq!(agents[0].exit_code(), Some(0), "{}", agents[0].log());
    let queued = cluster.until_state(&run, "queued");
    assert!(queued["reason"].as_str().unwrap().contains("leaves"), "{queued}");
    let _b = cluster.agent("b");
    cluster.until_state(&run, "succeeded");
    let steps = cluster.steps("move");
    assert_eq!(steps, all(150), "it went on from what was saved");
}

#[test]
fn an_agent_of_another_version_is_refused_and_the_run_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator) = Cluster::start(dir.path(), rank());
    let options = AgentOptions {
        node: "old".into(),
        incarnation: "1".into(),
        boot_id: String::new(),
        version: "0.0.1".into(),
        isa: String::new(),
        listen: "127.0.0.1".into(),
        program: rank().into(),
        args: Vec::new(),
        facts: HostFacts::detect(),
        pod: None,
        leave_timeout: Duration::from_secs(5),
        frozen_after: muster_proto::limits::RANK_FROZEN_AFTER,
    };
    let agent = Handle::start(options).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = muster_proto::v1::agent_server::AgentServer::new(AgentService::new(agent.asker()));
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    runtime.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    let mut client = runtime.block_on(client(&cluster));
    let announce = muster_proto::v1::AnnounceRequest { address, report: None };
    runtime.block_on(client.announce(announce)).unwrap();
    let run = cluster.submit(&cluster.run_file("skew", 10, ""));
    let waits = cluster.until(&run, "the reason", |run| run["reason"].as_str().unwrap().contains("0.0.1"));
    assert_eq!(waits["state"], "queued");
    let nodes = cluster.ask(&["nodes"]);
    assert_eq!(nodes[0]["state"], "refused");
    assert!(nodes[0]["reason"].as_str().unwrap().contains("use one version"), "{nodes}");
}

async fn client(
    cluster: &Cluster,
) -> muster_proto::v1::coordinator_client::CoordinatorClient<tonic::transport::Channel> {
    let address = format!("http://{}", cluster.address());
    muster_proto::v1::coordinator_client::CoordinatorClient::connect(address).await.unwrap()
}

#[test]
fn of_two_agents_with_one_name_the_second_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator, _agents) = cluster(dir.path(), &["twin"]);
    let _second = cluster.agent("twin");
    let refused = wait("the refusal", || {
        let nodes = cluster.ask(&["nodes"]);
        nodes.as_array()?.iter().find(|node| node["state"] == "refused").cloned()
    });
    assert!(refused["reason"].as_str().unwrap().contains("another agent with the name twin"), "{refused}");
    let run = cluster.submit(&cluster.run_file("one", 10, ""));
    cluster.until_state(&run, "succeeded");
}

#[test]
fn garbage_and_giants_harm_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator, agents) = cluster(dir.path(), &["a"]);
    let run = cluster.submit(&cluster.run_file("calm", 150, ""));
    for address in [cluster.address().to_owned(), agents[0].address()] {
        for garbage in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0xff; 70_000],
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff",
        ] {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            // It may be closed before all is written.
            let _ = stream.write_all(garbage);
            let _ = stream.read(&mut [0; 1024]);
        }
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut client = runtime.block_on(client(&cluster));
    let giant = muster_proto::v1::SubmitRequest { run_file: "#".repeat(5 << 20), ..Default::default() };
    let status = runtime.block_on(client.submit(giant)).unwrap_err();
    assert_eq!(status.code(), tonic::Code::OutOfRange, "{status:?}");
    let text = std::fs::read_to_string(dir.path().join("calm.toml")).unwrap();
    let relative = muster_proto::v1::SubmitRequest {
        run_file: text,
        run_file_path: "x.toml".into(),
        ..Default::default()
    };
    let status = runtime.block_on(client.submit(relative)).unwrap_err();
    assert!(status.message().contains("must be absolute"), "{status:?}");
    let announce = muster_proto::v1::AnnounceRequest { address: "nowhere".into(), report: None };
    assert_eq!(runtime.block_on(client.announce(announce)).unwrap_err().code(), tonic::Code::InvalidArgument);
    let done = cluster.until_state(&run, "succeeded");
    assert_eq!(done["recoveries"], 0);
}

#[test]
fn more_ranks_than_exist_are_waited_for_and_uneven_ones_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator, _agents) = cluster(dir.path(), &["a"]);
    let run = cluster.submit(&cluster.run_file("many", 10, "nodes = 7"));
    let waits = cluster.until(&run, "a reason", |run| run["reason"].as_str().unwrap().contains("7 nodes"));
    assert_eq!(
        (waits["state"].as_str(), waits["reason"].as_str()),
        (Some("queued"), Some("needs 7 nodes; 1 free of 1 connected"))
    );
    let cores = HostFacts::detect().cores.len();
    let uneven = cores + 1 + cores % 2;
    if cores > 1 {
        let refused = cluster.submit(&cluster.run_file("uneven", 10, &format!("per_node = {uneven}")));
        let over = cluster.until_state(&refused, "failed");
        assert!(over["reason"].as_str().unwrap().contains("evenly"), "{over}");
    }
    // A smaller run is not held up.
    let small = cluster.submit(&cluster.run_file("small", 10, ""));
    cluster.until_state(&small, "succeeded");
}

#[test]
fn queued_runs_and_history_survive_the_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, coordinator) = Cluster::start(dir.path(), rank());
    let run = cluster.submit(&cluster.run_file("patient", 20, ""));
    coordinator.kill();
    let _coordinator = cluster.coordinator();
    cluster.until_state(&run, "queued");
    let _agent = cluster.agent("a");
    cluster.until_state(&run, "succeeded");
}
