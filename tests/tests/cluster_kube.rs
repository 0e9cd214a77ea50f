//! A coordinator, agents and ranks as real processes, with an API server of the test: pods come, go and are made again.

use std::path::Path;

use muster_tests::cluster::{Cluster, Process, signal, wait};
use muster_tests::fake_kube::FakeKube;
use serde_json::{Value, json};

const READY: [bool; 2] = [true, false];

fn rank() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_fake_rank"))
}

fn start(dir: &Path, args: &[&str]) -> (FakeKube, Cluster, Process) {
    let kube = FakeKube::start();
    let config = kube.kubeconfig(dir);
    let args = [&["--discover", "kubernetes:trainers"], args].concat();
    let (cluster, coordinator) =
        Cluster::start_with(dir, rank(), &args, &[("KUBECONFIG", &config.to_string_lossy())]);
    (kube, cluster, coordinator)
}

/// Starts the agent of a pod and lists it.
fn pod(kube: &FakeKube, cluster: &Cluster, name: &str, uid: &str) -> Process {
    let agent = cluster.pod(name, uid);
    kube.agent(name, uid, &agent.address(), READY);
    agent
}

fn training(run: &Value) -> usize {
    let ranks = run["ranks"].as_array().map(Vec::as_slice).unwrap_or_default();
    ranks.iter().filter(|rank| rank["state"] == "training").count()
}

#[test]
fn pods_come_and_go_and_are_made_again_and_training_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (kube, cluster, coordinator) = start(dir.path(), &[]);
    let mut pods: Vec<Process> =
        (0..2).map(|n| pod(&kube, &cluster, &format!("trainer-{n}"), &format!("u{n}"))).collect();
    cluster.until_nodes(2);
    let file = cluster.run_file("elastic", 700, "nodes = 2\nper_node = 1\nmin = 1\nmax = 4");
    let run = cluster.submit(&file);
    cluster.until_step(&run, 10);

    // From two to four.
    pods.extend((2..4).map(|n| pod(&kube, &cluster, &format!("trainer-{n}"), &format!("u{n}"))));
    cluster.until(&run, "four ranks", |run| training(run) == 4);

    // From four to three: the pod is being deleted, and its own word of that is lost.
    let last = pods.pop().unwrap();
    kube.agent("trainer-3", "u3", &last.address(), [false, true]);
    let left = cluster.until(&run, "three ranks", |run| training(run) == 3);
    assert!(!left["ranks"].to_string().contains("trainer-3"), "{left}");
    last.kill();
    kube.forget("trainer-3");

    // One dies and comes back with the same name at another address.
    pods.pop().unwrap().kill();
    kube.forget("trainer-2");
    cluster.until(&run, "two ranks", |run| training(run) == 2);
    pods.push(pod(&kube, &cluster, "trainer-2", "made-again"));
    cluster.until(&run, "three ranks again", |run| training(run) == 3);
    let nodes = cluster.ask(&["nodes"]);
    let again = nodes.as_array().unwrap().iter().find(|node| node["name"] == "trainer-2").unwrap();
    assert_eq!((&again["pod_uid"], &again["state"]), (&json!("made-again"), &json!("connected")), "{again}");
    assert_eq!(again["machine"], "m-trainer-2");

    // The coordinator is replaced; nobody waits for it.
    coordinator.kill();
    let during = cluster.steps("elastic").len();
    wait("steps without a coordinator", || (cluster.steps("elastic").len() > during + 5).then_some(()));
    let _coordinator = cluster.coordinator();
    cluster.until(&run, "three ranks that the new coordinator knows", |run| training(run) == 3);
    cluster.until_state(&run, "succeeded");
    assert_eq!(cluster.steps("elastic"), (1..=700).collect::<Vec<u64>>(), "every step once");
    let text = cluster.text(&["nodes"]);
    assert!(
        text.contains("found by EndpointSlices of trainers in ml (") && text.contains(" s old)"),
        "{text}"
    );
}

