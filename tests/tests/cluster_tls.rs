//! A cluster with certificates and tokens as real processes: it trains, and every kind of stranger is told what is wrong.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use muster_proto::v1::agent_server::AgentServer;
use muster_proto::v1::coordinator_client::CoordinatorClient;
use muster_proto::v1::{AnnounceRequest, DescribeRequest, ListRunsRequest};
use muster_tests::certs::Certs;
use muster_tests::cluster::{Cluster, Process, wait};
use muster_tests::headlines::run_file;
use muster_tests::muster;
use muster_tls::{Incoming, Role, Target, Tls, dial};
use muster_trainer::agent::{AgentOptions, AgentService, Handle};
use muster_trainer::topology::HostFacts;
use tokio::runtime::Runtime;

fn fake_rank() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_fake_rank"))
}

/// What a command says that fails, with its exit code.
fn refusal(command: &mut Command) -> (String, Option<i32>) {
    let Output { status, stderr, .. } = command.output().unwrap();
    (String::from_utf8(stderr).unwrap(), status.code())
}

fn assert_says(text: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(text.contains(part), "{part:?} in\n{text}"));
}

#[test]
fn a_run_trains_over_tls_and_is_known_by_its_submitter() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::make(&dir.path().join("certs"));
    let token = certs.run(&["token", "anna", "--days", "2"]);
    let token_file = dir.path().join("token").display().to_string();
    std::fs::write(&token_file, &token).unwrap();
    let tokens = certs.dir.join("tokens").display().to_string();
    let (cluster, _coordinator) =
        Cluster::start_secure(dir.path(), Path::new(""), certs, &["--tokens", &tokens]);
    let _agents = ["a", "b"].map(|name| cluster.agent(name));
    cluster.until_nodes(2);
    let file = run_file(dir.path(), "secret", "max_steps = 40\n[ranks]\nnodes = 2");
    let file = file.to_string_lossy();

    let (text, code) = refusal(&mut cluster.command(&["submit", &file]));
    assert_says(&text, &["this takes a token", "muster certs token", "--token-file or MUSTER_TOKEN"]);
    assert_eq!(code, Some(1));
    let (text, _) = refusal(cluster.command(&["submit", &file]).env("MUSTER_TOKEN", "muster_0000"));
    assert_says(&text, &["the token is not known here"]);
    assert!(!text.contains("muster_0000"), "secrets are not repeated: {text}");

    let submit = ["submit", "--wait", &file, "--token-file", &token_file];
    let done = cluster.command(&submit).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // Looking takes no token.
    let run = &cluster.ask(&["runs", "--all"])[0];
    assert_eq!((run["submitter"].as_str(), run["state"].as_str()), (Some("anna"), Some("succeeded")));
    let logs = cluster.command(&["logs", "secret"]).output().unwrap();
    let logs = String::from_utf8(logs.stdout).unwrap();
    assert_eq!(logs.matches("links to other nodes are encrypted").count(), 2, "{logs}");

    // A token that is withdrawn counts no more, without a restart.
    std::fs::write(&tokens, "# nobody\n").unwrap();
    let (text, _) = refusal(cluster.command(&["cancel", "secret"]).env("MUSTER_TOKEN", token.trim()));
    assert_says(&text, &["the token is not known here, or was withdrawn"]);
    let shown = cluster.certs().run(&["show"]);
    assert_says(&shown, &["trainer/node", "expires in 36", "CA", "127.0.0.1"]);
}

#[test]
fn strangers_and_wrong_roles_are_told_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::make(&dir.path().join("certs"));
    let other = Certs::make(&dir.path().join("other"));
    let (cluster, coordinator) = Cluster::start_secure(dir.path(), fake_rank(), certs, &[]);
    let ask = |security: &[String]| refusal(&mut cluster.command_as(&["runs"], security)).0;

    // A plaintext client gets an alert, of which h2 keeps no text.
    assert_says(&ask(&[]), &["error:"]);
    assert_says(&ask(&other.options("client-me")), &["its certificate comes from another CA", "one CA"]);
    // The right CA, and a certificate of the wrong one: the coordinator refuses.
    let mut mixed = other.options("client-me");
    mixed[1] = cluster.certs().files("client-me").ca.display().to_string();
    assert_says(&ask(&mixed), &["it does not know the CA of our certificate"]);
    // The log has a line a second at most.
    wait("a log line", || {
        ask(&mixed);
        coordinator.log().contains("its certificate comes from another CA").then_some(())
    });
    let trainer = cluster.certs().options("trainer-node");
    assert_says(
        &ask(&trainer),
        &["this is the certificate of trainer/node, and a client needs one of its own"],
    );
    let mut halves = cluster.certs().options("client-me");
    halves[5] = cluster.certs().files("trainer-node").key.display().to_string();
    assert_says(&ask(&halves), &["can't be used together", "client-me.pem", "trainer-node-key.pem"]);
    assert_says(&ask(&halves[..4]), &["--tls-key is not given"]);
    halves[3] = "nowhere.pem".into();
    assert_says(&ask(&halves), &["can't read nowhere.pem", "muster certs"]);

    // Programs that look away from their own role are refused by the coordinator.
    let runtime = Runtime::new().unwrap();
    let channel = |role, part: &str| {
        let tls = Tls::load(cluster.certs().files(part), role).unwrap();
        runtime.block_on(dial(cluster.address(), Target::Coordinator, Some(&tls))).unwrap()
    };
    let mut as_trainer = CoordinatorClient::new(channel(Role::Trainer, "trainer-node"));
    let status = runtime.block_on(as_trainer.list_runs(ListRunsRequest::default())).unwrap_err();
    assert_eq!(status.code(), tonic::Code::PermissionDenied);
    assert_says(status.message(), &["trainer/node may not do that", "muster certs issue client NAME"]);
    let mut as_client = CoordinatorClient::new(channel(Role::Client, "client-me"));
    let announce = AnnounceRequest { address: "127.0.0.1:1".into(), report: None };
    let status = runtime.block_on(as_client.announce(announce)).unwrap_err();
    assert_says(status.message(), &["client/me may not do that", "a trainer"]);
}

#[test]
fn a_client_may_not_pose_as_an_agent_nor_an_agent_be_led_by_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::make(&dir.path().join("certs"));
    let options = AgentOptions {
        node: "impostor".into(),
        incarnation: "1".into(),
        boot_id: String::new(),
        version: env!("CARGO_PKG_VERSION").into(),
        isa: String::new(),
        listen: "127.0.0.1".into(),
        program: fake_rank().into(),
        args: Vec::new(),
        pod: None,
        facts: HostFacts::detect(),
        leave_timeout: Duration::from_secs(5),
        frozen_after: muster_proto::limits::RANK_FROZEN_AFTER,
    };
    let agent = Handle::start(options).unwrap();
    let runtime = Runtime::new().unwrap();
    let tls = Tls::load(certs.files("client-me"), Role::Client).unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = AgentServer::new(AgentService::new(agent.asker()));
    let incoming = runtime.block_on(async { Incoming::new(listener, Some(tls.clone())) });
    runtime.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    let (cluster, _coordinator) =
        Cluster::start_secure(dir.path(), fake_rank(), certs, &["--agents", &address]);
    let refused = wait("the refusal", || {
        let nodes = cluster.ask(&["nodes"]);
        nodes
            .as_array()?
            .iter()
            .find(|node| {
                node["reason"].as_str().is_some_and(|r| r.contains("role") || r.contains("client/me"))
            })
            .cloned()
    });
    assert_eq!(refused["reason"], "its certificate is that of client/me, and not of a trainer");

    let real = cluster.agent("real");
    cluster.until_nodes(1);
    let channel = runtime.block_on(dial(&real.address(), Target::Agent, Some(&tls))).unwrap();
    let mut client = muster_proto::v1::agent_client::AgentClient::new(channel);
    let status = runtime.block_on(client.describe(DescribeRequest {})).unwrap_err();
    assert_eq!(status.code(), tonic::Code::PermissionDenied);
    assert_says(status.message(), &["client/me may not do that", "coordinator"]);
}