#[test]
fn people_read_what_a_run_waits_for_and_the_cluster_is_told_what_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let care = [
        "--explain-pods",
        "--protect-pods",
        "--pod-events",
        "--disruption-budget",
        "trainer",
        "--scale-statefulset",
        "trainer",
        "--scale-min",
        "1",
        "--scale-max",
        "5",
    ];
    let (kube, cluster, _coordinator) = start(dir.path(), &care);
    for n in 0..2 {
        kube.pod(
            &format!("trainer-{n}"),
            &format!("u{n}"),
            json!({"conditions": [{"type": "Ready", "status": "True"}]}),
        );
    }
    let _pods: Vec<Process> =
        (0..2).map(|n| pod(&kube, &cluster, &format!("trainer-{n}"), &format!("u{n}"))).collect();
    let waiting = json!({"phase": "Pending", "containerStatuses": [{"name": "trainer", "image": "", "imageID": "",
        "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}}]});
    kube.pod("trainer-2", "u2", waiting);
    cluster.until_nodes(2);
    let small = cluster.submit(&cluster.run_file("small", 200, "nodes = 1\nper_node = 1"));
    let run = cluster.submit(&cluster.run_file("wide", 10, "nodes = 3\nper_node = 1"));
    let waits = cluster
        .until(&run, "a reason", |run| run["waits_for"].as_array().is_some_and(|words| words.len() == 2));
    assert_eq!(waits["waits_for"], json!(["2 of 3 connected", "trainer-2 is not there (ImagePullBackOff)"]));

    // With an address, but not ready: nobody listens there yet.
    kube.agent("trainer-2", "u2", "127.0.0.1:1", [false, false]);
    cluster.until(&run, "a pod that is not ready", |run| {
        let word = run["waits_for"][1].as_str().unwrap_or_default();
        word.starts_with("trainer-2 not ready for ") && word.ends_with(" s (ImagePullBackOff)")
    });
    let nodes = cluster.ask(&["nodes"]);
    let expected = nodes.as_array().unwrap().iter().find(|node| node["name"] == "trainer-2").unwrap();
    assert!(["expected", "unreachable"].contains(&expected["state"].as_str().unwrap()), "{expected}");

    let written = |what: &str, is: &dyn Fn(&(String, String, Value)) -> bool| {
        wait(what, || kube.written().iter().any(is).then_some(()));
    };
    written("the scale for the queue", &|(_, path, body)| {
        path.ends_with("/statefulsets/trainer/scale") && body["spec"]["replicas"] == 4
    });
    const KEY: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    let is_marked = |body: &Value| body["metadata"]["annotations"][KEY] == "false";
    let is_freed = |body: &Value| body["metadata"]["annotations"].get(KEY) == Some(&Value::Null);
    written("the mark of a busy pod", &|(_, path, body)| path.contains("/pods/trainer-") && is_marked(body));
    written("no evictions", &|(_, _, body)| body["spec"]["maxUnavailable"] == 0);
    written("an event", &|(method, path, body)| {
        method == "POST" && path.ends_with("/events") && body["reason"] == "RunStarted"
    });
    // The pod starts, and the run with it.
    let _late = pod(&kube, &cluster, "trainer-2", "u2");
    kube.pod("trainer-2", "u2", json!({"conditions": [{"type": "Ready", "status": "True"}]}));
    cluster.until_state(&run, "succeeded");
    cluster.until_state(&small, "succeeded");
    written("the mark taken back", &|(_, path, body)| path.contains("/pods/trainer-") && is_freed(body));
    written("evictions again", &|(_, _, body)| body["spec"]["maxUnavailable"] == "100%");
}

#[test]
fn an_agent_that_ends_while_the_coordinator_is_away_lets_its_ranks_save() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, coordinator) = Cluster::start(dir.path(), rank());
    let mut agents = ["a", "b"].map(|name| cluster.agent(name));
    cluster.until_nodes(2);
    let run = cluster.submit(&cluster.run_file("alone", 400, "nodes = 2\nper_node = 1"));
    cluster.until_step(&run, 10);
    coordinator.kill();
    let before = cluster.steps("alone").len() as u64;
    agents.iter().for_each(|agent| agent.signal("TERM"));
    for agent in &mut agents {
        assert_eq!(agent.exit_code(), Some(0), "{}", agent.log());
    }
    let saved: u64 = std::fs::read_to_string(dir.path().join("alone/checkpoint")).unwrap().parse().unwrap();
    assert!(saved >= before, "step {saved} is saved, {before} were done");
    // Others go on from there.
    let _coordinator = cluster.coordinator();
    let _agents = ["a", "b"].map(|name| cluster.agent(name));
    cluster.until_state(&run, "succeeded");
    assert_eq!(cluster.steps("alone"), (1..=400).collect::<Vec<u64>>(), "no step is lost");
}

#[test]
fn probes_see_who_is_alive_who_has_started_and_who_takes_work() {
    use tonic::transport::Endpoint;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

    let dir = tempfile::tempdir().unwrap();
    let (cluster, _coordinator) = Cluster::start(dir.path(), rank());
    let mut agent = cluster.agent_args("a", &["--health-listen", "127.0.0.1:0", "--grace-seconds", "60"]);
    cluster.until_nodes(1);
    let log = agent.log();
    let at = log.split("health for probes is at ").nth(1).unwrap().split_whitespace().next().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = |service: &str| {
        runtime.block_on(async {
            let channel = Endpoint::from_shared(format!("http://{at}")).unwrap().connect().await.unwrap();
            let mut client = HealthClient::new(channel);
            let answer = client.check(HealthCheckRequest { service: service.into() }).await.unwrap();
            answer.into_inner().status()
        })
    };
    for service in ["", "startup", "ready"] {
        assert_eq!(ask(service), ServingStatus::Serving, "{service}");
    }
    // A rank that takes its time to leave.
    let run = cluster.submit(&cluster.run_file("long", 100_000, ""));
    cluster.until_step(&run, 3);
    let pid = wait("the process of a rank", || Some(cluster.rank_pids(&run).first()?.1));
    signal(pid, "STOP");
    agent.signal("TERM");
    wait("an agent that takes no work", || (ask("ready") == ServingStatus::NotServing).then_some(()));
    assert_eq!((ask(""), ask("startup")), (ServingStatus::Serving, ServingStatus::Serving));
    signal(pid, "CONT");
    assert_eq!(agent.exit_code(), Some(0), "{}", agent.log());
}