#[test]
fn certificates_that_change_are_used_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let old = Certs::make(&dir.path().join("old"));
    let (cluster, coordinator) =
        Cluster::start_secure(dir.path(), fake_rank(), Certs::make(&dir.path().join("certs")), &[]);
    let agent = cluster.agent("a");
    cluster.until_nodes(1);
    let run = cluster.submit(&cluster.run_file("steady", 400, ""));
    cluster.until_step(&run, 5);
    // All certificates of another CA, each file replaced at once as Kubernetes does.
    for entry in std::fs::read_dir(&old.dir).unwrap() {
        let path = entry.unwrap().path();
        std::fs::rename(&path, cluster.certs().dir.join(path.file_name().unwrap())).unwrap();
    }
    cluster.until(&run, "an answer over the new certificates", |_| true);
    assert!(coordinator.log().contains("was read again"), "{}", coordinator.log());
    agent.kill();
    let agent = cluster.agent("a");
    cluster.until_state(&run, "succeeded");
    // A file that is wrong changes nothing.
    std::fs::write(cluster.certs().files("coordinator-main").cert, "not a certificate").unwrap();
    assert_eq!(cluster.ask(&["runs", "--all"])[0]["state"], "succeeded");
    assert!(coordinator.log().contains("the old ones stay"), "{}", coordinator.log());
    drop(agent);
}

#[test]
fn garbage_and_silence_at_encrypted_ports_harm_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::make(&dir.path().join("certs"));
    let (cluster, coordinator) = Cluster::start_secure(dir.path(), fake_rank(), certs, &[]);
    let agent = cluster.agent("a");
    cluster.until_nodes(1);
    let run = cluster.submit(&cluster.run_file("calm", 200, ""));
    let addresses = [cluster.address().to_owned(), agent.address()];
    let silent: Vec<TcpStream> = (0..100).map(|i| TcpStream::connect(&addresses[i % 2]).unwrap()).collect();
    for address in &addresses {
        for garbage in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 70_000], b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc"]
        {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            // It may be closed before all is written.
            let _ = stream.write_all(garbage);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            while stream.read(&mut [0; 1024]).is_ok_and(|got| got > 0) {}
        }
    }
    assert_says(&coordinator.log(), &["refused a connection from 127.0.0.1", "does not speak TLS"]);
    let done = cluster.until_state(&run, "succeeded");
    assert_eq!(done["recoveries"], 0);
    let begun = Instant::now();
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(stream.read(&mut [0; 16]).ok(), Some(0), "who says nothing is sent away");
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn plaintext_leaves_the_machine_only_if_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state").display().to_string();
    let (text, code) = refusal(&mut muster(&["coordinator", "--listen", "0.0.0.0:0", "--state", &state]));
    assert_says(&text, &["listening on 0.0.0.0:0 without TLS, beyond this machine", "--insecure"]);
    assert_eq!(code, Some(2));
    assert!(!Path::new(&state).exists(), "nothing was begun");
    let trainer = ["trainer", "--listen", "127.0.0.1:0", "--coordinator", "192.0.2.1:7070"];
    let (text, _) = refusal(&mut muster(&trainer));
    assert_says(&text, &["connecting to 192.0.2.1:7070 without TLS"]);
    let (text, code) = refusal(&mut muster(&["runs", "--coordinator", "192.0.2.1:7070"]));
    assert_says(&text, &["connecting to 192.0.2.1:7070 without TLS", "hint:"]);
    assert_eq!(code, Some(2));
}

#[test]
fn a_name_that_is_not_in_the_certificate_is_refused_and_probes_need_none() {
    let dir = tempfile::tempdir().unwrap();
    let certs = Certs::make(&dir.path().join("certs"));
    let start = |name: &str, options: &[&str]| {
        let mut command =
            muster(&["coordinator", "--listen", "127.0.0.2:0", "--health-listen", "127.0.0.1:0"]);
        command.arg("--state").arg(dir.path().join(name)).args(options);
        command
    };
    let options = certs.options("coordinator-main");
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let coordinator = Process::start(start("state", &options), dir.path().join("log"));
    let address = coordinator.address();
    let mut runs = muster(&["runs", "--coordinator", &address]);
    let (text, _) = refusal(runs.args(certs.options("client-me")));
    assert_says(&text, &["is for localhost, 127.0.0.1", "and not for 127.0.0.2", "--san"]);
    let log = coordinator.log();
    let at = log.find("health for probes is at ").unwrap() + "health for probes is at ".len();
    let health = format!("http://{}", log[at..].split_whitespace().next().unwrap());
    let runtime = Runtime::new().unwrap();
    let channel = tonic::transport::Endpoint::from_shared(health).unwrap();
    let channel = runtime.block_on(channel.connect()).unwrap();
    let mut client = tonic_health::pb::health_client::HealthClient::new(channel);
    let answer =
        runtime.block_on(client.check(tonic_health::pb::HealthCheckRequest { service: String::new() }));
    assert_eq!(answer.unwrap().into_inner().status, 1, "serving");
}
